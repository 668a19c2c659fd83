"""The laws of plans over real MPI, each library in turn; the programs hold the checks."""

import re

import pytest

CHECKS = 13


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
def test_laws(mpi, ranks):
    done = mpi(ranks, "laws.py", timeout=150)
    print(done.stdout)
    assert f"{CHECKS} checks passed on {ranks} ranks" in done.stdout
    assert "leak" not in done.stderr.lower()


def test_a_stalled_peer_is_named_and_may_still_come(mpi):
    assert "all named" in mpi(3, "stall.py", "late").stdout


def ended(mpi, what: str) -> str:
    """What the job says in which the last rank stays away; it must end by itself."""
    done = mpi(2, "stall.py", what, check=False, timeout=150)
    assert done.returncode != 0
    return done.stderr + done.stdout


def test_a_stall_ends_the_job(mpi):
    said = ended(mpi, "leave")
    assert re.search(r"Stalled: rank 0 has waited \d+\.\d+ s for rank 1 .* \(round 0: ", said), said


@pytest.mark.parametrize("name", ["mpi", "mpi-nonblocking", "mpi-persistent"])
def test_a_stalled_native_allreduce_ends_the_job(mpi, name):
    said = ended(mpi, name)
    assert re.search(
        rf"rank 0 has waited \d+\.\d+ s for some of the 2 ranks in all-reduce {name}", said
    ), said


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_training_is_the_same_whoever_carries_its_averages(mpi, ranks):
    """Up to the rounding of another order of sums; looked at, and by a thread."""
    assert "32 runs agree" in mpi(ranks, "train_carriers.py", timeout=150).stdout
