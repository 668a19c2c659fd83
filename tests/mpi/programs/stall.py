"""The last rank takes part once and then stays away: what do the others say, and when?

`late`: it comes after all, and the sums are right. `leave`: the error of a rank ends the job.
NAME: a row of NATIVE, whose all-reduce the last rank does not join.
"""

import sys
import time

import numpy as np
from mpi4py import MPI

from allreduce.algorithms import ALGORITHMS, build
from allreduce.errors import Stalled
from allreduce.native import Native
from allreduce.plan import Plan

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
DEADLINE_S = 0.2  # once it is known who stays away
LONG_S = 120.0


def stall(plan: Plan | Native) -> str:
    """What a rank that joins says in the end; the last one waits for all of them."""
    said = ""
    if RANK < SIZE - 1:
        plan.start()
        try:
            plan.wait()
        except Stalled as error:
            said = str(error)
    COMM.Barrier()
    return said


def come_late() -> None:
    for name in ALGORITHMS:
        for count in (11, 60_000):  # eager and rendezvous
            with Plan(COMM, build(name, SIZE), np.ones(count), deadline=LONG_S) as plan:
                plan.start()
                plan.wait()
                plan.deadline = DEADLINE_S
                said = COMM.allgather(stall(plan))
                if RANK == SIZE - 1:
                    plan.start()
                plan.deadline = LONG_S
                assert (plan.wait() == SIZE * SIZE).all()
            assert any(f"for rank {SIZE - 1} in all-reduce {name} (round" in s for s in said), said
            for rank, words in enumerate(said[:-1]):
                assert not words or words.startswith(f"rank {rank} has waited "), words


def main(what: str) -> None:
    if what == "late":
        come_late()
        if RANK == 0:
            print("all named")
        return
    if what == "leave":
        plan: Plan | Native = Plan(COMM, build("butterfly", SIZE), np.ones(60_000), deadline=LONG_S)
    else:
        plan = Native(COMM, what, np.ones(60_000), deadline=LONG_S)
    plan.start()
    plan.wait()
    plan.deadline = DEADLINE_S
    if RANK == SIZE - 1:
        time.sleep(30)  # stays away; the others' error ends it
    plan.start()
    plan.wait()


if __name__ == "__main__":
    main(sys.argv[1])
