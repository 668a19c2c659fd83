"""Every law of plans and of the library's own all-reduces, on the ranks that there are.

Each check runs on all ranks; one that fails anywhere raises there, and that ends the job.
"""

import itertools
import random
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from allreduce import arrays, plan
from allreduce.algorithms import ALGORITHMS, allgather, build
from allreduce.arrays import DTYPES
from allreduce.errors import BufferRefused, Mismatch
from allreduce.evaluate import evaluate
from allreduce.native import NATIVE, Native, library
from allreduce.plan import Plan, wait_until
from allreduce.sparse import SparsePlan, of_dense
from allreduce.sparse import evaluate as sparse_evaluate
from allreduce.testing import device as device_double

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
NAMES = (*ALGORITHMS, "hierarchical:ring")
OPTIONS = [
    {"in_place": in_place, "mean": mean, "chunks": chunks}
    for in_place, mean, chunks in itertools.product((True, False), (False, True), (1, 3))
]


def vectors(seed: int, count: int) -> list[np.ndarray]:
    """The same on every rank: all ranks' inputs, whose sum depends on the order."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(count) * 10.0 ** rng.integers(-3, 3, count) for _ in range(SIZE)]


def exact(dtype: np.dtype, count: int = 23) -> list[np.ndarray]:
    """Inputs that differ by rank and whose sum is exact in any order."""
    return [((np.arange(count) * 3 + rank) % 5).astype(dtype) for rank in range(SIZE)]


def total(values: list[np.ndarray]) -> np.ndarray:
    return np.sum(values, axis=0, dtype=values[0].dtype)


def same(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.dtype == wanted.dtype
    assert found.tobytes() == wanted.tobytes(), f"rank {RANK}: {found} is not {wanted}"


def error_of(call: Callable[[], Any], kind: type[Exception]) -> str:
    """What the error says, nothing if there is none."""
    try:
        call()
    except kind as error:
        return str(error)
    return ""


def finish(plans: list) -> None:
    """Look at all of them in an order that differs by rank, until all are done."""
    waiting = random.Random(RANK).sample(plans, len(plans))
    wait_until(lambda: all([one.test() for one in waiting]))  # noqa: C419 (each is looked at)


def check_bits_of_every_algorithm() -> None:
    """All counts in flight together, restarted, and the bits are evaluate's."""
    options = itertools.cycle(OPTIONS)
    for name in NAMES:
        schedule, cases = build(name, SIZE), []
        for tag, count in enumerate(sorted({0, 1, 2, SIZE - 1, SIZE, SIZE + 1, 101, 20_011})):
            chosen: dict[str, Any] = dict(next(options))
            values, in_place = vectors(tag, count), chosen.pop("in_place")
            result = None if in_place else np.empty(count)
            own = values[RANK].copy()
            one = Plan(COMM, schedule, own, result, tag=tag, **chosen)
            cases.append((one, values, own, in_place, chosen["mean"]))
        for _ in range(2):
            for one, *_ in cases:
                one.start()
            finish([case[0] for case in cases])
            for one, values, own, in_place, mean in cases:
                before = values[RANK].copy()
                wanted = values if in_place else [v.copy() for v in values]
                evaluate(schedule, wanted, mean=mean)
                same(one.result, wanted[RANK])
                same(own, wanted[RANK] if in_place else before)
        for one, *_ in cases:
            one.close()


def check_large_messages() -> None:
    """Beyond every library's eager limit."""
    for name in NAMES if SIZE <= 4 else ("double-tree", "butterfly", "ring"):
        values = vectors(3, 70_001)
        with Plan(COMM, build(name, SIZE), values[RANK].copy(), chunks=2) as one:
            one.start()
            result = one.wait()
        evaluate(build(name, SIZE), values)
        same(result, values[RANK])


def check_dtypes() -> None:
    plans = [
        Plan(COMM, build("halving-doubling", SIZE), exact(dtype)[RANK], tag=tag)
        for tag, dtype in enumerate(DTYPES)
    ]
    for one in plans:
        one.start()
    finish(plans)
    for one, dtype in zip(plans, DTYPES, strict=True):
        same(one.result, total(exact(dtype)))
        one.close()


def check_native_agrees_on_exact_data() -> None:
    for name, dtype in itertools.product(NATIVE, (np.float16, np.float32, np.float64, np.int32)):
        values = exact(np.dtype(dtype))
        own, result = values[RANK].copy(), np.empty_like(values[RANK])
        mean = dtype is not np.int32
        wanted = [v.copy() for v in values]
        evaluate(build("ring", SIZE), wanted, mean=mean)
        with Native(COMM, name, own, result, mean=mean) as native:
            for _ in range(3):
                native.start()
                if name != "mpi":
                    own[:] = 0  # out of place, the input may change after the start
                same(native.wait(), wanted[RANK])
                own[:] = values[RANK]
        with Native(COMM, name, own, mean=mean) as native:
            native.start()
            assert native.wait() is own
            same(own, wanted[RANK])


def check_two_in_flight_finished_the_other_way_round() -> None:
    first, second = vectors(1, 3001), vectors(2, 17)
    one = Plan(COMM, build("ring", SIZE), first[RANK].copy(), tag=1)
    other = Plan(COMM, build("butterfly", SIZE), second[RANK].copy(), tag=2)
    with one, other:
        for _ in range(3):
            one.start()
            other.start()
            evaluate(build("ring", SIZE), first)
            evaluate(build("butterfly", SIZE), second)
            same(other.wait(), second[RANK])
            same(one.wait(), first[RANK])


def check_native_collectives_between_start_and_wait() -> None:
    for name in NAMES:
        values = vectors(4, 5003)
        with Plan(COMM, build(name, SIZE), values[RANK].copy()) as one:
            one.start()
            assert COMM.allreduce(RANK) == SIZE * (SIZE - 1) // 2
            one.test()
            COMM.Barrier()
            mine = np.full(2000, float(RANK))
            with Native(COMM, "mpi-nonblocking", mine) as native:
                native.start()
                evaluate(build(name, SIZE), values)
                same(one.wait(), values[RANK])
                assert (native.wait() == SIZE * (SIZE - 1) // 2).all()


def check_the_input_may_change_after_the_start() -> None:
    for name in ("tree", "butterfly", "ring"):
        for count in (50, 70_001):  # eager and rendezvous
            values = vectors(5, count)
            own, result = values[RANK].copy(), np.empty(count)
            with Plan(COMM, build(name, SIZE), own, result) as one:
                one.start()
                own[:] = np.nan
                one.wait()
            evaluate(build(name, SIZE), values)
            same(result, values[RANK])


def check_sparse_sums() -> None:
    """Each schedule, and gathering, with rows that nobody, some and all have."""
    schedules = [allgather(SIZE), *(build(name, SIZE) for name in NAMES)]
    for seed, schedule in enumerate(schedules):
        dense = [np.reshape(vector, (20, 3)) for vector in vectors(seed, 60)]
        for rank, matrix in enumerate(dense):
            matrix[np.arange(20) % (rank + 2) > 0] = 0
        parts = [of_dense(matrix) for matrix in dense]
        wanted = sparse_evaluate(schedule, parts, 20, mean=True)[0][RANK]
        sparse = SparsePlan(COMM, schedule, 20, mean=True)
        sparse.start(parts[RANK])
        found = sparse.wait()
        same(found.rows, wanted.rows)
        same(found.values, wanted.values)


def check_mismatches_are_one_error_on_every_rank() -> None:
    cases: dict[str, dict[str, Any]] = {
        "count": {"count": 9},
        "dtype": {"dtype": np.float32},
        "schedule": {"name": "ring"},
        "chunks": {"chunks": 2},
        "mean": {"mean": True},
    }
    for what, changed in cases.items() if SIZE > 1 else ():
        call: dict[str, Any] = {"count": 8, "dtype": np.float64, "name": "butterfly"}
        call |= changed if RANK == SIZE - 1 else {}
        data = np.ones(call.pop("count"), call.pop("dtype"))
        with Plan(COMM, build(call.pop("name"), SIZE), data, **call) as one:
            one.start()
            said = error_of(one.wait, Mismatch)
            assert f"different {what}" in said, f"rank {RANK}, {what}: {said}"
    check_two_in_flight_finished_the_other_way_round()  # the communicator is as good as before


def check_many_plans_leave_nothing_behind() -> None:
    for _ in range(400 if SIZE <= 2 else 40):
        with Plan(COMM, build("tree", SIZE), np.ones(3)) as one:
            one.start()
            assert one.wait()[0] == SIZE
    assert not plan._in_flight


def device_run(cuda_aware: bool, name: str, seed: int) -> bool:
    """Whether a plan on device memory gives evaluate's bits on every rank."""
    values = vectors(seed, 41)
    memory, result = device_double.array(values[RANK]), device_double.empty(41, float)
    with Plan(
        COMM, build(name, SIZE), memory, result, mean=True, cuda_aware=cuda_aware, chunks=2
    ) as one:
        right = True
        for _ in range(2):
            one.start()
            one.wait()
            wanted = [v.copy() for v in values]
            evaluate(build(name, SIZE), wanted, mean=True)
            right = right and result.host.tobytes() == wanted[RANK].tobytes()
            device_double.empty(1, float).now()
    return COMM.allreduce(right, MPI.LAND)


def check_device_memory() -> None:
    for name, cuda_aware in itertools.product(NAMES, (True, False)):
        assert device_run(cuda_aware, name, 7), (name, cuda_aware)


def check_the_device_double_sees_bytes_sent_too_early() -> None:
    fence = arrays.Device.fence
    setattr(arrays.Device, "fence", lambda self: None)  # noqa: B010 (mypy refuses the other)
    try:
        for cuda_aware in (True, False) if SIZE > 1 else ():
            assert not all(device_run(cuda_aware, "butterfly", seed) for seed in range(3))
    finally:
        setattr(arrays.Device, "fence", fence)  # noqa: B010
        device_double.empty(1, float).now()


def check_native_on_device_memory() -> None:
    for name, cuda_aware, out in itertools.product(NATIVE, (True, False), (True, False)):
        values = exact(np.dtype(float))
        memory = device_double.array(values[RANK])
        result = device_double.empty(23, float) if out else None
        if cuda_aware and name != "mpi" and "Open MPI" in library():
            make = partial(Native, COMM, name, memory, result, cuda_aware=True)
            assert "crashes Open MPI" in error_of(make, BufferRefused)
            continue
        with Native(COMM, name, memory, result, mean=True, cuda_aware=cuda_aware) as native:
            native.start()
            found = native.wait()
            same(found.host, total(values) / SIZE)
            if out:
                same(memory.now(), values[RANK])


if __name__ == "__main__":
    device_double.settings.aware = True  # MPI reads its memory, as an aware one does a device's
    checks = {name: check for name, check in globals().items() if name.startswith("check_")}
    for name in sys.argv[1:] or checks:
        began = MPI.Wtime()
        checks[name]()
        if RANK == 0:
            print(f"{name} {MPI.Wtime() - began:.2f} s", flush=True)
    if RANK == 0:
        print(f"{len(sys.argv[1:] or checks)} checks passed on {SIZE} ranks", flush=True)
