"""As many ranks as a study has, on one machine: they start, finish, and agree with the clock."""

import numpy as np
import pytest

from mpisgd.cli import main
from mpisgd.store.reader import read

OPTIONS = [
    *("train", "--algorithm", "dasgd", "--tau", "4", "--delay", "1"),
    *("--batch", "4", "--steps", "20", "--evaluate-every", "0"),
]


def agree(mpi, tmp_path, ranks: int, timeout: float) -> None:
    """The same losses and evaluation, bit for bit, on MPI and on the virtual clock."""
    real, virtual = tmp_path / "real.h5", tmp_path / "virtual.h5"
    mpi.run(ranks, ["mpisgd", *OPTIONS, "--deadline", "5min", "--output", str(real)],
            timeout=timeout)  # fmt: skip
    assert main([*OPTIONS, "--virtual", str(ranks), "--output", str(virtual)]) == 0
    with read(real) as found, read(virtual) as expected:
        assert found.complete
        assert found.ranks == ranks
        assert np.array_equal(found.steps["loss"], expected.steps["loss"])
        assert found.evaluation["loss"] == expected.evaluation["loss"]
        assert found.evaluation["accuracy"] == expected.evaluation["accuracy"]


def test_64_ranks(mpi, tmp_path):
    if mpi.name != "mpich":
        pytest.skip(
            "64 ranks of Open MPI take minutes to start on two cores; MPICH stands for both"
        )
    agree(mpi, tmp_path, 64, timeout=280)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_256_ranks(mpi, tmp_path):
    if mpi.name != "mpich":
        pytest.skip("256 ranks of Open MPI take too long to start on two cores")
    agree(mpi, tmp_path, 256, timeout=800)
