"""Averages of pairs on real ranks: who waits for whom."""

from mpi_ranks import ONE_LIBRARY, Ranks

from allreduce.pairs import partners

pytestmark = ONE_LIBRARY
OPTIONS = (
    "--algorithm gossip --tau 1 --delay 0 --model mlp --hidden 7 --steps 9 --quiet "
    "--step-time 4ms --seed 3 --straggler 1:300000x --deadline 6s"
)


def test_whom_a_rank_meets_is_waited_for_and_named(mpi: Ranks):
    """Rank 1 takes 20 minutes for its first step; its partner says for whom it waits."""
    met = partners(3, 1, 4).tolist()
    done = mpi.run(4, ["mpisgd", "train", *OPTIONS.split()], check=False)
    assert done.returncode
    told = f"rank {met[1]} has waited 6"
    assert told in done.stderr
    assert "s for rank 1, which it meets" in done.stderr
