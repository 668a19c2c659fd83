"""MPI_Init and MPI_Finalize end within a deadline, whoever does not come, and say who waits."""

import re

import pytest
from mpi_ranks import PROGRAMS, Ranks

PROGRAM = str(PROGRAMS / "start_and_end.py")
SECONDS = "4"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("ends", r"told before|waited \d+ s in MPI_Init for others"),
        ("stops", r"rank 0 of 2 has waited \d+ s in MPI_Init for others"),
        ("stops at the end", r"rank 0 .* rank 1"),
        ("stops in finalize", r"rank 0 of 2 has waited 4 s in MPI_Finalize for others"),
    ],
)
def test_a_peer_that_does_not_come_is_not_waited_for_for_ever(mpi: Ranks, fault, said):
    done = mpi.run(2, ["python", PROGRAM, fault, SECONDS], timeout=150, check=False)
    assert done.returncode != 0
    if mpi.name != "openmpi":  # whose mpiexec may end a job before it has handed on what was said
        assert re.search(said, done.stderr), done.stderr


def test_all_who_come_leave_in_peace(mpi: Ranks):
    done = mpi.run(3, ["python", PROGRAM, "none", "120"], timeout=150)
    assert done.stderr == ""


def test_a_command_without_ranks_speaks_on_whichever_rank_it_stands(mpi: Ranks):
    """And does not wait for others, which may be other programs."""
    rank = "${PMI_RANK:-$OMPI_COMM_WORLD_RANK}"
    line = f"[ {rank} != 1 ] || exec {mpi.python} -m mpisgd simulate --ranks 2"
    done = mpi.run(2, ["sh", "-c", line], timeout=150, check=False)
    assert done.returncode == 2
    assert "mpisgd simulate: error: runs in one process, but a launcher started 2" in done.stderr
