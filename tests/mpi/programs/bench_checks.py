"""The harness on real ranks: agreement, barriers, and validation that sees planted faults."""

import time

import numpy as np
from mpi4py import MPI

from allreduce import measure
from allreduce.errors import Stalled
from allreduce.measure import Rule
from mpisgd.bench.operations import MOCK_UPS, Vectors, operation

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()


def all_ranks_hold_the_same_samples() -> None:
    """Ranks that differ in speed agree on how many repetitions there are, and on all of them."""
    random = np.random.default_rng(RANK)

    def unsteady() -> None:
        until = time.perf_counter() + random.exponential(1e-4) * (1 + RANK)
        while time.perf_counter() < until:
            pass

    seconds = measure.repeat(COMM, [unsteady, unsteady], Rule(10, 200, 0.2, 0.001))
    assert seconds.shape[0] == 2
    assert seconds.shape[2] == SIZE
    assert 10 <= seconds.shape[1] <= 200
    assert (seconds > 0).all()
    assert len(set(COMM.allgather(seconds.tobytes()))) == 1


def nobody_leaves_the_barrier_before_all_have_come() -> None:
    with measure.Barrier(COMM) as barrier:
        for late in range(SIZE):
            for _ in range(20):
                began = time.monotonic()  # one clock for all ranks of a host
                if late == RANK:
                    while time.monotonic() < began + 2e-4:
                        pass
                came = time.monotonic()
                barrier()
                left = time.monotonic()
                assert min(COMM.allgather(left)) >= max(COMM.allgather(came))


def who_does_not_come_is_named() -> None:
    said = ""
    with measure.Barrier(COMM, deadline=0.1) as barrier:
        barrier()
        try:
            if RANK == 0:
                barrier()
        except Stalled as error:
            said = str(error)
        COMM.Barrier()
        if RANK > 0:
            barrier()
    assert ("for rank 1 in the barrier" in said) == (RANK == 0), said


def faults_are_counted(in_place: bool, dtype: str) -> None:
    """One rank dropped, another counted twice; a sum that is old; a sum that is off by one."""
    vectors = Vectors(np, 11, np.dtype(dtype), in_place)
    made = operation(COMM, "mpi", vectors)

    def replaced() -> None:
        own = vectors.source.copy()
        made.run()
        rest = COMM.allgather(own)
        vectors.result[...] += rest[0] - rest[-1]  # the last one is dropped

    def off() -> None:
        made.run()
        vectors.result[4] += 1

    assert vectors.count_wrong(COMM, made.run, 10.0) == 0
    count = measure.trials(SIZE, dtype)
    assert vectors.count_wrong(COMM, off, 10.0) == SIZE * count
    if SIZE > 1:
        assert vectors.count_wrong(COMM, replaced, 10.0) >= 11 * SIZE
        assert vectors.count_wrong(COMM, lambda: None, 10.0) >= 11 * SIZE
    made.close()


def mock_ups_are_right(in_place: bool, count: int) -> None:
    for name in MOCK_UPS:
        vectors = Vectors(np, count, np.dtype("float32"), in_place)
        made = operation(COMM, name, vectors)
        assert vectors.count_wrong(COMM, made.run, 10.0) == 0, (name, in_place, count)
        made.close()


if __name__ == "__main__":
    all_ranks_hold_the_same_samples()
    nobody_leaves_the_barrier_before_all_have_come()
    if SIZE == 2:
        who_does_not_come_is_named()
    for place in (True, False):
        for dtype in ("float16", "float32", "float64"):
            faults_are_counted(place, dtype)
        for count in (0, 1, 5, 1000):
            mock_ups_are_right(place, count)
    if RANK == 0:
        print(f"all checks passed on {SIZE} ranks")
