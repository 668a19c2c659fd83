"""What real ranks have learned, from their result and from the part of each in a checkpoint."""

from pathlib import Path

import pytest
from mpi_ranks import ONE_LIBRARY, Ranks

from mpisgd.commands.export import exported
from mpisgd.store.reader import read

OPTIONS = (
    "--hidden 5 --data digits --data-samples 53 --batch 3 --steps 7 --evaluate-every 4 "
    "--checkpoint-every 7 --keep-parameters"
)
RUNS = {
    "dasgd": "--algorithm dasgd --tau 4 --delay 2 --allreduce ring --checkpoint-per-rank",
    "softsync": "--algorithm softsync --servers 2",
    "async": "--algorithm async",
}


@ONE_LIBRARY
@pytest.mark.parametrize("name", RUNS)
def test_result_and_checkpoint_hold_the_same_bits(mpi: Ranks, name: str, tmp_path: Path):
    path = tmp_path / "run.h5"
    words = ["mpisgd", "train", *OPTIONS.split(), *RUNS[name].split(), "--output", str(path)]
    mpi.run(4, words, timeout=150)
    kept, saved = exported(str(path)).weights, exported(f"{path}.checkpoint").weights
    with read(path) as run:
        assert run.weights is not None  # read with its digest
    assert {n: a.tobytes() for n, a in kept.arrays.items()} == {
        n: a.tobytes() for n, a in saved.arrays.items()
    }
