"""Narrow messages: rounding is a projection, all ranks end alike, both worlds agree."""

import itertools
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from test_laws import DIGITS, NETWORK
from test_plan import NAMES
from virtual_runs import virtual

from allreduce.algorithms import build
from allreduce.errors import AllreduceError, Mismatch, ScheduleError
from allreduce.evaluate import evaluate
from allreduce.plan import Plan
from allreduce.schedule import Schedule, bounds, transfers
from allreduce.testing import device
from allreduce.testing.loopback import World
from allreduce.verify import verify
from allreduce.wire import FORMATS, Coder, Wire, carried
from mpisgd.training.worker import Worker
from mpisgd.values.errors import NotFinite

EVERY = pytest.mark.parametrize("name", FORMATS)
FLOATS = st.floats(width=32, allow_subnormal=True)


def coder(name: str, count: int, segments: int = 3, raw: tuple[int, int] = (0, 0)) -> Coder:
    return Coder(Wire(name, *raw), bounds(count, segments).tolist(), np.dtype("float32"))


@settings(max_examples=100, deadline=None)
@example(np.array([3.3762393e38, 1.0], "f"), "int8")
@given(arrays(np.float32, st.integers(0, 40), elements=FLOATS), st.sampled_from(list(FORMATS)))
def test_to_round_twice_is_to_round_once(values, name):
    one = coder(name, values.size)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one.round(values)
        once = values.copy()
        one.round(values)
    assert values.tobytes() == once.tobytes()


@EVERY
def test_rounding_is_to_the_nearest_and_what_is_no_number_is_told(name):
    rng = np.random.default_rng(0)
    exact = (rng.standard_normal(999) * 10.0 ** rng.integers(-3, 3, 999)).astype("f")
    values = exact.copy()
    coder(name, 999, 1).round(values)
    largest = np.repeat([np.abs(exact[i : i + 256]).max() for i in range(0, 999, 256)], 256)[:999]
    half = {  # of the distance between two values of the format
        "float32": 0 * exact,
        "bfloat16": np.abs(exact) * 2.0**-8,
        "float16": np.maximum(np.abs(exact) * 2.0**-11, 2.0**-25),
        "int8": largest / 127,
    }
    assert (np.abs(values - exact) <= half[name]).all()
    for odd in (np.nan, np.inf, -np.inf):
        lost = np.array([1.0, odd], "f")
        coder(name, 2, 1).round(lost)
        assert not np.isfinite(lost[1])


def test_bfloat16_rounds_ties_to_even_as_hardware_does():
    ties = np.array([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 3.4e38], "f")
    coder("bfloat16", 4, 1).round(ties)
    assert ties.tolist() == [1.0, 1 + 2**-6, -1.0, np.inf]


@pytest.mark.parametrize("raw", [(0, 3), (18, 21), (0, 0), (0, 21)])
@EVERY
def test_a_message_is_what_the_vector_is_rounded_to_but_for_what_travels_as_it_is(name, raw):
    vector = np.random.default_rng(1).standard_normal(21).astype("f")
    one, before, edges = coder(name, 21, 4, raw), vector.copy(), bounds(21, 4).tolist()
    for low, high in itertools.combinations(edges, 2):
        octets = np.empty(one.octets(low, high), np.uint8)
        one.send(vector, low, high, octets)
        assert one.receive(octets, low, high).tobytes() == vector[low:high].tobytes()
    assert vector[slice(*raw)].tobytes() == before[slice(*raw)].tobytes()
    whole = before.copy()
    one.round(whole)
    assert whole.tobytes() == vector.tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_our_schedules_are_right_where_messages_are_rounded(name):
    for size in (*range(1, 20), 33):
        verify(build(name, size), rounded=True)


def test_a_schedule_whose_ranks_round_different_sums_is_found():
    """Rank 0 and 1 hold one sum; 0 sends it, and so rounds it, 1 adds to it as it is."""
    rounds = [
        transfers([0, 1, 2, 3], [1, 0, 3, 2]),
        transfers([0, 2, 3], [2, 0, 1]),
        transfers([1], [3], reduce=False),
    ]
    schedule = Schedule(4, 1, tuple(rounds))
    verify(schedule)
    with pytest.raises(ScheduleError, match="different orders"):
        verify(schedule, rounded=True)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@EVERY
def test_plans_have_the_bits_of_evaluate_and_all_ranks_the_same(name, size):
    rng, world = np.random.default_rng(size), World(size, seed=size)
    for tag, (algorithm, chunks, raw, mean) in enumerate(
        zip(NAMES, itertools.cycle((1, 3)), itertools.cycle(((0, 0), (0, 3), (26, 29))),
            itertools.cycle((True, False)), strict=False)
    ):  # fmt: skip
        schedule, wire = build(algorithm, size), Wire(name, *raw)
        mine = [rng.standard_normal(29).astype("f") for _ in range(size)]
        errors = [0.01 * rng.standard_normal(29).astype("f") for _ in range(size)]
        for error in errors:
            error[slice(*raw)] = 0
        wanted, kept = [v.copy() for v in mine], [e.copy() for e in errors]
        exact = np.sum([v[slice(*raw)] for v in mine], axis=0)
        evaluate(schedule, wanted, mean=mean, wire=wire, errors=kept)
        plans = [
            Plan(world.comm(r), schedule, v, tag=tag, chunks=chunks, mean=mean, wire=wire,
                 error=errors[r])
            for r, v in enumerate(mine)
        ]  # fmt: skip
        for plan in plans:
            plan.start()
        world.drive(plans)
        assert {v.tobytes() for v in mine} == {wanted[0].tobytes()} == {w.tobytes() for w in wanted}
        assert [e.tobytes() for e in errors] == [k.tobytes() for k in kept]
        assert np.allclose(wanted[0][slice(*raw)] * (size if mean else 1), exact, rtol=1e-6)
        for plan in plans:
            plan.close()
    world.check_quiet()


class InFlight:
    """The same plan on all ranks, with error feedback, and what it has to lead to."""

    def __init__(self, world, schedule, wire: Wire, tag: int, chunks: int, in_place: bool):
        self.schedule, self.wire, self.in_place = schedule, wire, in_place
        self.mine, self.errors, self.kept = (
            [np.zeros(29, "f") for _ in range(world.size)] for _ in range(3)
        )
        self.results = self.mine if in_place else [np.empty_like(v) for v in self.mine]
        self.plans = [
            Plan(world.comm(r), schedule, v, None if in_place else self.results[r], mean=True,
                 tag=tag, chunks=chunks, wire=wire, error=self.errors[r])
            for r, v in enumerate(self.mine)
        ]  # fmt: skip

    def begin(self, rng: np.random.Generator) -> None:
        for vector in self.mine:
            vector[:] = rng.standard_normal(29)
        self.wanted = [vector.copy() for vector in self.mine]
        evaluate(self.schedule, self.wanted, mean=True, wire=self.wire, errors=self.kept)
        for vector, plan in zip(self.mine, self.plans, strict=True):
            plan.start()
            if not self.in_place:
                vector[:] = np.nan

    def check(self) -> None:
        assert [v.tobytes() for v in self.results] == [v.tobytes() for v in self.wanted]
        assert [e.tobytes() for e in self.errors] == [k.tobytes() for k in self.kept]


def fly(world: World, groups: Sequence[Any], turns: Iterable[Any]) -> None:
    """The plans of all groups at once, turn after turn; what comes of each is checked."""
    for turn in turns:
        for group in groups:
            group.begin(turn)
        world.drive(plan for group in groups for plan in group.plans)
        for group in groups:
            group.check()
    for group in groups:
        for plan in group.plans:
            plan.close()
    world.check_quiet()


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_plans_in_flight_together_and_started_again_share_nothing(size):
    """Of all formats at once, sends that take their bytes late and early, inputs changed behind
    the start: what is read too early, or overwritten before it has gone, changes the bits."""
    for number, name in enumerate(NAMES):
        rng = np.random.default_rng(size)
        world = World(size, seed=10 * size + number, eager=(0.0, 0.5, 1.0)[(size + number) % 3])
        choices = zip(FORMATS, itertools.product((1, 3), (True, False)), strict=True)
        groups = [
            InFlight(world, build(name, size), Wire(wire, 26, 29), tag, chunks, in_place)
            for tag, (wire, (chunks, in_place)) in enumerate(choices)
        ]
        fly(world, groups, (rng, rng))


def test_ranks_that_send_in_different_formats_are_told_and_devices_refused():
    world = World(2)
    plans = [
        Plan(world.comm(rank), build("ring", 2), np.ones(3, "f"), wire=wire)
        for rank, wire in enumerate([None, Wire("bfloat16")])
    ]
    for plan in plans:
        plan.start()
    with pytest.raises(Mismatch, match=r"wire \(0 to 2\)"):
        world.drive(plans)
    with pytest.raises(AllreduceError, match="host's arrays only"):
        Plan(World(2).comm(0), build("ring", 2), device.zeros(3, "f"), wire=Wire("float16"))
    with pytest.raises(AllreduceError, match="no format 'int4'"):
        Plan(World(2).comm(0), build("ring", 2), np.ones(3, "f"), wire=Wire("int4"))


def test_what_travels_is_what_is_priced():
    """And what is added is of the vector's own type."""
    assert carried(None, 1000, 4)[:3] == (4000, 4, 1)
    assert carried(Wire("float32"), 1000, 4)[:3] == (4000, 4, 1)
    assert carried(Wire("bfloat16"), 1000, 4)[:3] == (2000, 2, 2)
    assert carried(Wire("float16"), 1000, 8)[:3] == (2000, 2, 4)
    assert carried(Wire("int8"), 1000, 4)[:3] == (1000 + 4 * 2, 1, 4000 / 1008)
    assert carried(Wire("int8"), 0, 4)[0] == 0
    assert carried(Wire("float32"), 1000, 4)[3:] == (0, 0, 0)  # nothing is coded
    assert carried(Wire("float32"), 1000, 8)[3:] == (2, 2, 8000)
    single = Coder(Wire("int8"), [0, 1000], np.dtype("f"))
    assert single.octets(0, 1000) == carried(Wire("int8"), 1000, 4)[0]


# In training.


def run(name: str | None = None, ranks: int = 3, **options: Any) -> np.ndarray:
    experiment = replace(NETWORK, dtype="float32", wire=name, momentum=0.0)
    return virtual(experiment, ranks, dataset=DIGITS, **options).parameters


AVERAGES: list[dict[str, Any]] = [
    {},
    {"algorithm": "minibatch-overlap", "bucket_bytes": 1},
    {"algorithm": "local", "tau": 3},
    {"algorithm": "dasgd", "tau": 3, "delay": 2},
]


@pytest.mark.parametrize("options", AVERAGES)
def test_a_wire_of_the_same_type_changes_no_bit_and_narrow_ones_little(options):
    plain = run(**options)
    assert run("float32", **options).tobytes() == plain.tobytes()
    for name, most in (("bfloat16", 0.05), ("float16", 0.01), ("int8", 0.2)):
        narrow = run(name, **options)
        assert 0 < np.abs(narrow - plain).max() < most
        if options.get("algorithm") != "dasgd":
            apart = np.ptp(narrow, axis=0).max()  # the last step of `local` is each rank's own
            assert (apart > 0) == (options.get("algorithm") == "local")


def test_sums_take_a_virtual_run_as_long_with_narrow_messages(tmp_path):
    path = tmp_path / "sums.toml"
    path.write_text('name = "sums"\nsum_s_per_B = 1e-3\n')  # and nothing else takes time

    def ends(name: str | None) -> float:
        experiment = replace(NETWORK, dtype="float32", wire=name, network=str(path))
        finished = virtual(experiment, 4, dataset=DIGITS)
        return sum(row["wait_s"] for row in finished.rows[0].steps.values())

    assert ends("bfloat16") == pytest.approx(ends(None), rel=1e-9)
    assert ends("int8") == pytest.approx(ends(None), rel=1e-2)
    assert ends(None) > 1


@EVERY
def test_signals_are_not_rounded_however_large_the_gradients_are(name):
    """All ranks hear of a stop, and of what is not finite, beside values of 10,000."""

    def large(worker: Worker) -> Any:
        average = worker.mean(worker.gradient, in_place=True)
        for k in worker.steps():
            worker.gradient.flat[:] = 1e4
            if worker.rank == 2 and k == 4:
                worker._note(False)
            average.start()
            yield from average.wait()
            yield from worker.end_step()

    with pytest.raises(NotFinite, match="on rank 2 at step 4"):
        run(name, generator=large)


def constant(worker: Worker) -> Any:
    """Gradients of which int8 sees the largest alone. On 4 ranks their sums need no rounding."""
    average = worker.mean(worker.gradient, in_place=True)
    for _ in worker.steps():
        worker.gradient.flat[:] = 1e-3
        worker.gradient.flat[::7] = 1.0
        average.start()
        worker.update((yield from average.wait()))
        yield from worker.end_step()


def test_what_rounding_leaves_out_comes_with_error_feedback():
    still: dict[str, Any] = {"rate": 1.0, "steps": 40, "generator": constant, "ranks": 4}
    begun, plain = run(rate=0.0, ranks=4), run(**still)
    lost, fed = run("int8", **still), run("int8", error_feedback=True, **still)
    small = np.arange(begun.shape[1]) % 7 > 0
    assert np.array_equal(lost[:, small], begun[:, small])
    assert np.abs(fed - plain).max() <= 2**-7 + 1e-5  # a unit, whatever the number of steps


def test_half_the_bytes_take_half_the_time_on_a_network_of_bytes(tmp_path):
    network = tmp_path / "bytes.toml"
    network.write_text(
        "latency_s = 0\noverhead_s = 0\nbandwidth_Bps = 1e6\nsum_s_per_B = 0\nlook_s = 0\n"
    )
    waits = {}
    for name in (None, "bfloat16", "int8"):
        experiment = replace(NETWORK, dtype="float32", wire=name, network=str(network))
        done = virtual(experiment, 4, dataset=DIGITS)
        waits[name] = sum(row["wait_s"] for row in done.rows[0].steps.values())
    assert waits["bfloat16"] == pytest.approx(waits[None] / 2, rel=1e-9)
    assert waits["int8"] == pytest.approx(waits[None] / 4, rel=0.02)
