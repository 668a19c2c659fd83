"""Plans of all ranks in one process, on a network that does its worst within MPI's rules."""

import functools
import gc
import itertools
import random
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from allreduce import plan
from allreduce.algorithms import ALGORITHMS, build
from allreduce.arrays import DTYPES
from allreduce.errors import AllreduceError, BufferRefused, Mismatch, ScheduleError, Stalled
from allreduce.evaluate import evaluate
from allreduce.plan import Plan
from allreduce.testing import device as device_double
from allreduce.testing.loopback import World

NAMES = (*ALGORITHMS, "hierarchical:ring")
OPTIONS = [
    {"in_place": in_place, "mean": mean, "chunks": chunks}
    for in_place, mean, chunks in itertools.product((True, False), (False, True), (1, 3))
]


built = functools.cache(build)


class Reduction:
    """One all-reduce on all ranks of a world, and what it should give."""

    def __init__(self, world: World, name: str, vectors, *, in_place=True, **options):
        self.schedule = built(name, world.size)
        self.vectors, self.mean = vectors, options.get("mean", False)
        self.results = vectors if in_place else [np.empty_like(v) for v in vectors]
        self.plans = [
            Plan(world.comm(r), self.schedule, v, None if in_place else self.results[r], **options)
            for r, v in enumerate(vectors)
        ]

    def expect(self) -> None:
        """Remember what the next start must lead to."""
        self.wanted = [vector.copy() for vector in self.vectors]
        evaluate(self.schedule, self.wanted, mean=self.mean)

    def check(self) -> None:
        for result, wanted in zip(self.results, self.wanted, strict=True):
            assert result.tobytes() == wanted.tobytes(), self.schedule.name


def counts(size: int) -> list[int]:
    return sorted({0, 1, 2, size - 1, size, size + 1, 101})


def vectors(rng: np.random.Generator, size: int, count: int) -> list[np.ndarray]:
    return [rng.standard_normal(count) * 10.0 ** rng.integers(-3, 3, count) for _ in range(size)]


@pytest.mark.parametrize("size", range(1, 18))
def test_all_algorithms_and_counts_in_flight_together(size):
    """Started in one order, finished in another, three times, and the bits are evaluate's."""
    options = itertools.cycle(OPTIONS)
    for _ in range(3 * size):
        next(options)
    for number, name in enumerate(NAMES):
        rng = np.random.default_rng(size)
        world = World(size, seed=size * 100 + number, eager=(0.0, 0.5, 1.0)[(size + number) % 3])
        reductions = [
            Reduction(world, name, vectors(rng, size, count), tag=tag, **next(options))
            for tag, count in enumerate(counts(size))
        ]
        everything = [plan for reduction in reductions for plan in reduction.plans]
        for _ in range(3 if number == size % len(NAMES) else 1):
            for reduction in reductions:
                reduction.expect()
            world.random.shuffle(everything)
            for one in everything:
                one.start()
            world.drive(everything)
            for reduction in reductions:
                reduction.check()
        for one in everything:
            one.close()
        world.check_quiet()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_every_option_of_every_algorithm(name, options):
    for size, seed in itertools.product((2, 5, 6), range(4)):
        world = World(size, seed)
        reduction = Reduction(world, name, vectors(np.random.default_rng(seed), size, 7), **options)
        for _ in range(2):
            reduction.expect()
            run(world, reduction.plans)
            reduction.check()
        close(world, reduction.plans)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype):
    world = World(5)
    values = [((np.arange(23) * 3 + rank) % 5).astype(dtype).reshape(23, 1) for rank in range(5)]
    total = np.sum(values, axis=0, dtype=dtype)
    plans = [Plan(world.comm(r), build("halving-doubling", 5), v) for r, v in enumerate(values)]
    run(world, plans)
    assert all((value == total).all() for value in values)
    assert plans[0].result is values[0]
    close(world, plans)


def run(world: World, plans: list[Plan]) -> None:
    for one in plans:
        one.start()
    world.drive(plans)


def close(world: World, plans: list[Plan]) -> None:
    for one in plans:
        one.close()
    world.check_quiet()


@pytest.mark.parametrize("name", NAMES)
def test_out_of_place_the_input_may_change_after_the_start_and_is_left_alone(name):
    world = World(6, eager=0.0)
    given = [np.arange(9.0) + rank for rank in range(6)]
    results = [np.full(9, np.nan) for _ in given]
    plans = [Plan(world.comm(r), build(name, 6), v, results[r]) for r, v in enumerate(given)]
    total = np.sum(given, axis=0)
    kept = [v.copy() for v in given]
    run(world, plans)
    assert all((v == k).all() for v, k in zip(given, kept, strict=True))
    assert all((result == total).all() for result in results)
    for one, v in zip(plans, given, strict=True):
        one.start()
        v[:] = np.nan
    world.drive(plans)
    assert all((result == total).all() for result in results)
    close(world, plans)


def test_take_copies_and_post_sends():
    world = World(2)
    given, results = [np.ones(3), np.ones(3)], [np.zeros(3), np.zeros(3)]
    plans = [Plan(world.comm(r), build("ring", 2), given[r], results[r]) for r in range(2)]
    for one, v in zip(plans, given, strict=True):
        one.take()
        assert world.moves == 0
        v[:] = 9
    for one in plans:
        one.post()
    world.drive(plans)
    assert results[0].tolist() == results[1].tolist() == [2, 2, 2]
    close(world, plans)


MISMATCHES: dict[str, dict[str, Any]] = {
    "count": {"count": 9},
    "dtype": {"dtype": np.float32},
    "schedule": {"name": "ring"},
    "chunks": {"chunks": 2},
    "mean": {"mean": True},
}


def mismatch(one: Plan) -> str:
    """What a look at the plan says of a mismatch."""
    try:
        assert not one.test()
    except Mismatch as error:
        return str(error)
    return ""


@pytest.mark.parametrize("what", MISMATCHES)
@pytest.mark.parametrize("size", [2, 3, 7, 8])
def test_a_mismatch_is_one_error_on_every_rank(what, size):
    for odd in {0, size - 1}:
        world = World(size, seed=odd)
        plans = []
        for rank in range(size):
            changed = MISMATCHES[what] if rank == odd else {}
            call: dict[str, Any] = {"count": 8, "dtype": np.float64, "name": "butterfly"} | changed
            data = np.ones(call.pop("count"), call.pop("dtype"))
            plans.append(Plan(world.comm(rank), build(call.pop("name"), size), data, **call))
        for one in plans:
            one.start()
        refused: set[int] = set()
        looks = 0
        while len(refused) < size:
            looks += 1
            assert looks < 10_000
            one = world.random.choice(plans)
            if said := mismatch(one):
                assert f"with different {what}" in said
                assert f"(rank {one.rank}: " in said
                refused.add(one.rank)
        with pytest.raises(Mismatch):  # again, however often it is asked
            plans[0].wait()
        close(world, plans)


def test_a_mismatch_names_both():
    world = World(2)
    values = [np.ones(4, np.float32), np.ones(4, np.int64)]
    plans = [Plan(world.comm(r), build("tree", 2), v) for r, v in enumerate(values)]
    for one in plans:
        one.start()
    with pytest.raises(Mismatch, match=r"different dtype \(float32 and int64\).*4 of "):
        world.drive(plans)
    for one in plans:
        one.close()


def test_ranks_compare_only_once():
    world = World(4)
    plans = [Plan(world.comm(r), build("butterfly", 4), np.ones(2)) for r in range(4)]
    run(world, plans)
    first = world.moves
    run(world, plans)
    assert world.moves - first < first
    close(world, plans)


def test_arguments_that_make_no_sense_are_refused():
    comm, ring = World(2).comm(0), build("ring", 2)
    x = np.zeros(4)
    for options in ({"chunks": 0}, {"tag": -1}, {"deadline": 0}, {"deadline": float("nan")}):
        with pytest.raises(AllreduceError, match="too small"):
            Plan(comm, ring, x, **options)
    with pytest.raises(ScheduleError, match="ring is for 3 ranks, not 2"):
        Plan(comm, build("ring", 3), x)
    with pytest.raises(AllreduceError, match="source holds 4 of float64, result 5 of float64"):
        Plan(comm, ring, x, np.zeros(5))
    with pytest.raises(AllreduceError, match="result 4 of float32"):
        Plan(comm, ring, x, np.zeros(4, np.float32))
    with pytest.raises(AllreduceError, match="the mean of int32 is no int32"):
        Plan(comm, ring, np.zeros(4, np.int32), mean=True)
    with pytest.raises(BufferRefused, match="not contiguous"):
        Plan(comm, ring, x, np.zeros(8)[::2])
    with pytest.raises(BufferRefused, match="read-only"):
        Plan(comm, ring, np.frombuffer(b"12345678", np.float64))
    with pytest.raises(AllreduceError, match="source is ndarray, result ndarray"):
        Plan(comm, ring, x, device_double.empty(4, x.dtype))
    base = np.zeros(6)
    with pytest.raises(AllreduceError, match="overlap"):
        Plan(comm, ring, base[:4], base[2:])
    with pytest.raises(AllreduceError, match="at most 256"):
        Plan(comm, ring, x, chunks=257)
    assert comm.world.live == 0  # nothing was left behind by those that failed


def test_a_result_that_is_the_source_means_in_place():
    world = World(3)
    values = [np.ones(4) for _ in range(3)]
    plans = [Plan(world.comm(r), build("ring", 3), v, v) for r, v in enumerate(values)]
    run(world, plans)
    assert all((value == 3).all() for value in values)
    close(world, plans)


def test_starting_twice_and_starting_after_the_end_are_errors():
    world = World(2)
    plans = [Plan(world.comm(r), build("tree", 2), np.ones(2)) for r in range(2)]
    plans[0].start()
    with pytest.raises(AllreduceError, match="cannot start: it is still in flight"):
        plans[0].start()
    plans[1].start()
    world.drive(plans)
    close(world, plans)
    close(world, plans)  # closing twice is no error
    with pytest.raises(AllreduceError, match="cannot start: it is closed"):
        plans[0].start()


@pytest.mark.parametrize("eager", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", NAMES)
def test_closing_in_flight_gives_all_requests_back(name, eager):
    for seed in range(12):
        world = World(4, seed, eager=eager)
        plans = [Plan(world.comm(r), build(name, 4), np.ones(9), chunks=2) for r in range(4)]
        for one in plans:
            one.start()
        for _ in range(seed * 3):
            world.random.choice(plans).test()
        late = [one for one in plans if not one.test()]
        for one in plans:
            one.close()
        assert world.live == 0
        assert not plan._in_flight.intersection(plans)
        for one in late:
            with pytest.raises(AllreduceError, match="closed while it was in flight"):
                one.test()


def test_a_plan_that_is_dropped_in_flight_keeps_its_buffers():
    world = World(2, eager=0.0)
    values, others = [np.ones(3), np.ones(3)], set(plan._in_flight)  # those of other tests
    for rank, value in enumerate(values):
        Plan(world.comm(rank), build("ring", 2), value).start()
    gc.collect()
    dropped = list(plan._in_flight - others)
    world.drive(dropped)
    assert values[0].tolist() == values[1].tolist() == [2, 2, 2]
    close(world, dropped)


def test_ten_thousand_plans_leave_nothing_behind():
    world = World(2)
    schedule = build("butterfly", 2)
    comms = [world.comm(rank) for rank in range(2)]
    for _ in range(5000):
        with Plan(comms[0], schedule, np.ones(2)), Plan(comms[1], schedule, np.ones(2)):
            most = world.live
    assert world.live == 0
    assert most == 2 * (2 + 2)
    world.check_quiet()


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("name", NAMES)
def test_a_stall_names_rank_peer_and_round(name, size, monkeypatch):
    """The last rank takes part once, then never again: somebody waits for it."""
    clock = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: next(clock) * 0.01)
    world = World(size)
    plans = [Plan(world.comm(r), build(name, size), np.ones(8), deadline=0.2) for r in range(size)]
    run(world, plans)
    absent = plans.pop()
    for one in plans:
        one.start()
    said: dict[int, str] = {}
    for _ in range(3000):
        for one in plans:
            try:
                one.test()
            except Stalled as error:
                said.setdefault(one.rank, str(error))
    assert said
    assert any(f"for rank {size - 1} in all-reduce {name}" in text for text in said.values())
    for rank, text in said.items():
        assert text.startswith(f"rank {rank} has waited 0.2")
        assert "(round " in text
        assert " B" in text
    absent.start()  # late, but not too late
    world.drive([*plans, absent])
    assert absent.result.tolist() == [size * size] * 8
    close(world, [*plans, absent])


def test_an_idle_test_touches_nothing():
    world = World(2)
    plans = [Plan(world.comm(r), build("tree", 2), np.ones(2)) for r in range(2)]
    assert all(one.test() for one in plans)
    assert world.moves == 0
    assert [one.wait().tolist() for one in plans] == [[1, 1], [1, 1]]
    close(world, plans)


def reached(looks: Iterator[int], needed: int) -> bool:
    return next(looks) >= needed


def test_waiting_yields_then_sleeps():
    """`wait_until` comes back whether the answer comes at once, later, or much later."""
    for needed in (1, plan.SPINS + 5, plan.SPINS + plan.YIELDS + 3):
        looks = itertools.count(1)
        plan.wait_until(partial(reached, looks, needed))
        assert next(looks) == needed + 1


def test_random_programs_of_starts_and_looks():
    """Ranks that start their plans at any time, in the same order, as training does."""
    rng = random.Random(5)
    for seed in range(15):
        size = rng.randint(2, 6)
        world = World(size, seed)
        reductions = [
            Reduction(world, name, vectors(np.random.default_rng(tag), size, 5 + tag), tag=tag)
            for tag, name in enumerate(rng.sample(NAMES, 3))
        ]
        for reduction in reductions:
            reduction.expect()
        queue = [[reduction.plans[rank] for reduction in reductions] for rank in range(size)]
        while any(queue):
            rank = rng.choice([r for r in range(size) if queue[r]])
            queue[rank].pop(0).start()
            for _ in range(rng.randrange(4)):
                world.random.choice(world.random.choice(reductions).plans).test()
        everything = [one for reduction in reductions for one in reduction.plans]
        world.drive(everything)
        for reduction in reductions:
            reduction.check()
        close(world, everything)
