"""Plans on device memory: the bits of every schedule against `evaluate`, looked at and on a thread,
and what their copies alone take.

    mpiexec -n RANKS python plans.py SECONDS COUNTS BYTES    prints one JSON text
"""

import itertools
import json
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from allreduce import arrays
from allreduce.algorithms import ALGORITHMS, build
from allreduce.evaluate import evaluate
from allreduce.measure import Barrier
from allreduce.plan import Plan
from mpisgd.mpi import aware, devices
from mpisgd.worlds.pending import ProgressThread, ThreadedAllreduce

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
DTYPES = ("float32", "float16", "float64", "int32")
DEADLINE_S, REPETITIONS = 20.0, 20


class Case(NamedTuple):
    """One plan, started twice."""

    name: str
    dtype: str
    count: int
    out: bool
    threaded: bool
    aware: bool


def cases(counts: list[int], takes: bool) -> Iterator[Case]:
    """Those of small vectors first, so that a time limit leaves out the large ones."""
    names = (*ALGORITHMS, "hierarchical:ring")
    ways = (counts, DTYPES, names, (False, True), (False, True), sorted({False, takes}))
    for count, dtype, name, out, threaded, whether in itertools.product(*ways):
        yield Case(name, dtype, count, out, threaded, whether)


def wrong(cupy: Any, case: Case, thread: ProgressThread) -> int:
    """How many of its two results have other bits than `evaluate` on this rank."""
    dtype, found, mean = np.dtype(case.dtype), 0, case.dtype != "int32"
    source = cupy.empty(case.count, dtype)
    result = cupy.empty(case.count, dtype) if case.out else None
    plan = Plan(
        thread.comm if case.threaded else COMM, build(case.name, SIZE), source, result, mean=mean,
        chunks=3 if case.count >= 3 else 1, deadline=DEADLINE_S, cuda_aware=case.aware,
    )  # fmt: skip
    pending: Any = ThreadedAllreduce(thread, plan, time.perf_counter) if case.threaded else plan
    for again in range(2):
        random = np.random.default_rng((case.count, again))
        values = [(random.standard_normal(case.count) * 9).astype(dtype) for _ in range(SIZE)]
        source[...] = cupy.asarray(values[RANK])
        pending.start()
        if case.out:
            source[...] = 7  # may be changed at once
        pending.wait()
        evaluate(build(case.name, SIZE), values, mean=mean)
        found += plan.result.get().tobytes() != values[RANK].tobytes()
    plan.close()
    return found


def copies(cupy: Any, octets: int) -> float:
    """Seconds of a vector's copy out and in, on all ranks at once: the median of the slowest."""
    array = cupy.zeros(octets // 4, np.float32)
    memory: Any = arrays.of(array).beside()
    pinned, own = memory.pinned(array.size, array.dtype), []
    with Barrier(COMM, DEADLINE_S) as barrier:
        for _ in range(REPETITIONS):
            barrier()
            began = time.perf_counter()
            memory.to_host(pinned, array)
            memory.to_device(array, pinned)
            over = memory.fence()
            while not over():
                pass
            own.append(time.perf_counter() - began)
    return float(np.median(np.max(COMM.allgather(own), axis=0)))


def main(limit: str, counts: str, sizes: str) -> int:
    cupy = devices.module_of("cupy")
    takes = aware.decide("auto", COMM, cupy)
    thread = ProgressThread(COMM.Dup())
    began, runs, failed = time.monotonic(), 0, []
    every = list(cases([int(count) for count in counts.split(",")], takes.aware))
    for number, case in enumerate(every):
        if number % 16 == 0 and COMM.bcast(time.monotonic() - began) > float(limit):
            break
        if COMM.allreduce(wrong(cupy, case, thread)):
            failed.append(case._asdict())
        runs += 1
    thread.close()
    alone = {int(size): copies(cupy, int(size)) for size in sizes.split(",") if size}
    if RANK == 0:
        told = {
            "ranks": SIZE,
            "cases": len(every),
            "runs": runs,
            "wrong": failed,
            "copies_s": alone,
        }
        print(json.dumps(told | takes.facts()))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
