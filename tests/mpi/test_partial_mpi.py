"""Partial rounds on real ranks: whoever came when, the rows tell all that decides the bits."""

import numpy as np
import pytest
from mpi_ranks import ONE_LIBRARY, Ranks

from mpisgd import cli
from mpisgd.store.reader import read

pytestmark = ONE_LIBRARY
OPTIONS = (
    "--algorithm minibatch-partial --model mlp --hidden 7 --batch 4 --steps 25 "
    "--step-time 4ms --straggler lognormal:0.6,1:12x --allreduce ring --momentum 0.9 --quiet"
)
TRAIN = ["mpisgd", "train", *OPTIONS.split()]
RANKS = 3


@pytest.mark.parametrize(("quorum", "late"), [("solo", "add"), ("majority", "drop"), ("2", "add")])
def test_what_real_ranks_did_is_replayed_to_the_same_bits(mpi: Ranks, quorum, late, tmp_path):
    path = tmp_path / "run.h5"
    words = [*TRAIN, "--quorum", quorum, "--late", late, "--output", str(path)]
    mpi.run(RANKS, words)
    with read(path) as run:
        gradients, age = run.steps["gradients"], run.steps["staleness"]
        contributors, samples = run.steps["contributors"], run.steps["samples"]
        used = run.evaluation["samples_used"][-1]
    assert ((gradients > 0).sum(1) == contributors.T).all()
    assert used == samples.sum() == 4 * gradients.sum()
    fresh = gradients - (age > 0)
    assert (fresh.sum(1) >= (2 if quorum == "2" else 1)).all()
    assert (gradients == 0).any(), "nobody was late, so nothing was tested"
    assert cli.main(["replay", str(path)]) == 0


@pytest.mark.parametrize(
    "algorithm", ["local --quorum solo --late add", "local --quorum 2 --late drop",
                  "dasgd --delay 2 --quorum majority --late add"],
)  # fmt: skip
def test_averages_of_models_are_replayed_as_well(mpi: Ranks, algorithm, tmp_path):
    path = tmp_path / "run.h5"
    words = [*TRAIN, "--tau", "3", "--algorithm", *algorithm.split(), "--output", str(path)]
    mpi.run(RANKS, words)
    with read(path) as run:
        assert (run.steps["gradients"] == 0).any(), "nobody was late, so nothing was tested"
    assert cli.main(["replay", str(path)]) == 0


def test_who_waits_for_a_rank_that_does_not_come_says_for_whom(mpi: Ranks):
    """Seed 5 draws rank 1 for the first round; its step takes 20 minutes."""
    assert int(np.random.default_rng((5, 7, 1)).integers(RANKS)) == 1
    words = [*TRAIN, "--seed", "5", "--straggler", "1:300000x", "--deadline", "6s"]
    done = mpi.run(RANKS, words, check=False)
    assert done.returncode
    assert "waits for rank 1, which was drawn, to come to round 1" in done.stderr
