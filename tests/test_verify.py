"""`verify` passes every algorithm and no fault: 1,700 are planted, and played to be sure."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from allreduce.algorithms import ALGORITHMS, build, hierarchical
from allreduce.errors import ScheduleError
from allreduce.evaluate import evaluate
from allreduce.schedule import Schedule, Step, beside, embed, place, transfers
from allreduce.testing.loopback import LoopbackError, World
from allreduce.verify import verify, verify_programs

SIZES = (*range(1, 65), 96, 127, 128, 129, 255, 256, 257)
COLUMNS = 16  # numbers a segment, of each kind: enough that any other order shows
STRICT = ("hazard", "share a tag", " takes ", "counts a contribution twice")
"""Rules that refuse also what does no harm by luck: a later message hides it, or no schedule of
time that was tried brings it out."""

Programs = list[list[Step]]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_an_allreduce(name):
    for size in SIZES:
        verify(build(name, size))


@pytest.mark.parametrize("inner", ALGORITHMS)
def test_hierarchical_with_any_nodes_and_any_inner_algorithm(inner):
    rng = random.Random(inner)
    for size in (1, 2, 3, 5, 8, 13, 16, 21):
        nodes = [rng.choice((9, 3, 70, 1, 0)) for _ in range(size)]
        for where in (nodes, [0] * size, list(range(size)), None):
            if where is None or inner != "hierarchical":
                verify(hierarchical(size, where, inner))


# --- The oracle: what really happens, on data, in a loopback world ---------------------------


class Player:
    """Runs one rank's steps as they stand, with its requests started in any order."""

    def __init__(self, world: World, rank: int, steps: list[Step], values: np.ndarray):
        self.world, self.comm = world, world.comm(rank)
        self.steps, self.values = iter(steps), values
        self.active: list = []
        self.sums: list[tuple[np.ndarray, np.ndarray]] = []
        self.next()

    def next(self) -> bool:
        """Begin the next step, if there is one."""
        step = next(self.steps, None)
        if step is None:
            return False
        if any(not 0 <= m.low < m.high <= len(self.values) for m in step.sends + step.receives):
            raise LoopbackError("overrun")  # slices are clipped, memory is not
        for m in step.receives:
            landing = where = self.values[m.low : m.high]
            if m.reduce:
                landing = np.empty_like(where)
                self.sums.append((where, landing))
            self.active.append(self.comm.Recv_init(landing, m.peer, m.tag))
        for m in step.sends:
            self.active.append(self.comm.Send_init(self.values[m.low : m.high], m.peer, m.tag))
        self.world.random.shuffle(self.active)
        for request in self.active:
            request.Start()
        return True

    def test(self) -> bool:
        for request in list(self.active):
            if request.Test():
                request.Free()
                self.active.remove(request)
        if self.active:
            return False
        for where, landing in self.sums:
            np.add(where, landing, out=where)
        self.sums.clear()
        return not self.next()


def inputs(size: int, segments: int) -> np.ndarray:
    """[rank, segment, column]: exact numbers, then numbers whose sum depends on the order."""
    rng = np.random.default_rng(size)
    exact = rng.integers(0, 2**40, (size, segments, COLUMNS)).astype(float)
    rough = 10.0 ** rng.uniform(-2, 2, (size, segments, COLUMNS))
    return np.concatenate([exact, rough], axis=2)


def wrong(values: np.ndarray, before: np.ndarray) -> bool:
    """Not the sums, or not the same bits everywhere."""
    total = before[..., :COLUMNS].sum(axis=0)
    return bool((values[..., :COLUMNS] != total).any() or (values != values[0]).any())


def fails(programs: Programs, segments: int, seeds: range) -> bool:
    """Whether the programs deadlock, leave messages behind or end wrong, in any of the worlds."""
    before = inputs(len(programs), segments)
    for seed in seeds:
        values = before.copy()
        world = World(len(programs), seed, eager=(0.0, 0.5, 1.0)[seed % 3])
        try:
            world.drive([Player(world, r, p, values[r]) for r, p in enumerate(programs)])
            world.check_quiet()
        except (LoopbackError, ValueError):
            return True
        if wrong(values, before):
            return True
    return False


def refused(programs: Programs, segments: int) -> str:
    """What `verify` says, nothing if it agrees."""
    try:
        verify_programs(programs, segments)
    except ScheduleError as fault:
        return str(fault)
    return ""


def judge(faults: Iterator[tuple[str, Programs, int]]) -> Counter:
    """Real faults by kind. Every one must be refused, and what is no fault only by strict rules."""
    real: Counter[str] = Counter()
    harmless: Counter[str] = Counter()
    strict: Counter[tuple[str, str]] = Counter()
    for kind, programs, segments in faults:
        said = refused(programs, segments)
        if fails(programs, segments, range(3) if said else range(12)):
            assert said, f"{kind}: a real fault that verify accepts: {programs}"
            real[kind] += 1
        elif said:
            strict[kind, next((rule for rule in STRICT if rule in said), said)] += 1
        else:
            harmless[kind] += 1
    print("real", dict(real), "harmless", dict(harmless), "strict", dict(strict))
    assert {rule for _, rule in strict} <= set(STRICT)
    return real


SOUND = [
    *(
        build(name, size)
        for name in ALGORITHMS
        for size in (2, 3, 5, 6, 8)
        if name != "double-tree"
    ),
    *(build("double-tree", size) for size in (3, 4)),
    hierarchical(6, [0, 1, 0, 1, 2, 2], "halving-doubling"),
    beside(place(build("butterfly", 4), 3, 0), place(build("butterfly", 4), 3, 2))
    + place(build("tree", 4), 3, 1),
]


def test_the_oracle_finds_no_fault_where_there_is_none():
    for schedule in SOUND:
        assert not fails(schedule.programs(), schedule.segments, range(4)), schedule.name


# --- Faults in schedules: both ends of a transfer know of them -------------------------------

Rows = list[list[list]]


def drop(rows: Rows, k: int, i: int, rng: random.Random, shape: tuple[int, int]) -> None:
    del rows[k][i]


def double(rows: Rows, k: int, i: int, rng: random.Random, shape: tuple[int, int]) -> None:
    rows[rng.randrange(len(rows))].append(list(rows[k][i]))


def other_segment(rows: Rows, k: int, i: int, rng: random.Random, shape: tuple[int, int]) -> None:
    width = rows[k][i][3] - rows[k][i][2]
    low = rng.randrange(shape[1] - width + 1)
    rows[k][i][2:4] = low, low + width


def other_length(rows: Rows, k: int, i: int, rng: random.Random, shape: tuple[int, int]) -> None:
    low = rows[k][i][2]
    rows[k][i][3] = rng.randrange(low + 1, shape[1] + 1)


def other_source(rows: Rows, k: int, i: int, rng: random.Random, shape: tuple[int, int]) -> None:
    rows[k][i][0] = rng.choice([r for r in range(shape[0]) if r != rows[k][i][1]])


def other_target(rows: Rows, k: int, i: int, rng: random.Random, shape: tuple[int, int]) -> None:
    rows[k][i][1] = rng.choice([r for r in range(shape[0]) if r != rows[k][i][0]])


def other_round(rows: Rows, k: int, i: int, rng: random.Random, shape: tuple[int, int]) -> None:
    row = rows[k].pop(i)
    rows[rng.randrange(len(rows))].append(row)


def other_action(rows: Rows, k: int, i: int, rng: random.Random, shape: tuple[int, int]) -> None:
    rows[k][i][4] = not rows[k][i][4]


def turned(rows: Rows, k: int, i: int, rng: random.Random, shape: tuple[int, int]) -> None:
    rows[k][i][:2] = rows[k][i][1::-1]


def merged_rounds(rows: Rows, k: int, i: int, rng: random.Random, shape: tuple[int, int]) -> None:
    if k + 1 < len(rows):
        rows[k] += rows.pop(k + 1)


IN_SCHEDULES: tuple[Callable, ...] = (
    *(drop, double, other_segment, other_length, other_source, other_target),
    *(other_round, other_action, turned, merged_rounds),
)


def as_schedule(rows: Rows, size: int, segments: int) -> Schedule:
    rounds = [transfers(*zip(*part, strict=True)) for part in rows if part]
    return Schedule(size, segments, tuple(rounds))


def faulty_schedules(repetitions: int) -> Iterator[tuple[str, Schedule]]:
    rng = random.Random(1)
    for schedule in SOUND:
        for fault in IN_SCHEDULES * repetitions:
            rows = [[list(row) for row in part.tolist()] for part in schedule.rounds]
            k = rng.randrange(len(rows))
            fault(rows, k, rng.randrange(len(rows[k])), rng, (schedule.size, schedule.segments))
            yield fault.__name__, as_schedule(rows, schedule.size, schedule.segments)


def test_faults_in_schedules_are_found():
    found = list(faulty_schedules(3))
    real = judge((kind, s.programs(), s.segments) for kind, s in found)
    assert set(real) == {fault.__name__ for fault in IN_SCHEDULES}
    assert real.total() >= 500
    assert min(real.values()) >= 10


def test_evaluate_and_verify_agree_on_faults():
    """Round by round, on data: an oracle that shares nothing with the loopback world."""
    faults = 0
    for kind, schedule in faulty_schedules(2):
        before = inputs(schedule.size, schedule.segments)
        values = before.copy()
        flat = values.reshape(schedule.size, -1)
        evaluate(schedule, list(flat))
        if wrong(values, before):
            assert refused(schedule.programs(), schedule.segments), kind
            faults += 1
    assert faults >= 300


def dissemination(size: int) -> Schedule:
    """Each contribution exactly once on every rank, but ranks sum in different orders."""
    rank = np.arange(size)
    rounds = [transfers(rank, (rank + (1 << k)) % size) for k in range(size.bit_length() - 1)]
    return Schedule(size, 1, tuple(rounds))


def test_ranks_that_sum_in_different_orders_are_found():
    rng = random.Random(3)

    def faults() -> Iterator[tuple[str, Programs, int]]:
        for _ in range(60):
            size, segments = rng.choice((4, 8, 16)), rng.randint(1, 3)
            odd = embed(dissemination(size), rng.sample(range(size), size), size)
            bad = rng.randrange(segments)
            parts = [odd if s == bad else build("butterfly", size) for s in range(segments)]
            whole = beside(*(place(part, segments, s) for s, part in enumerate(parts)))
            yield "order", whole.programs(), segments
            assert "different orders" in refused(whole.programs(), segments)

    assert judge(faults())["order"] == 60


# --- Faults in programs: only one end knows of them, or time is what is wrong -----------------


def edit(programs: Programs, rank: int, number: int, **changes: Any) -> None:
    programs[rank][number] = programs[rank][number]._replace(**changes)


def one_end(programs: Programs, rng: random.Random) -> tuple[int, int, str, int]:
    """A random rank, step, end and message."""
    rank = rng.choice([r for r, steps in enumerate(programs) if steps])
    number = rng.randrange(len(programs[rank]))
    ends = [e for e in ("sends", "receives") if getattr(programs[rank][number], e)]
    end = rng.choice(ends)
    return rank, number, end, rng.randrange(len(getattr(programs[rank][number], end)))


def change_one(programs: Programs, rng: random.Random, change: Callable) -> None:
    rank, number, end, i = one_end(programs, rng)
    messages = list(getattr(programs[rank][number], end))
    messages[i : i + 1] = change(messages[i])
    edit(programs, rank, number, **{end: tuple(messages)})


def lost_end(programs: Programs, rng: random.Random, segments: int) -> None:
    change_one(programs, rng, lambda m: [])


def doubled_end(programs: Programs, rng: random.Random, segments: int) -> None:
    change_one(programs, rng, lambda m: [m, m._replace(tag=m.tag + rng.randint(0, 1))])


def wrong_peer(programs: Programs, rng: random.Random, segments: int) -> None:
    change_one(programs, rng, lambda m: [m._replace(peer=rng.randrange(len(programs)))])


def wrong_tag(programs: Programs, rng: random.Random, segments: int) -> None:
    change_one(programs, rng, lambda m: [m._replace(tag=m.tag + 1)])


def wrong_span(programs: Programs, rng: random.Random, segments: int) -> None:
    shift = rng.choice((-1, 1))
    change_one(programs, rng, lambda m: [m._replace(low=m.low + shift, high=m.high + shift)])


def longer_span(programs: Programs, rng: random.Random, segments: int) -> None:
    change_one(programs, rng, lambda m: [m._replace(high=m.high + 1)])


def wrong_action(programs: Programs, rng: random.Random, segments: int) -> None:
    change_one(programs, rng, lambda m: [m._replace(reduce=not m.reduce)])


def swapped_steps(programs: Programs, rng: random.Random, segments: int) -> None:
    rank = rng.choice([r for r, steps in enumerate(programs) if steps])
    i, j = (rng.randrange(len(programs[rank])) for _ in range(2))
    steps = programs[rank]
    steps[i], steps[j] = steps[j], steps[i]


def merged_steps(programs: Programs, rng: random.Random, segments: int) -> None:
    rank, number, _, _ = one_end(programs, rng)
    steps = programs[rank]
    if number + 1 < len(steps):
        one, other = steps[number], steps.pop(number + 1)
        steps[number] = Step(one.round, one.sends + other.sends, one.receives + other.receives)


def everybody_sends_first(programs: Programs, rng: random.Random, segments: int) -> None:
    """Right as long as all messages are eager: a deadlock under rendezvous."""
    for steps in programs:
        steps[:] = [
            half
            for step in steps
            for half in (step._replace(receives=()), step._replace(sends=()))
            if half.sends or half.receives
        ]


def shared_tags(programs: Programs, rng: random.Random, segments: int) -> None:
    """Both ends use one tag only: wrong as soon as requests start in another order."""
    for steps in programs:
        steps[:] = [
            step._replace(
                sends=tuple(m._replace(tag=0) for m in step.sends),
                receives=tuple(m._replace(tag=0) for m in step.receives),
            )
            for step in steps
        ]


IN_PROGRAMS: tuple[Callable, ...] = (
    *(lost_end, doubled_end, wrong_peer, wrong_tag, wrong_span, longer_span, wrong_action),
    *(swapped_steps, merged_steps, everybody_sends_first, shared_tags),
)


def faulty_programs(repetitions: int) -> Iterator[tuple[str, Programs, int]]:
    rng = random.Random(2)
    for schedule in SOUND:
        for fault in IN_PROGRAMS * repetitions:
            programs = schedule.programs()
            fault(programs, rng, schedule.segments)
            yield fault.__name__, programs, schedule.segments


def test_faults_in_programs_are_found():
    real = judge(faulty_programs(3))
    assert set(real) == {fault.__name__ for fault in IN_PROGRAMS}
    assert real.total() >= 600


def test_a_deadlock_says_who_waits():
    programs = build("butterfly", 2).programs()
    programs[1].clear()
    with pytest.raises(ScheduleError, match=r"deadlock: 1 ranks never finish.*rank 0 .*rank 1"):
        verify_programs(programs, 1)
    with pytest.raises(ScheduleError, match="rank 0 misses the contribution of rank 1"):
        verify(Schedule(2, 1, ()))
