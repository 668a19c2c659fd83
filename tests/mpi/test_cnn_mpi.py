"""Networks that normalise, on real ranks: evaluated with all ranks' statistics, as on the clock."""

import numpy as np
import pytest
from mpi_ranks import ONE_LIBRARY

from mpisgd.cli import main
from mpisgd.store.reader import read

pytestmark = ONE_LIBRARY
COMMON = (
    "train --model resnet8 --hidden 2 --data digits --data-samples 90 --batch 4 --steps 6 "
    "--evaluate-every 3 --augment crop-flip --allreduce tree"
)


@pytest.mark.parametrize("options", ["--algorithm local --tau 2", "--algorithm dasgd --tau 2"])
def test_real_and_virtual_ranks_evaluate_alike(mpi, tmp_path, options):
    real, virtual = tmp_path / "real.h5", tmp_path / "virtual.h5"
    words = f"{COMMON} {options}".split()
    mpi.run(3, ["mpisgd", *words, "--output", str(real)])
    assert main([*words, "--virtual", "3", "--output", str(virtual)]) == 0
    with read(real) as found, read(virtual) as expected:
        assert np.array_equal(found.steps["loss"], expected.steps["loss"])
        for name in ("loss", "accuracy", "train_loss"):
            assert np.array_equal(found.evaluation[name], expected.evaluation[name])
        assert found.summary["normalisation"] == expected.summary["normalisation"]
