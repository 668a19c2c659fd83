"""Overlapped mini-batch SGD on real ranks: it stops as virtual ranks do."""

from mpi_ranks import ONE_LIBRARY, Ranks

pytestmark = ONE_LIBRARY


def test_real_ranks_stop_together_too(mpi: Ranks):
    """Weights that explode: the same line, step and rank as on the virtual clock."""
    options = (
        "--algorithm minibatch-overlap --bucket 1K --lr 1e30 --weight-decay 1 --epochs 1 "
        "--batch 16 --hidden 9,5 --allreduce tree"
    )
    words = ["train", *options.split()]
    real = mpi.run(3, ["mpisgd", *words, "--step-time", "2ms"], check=False)
    its = mpi.run(1, ["mpisgd", *words, "--virtual", "3"], check=False)
    assert real.returncode == its.returncode == 3
    assert "gradient or parameters not finite on rank" in its.stderr
    assert reason(real.stderr) == reason(its.stderr)


def reason(text: str) -> str:
    return next(line for line in text.splitlines() if "not finite" in line).partition(";")[0]
