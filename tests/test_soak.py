"""Nothing grows: 10,000 steps of each averaging algorithm, 10,000 plans.

On the virtual clock, on loopback communicators with several plans in flight, and, shorter, on real
ranks. `-m slow` runs them; the checks themselves are tried on planted leaks.
"""

import gc
import json
import random
import tracemalloc
from collections import deque
from typing import Any

import numpy as np
import pytest
from mpi_ranks import Ranks
from virtual_runs import prepare

from allreduce import plan
from allreduce.algorithms import build
from allreduce.evaluate import evaluate
from allreduce.plan import Plan
from allreduce.testing.loopback import World
from mpisgd.data import load
from mpisgd.experiment.building import algorithm_run
from mpisgd.experiment.experiment import Experiment

STEPS, PLANS = 10_000, 10_000
REAL_STEPS = 1_500
EXPERIMENT = Experiment(
    model="mlp", hidden=(5,), data="digits", batch=1, rate=0.01, evaluate_every=0,
    straggler="exponential", network="titanx-20g",
)  # fmt: skip
ALGORITHMS: dict[str, dict[str, Any]] = {
    "minibatch": {"algorithm": "minibatch"},
    "minibatch-overlap": {"algorithm": "minibatch-overlap", "bucket_bytes": 1},
    "local": {"algorithm": "local", "tau": 4},
    "dasgd": {"algorithm": "dasgd", "tau": 4, "delay": 3},
    "dasgd-tau": {"algorithm": "dasgd", "tau": 2, "delay": 2, "merge": "delta"},
    "stale": {"algorithm": "stale", "staleness": 3, "ramp": 4},
}
MOST_BYTES, MOST_OBJECTS = 100_000, 300


class Nothing:
    """A recorder that keeps nothing, and counts."""

    steps = 0

    def step(self, step: int, columns: dict[str, float]) -> None:
        Nothing.steps += 1

    def evaluation(self, *_: Any) -> None:
        """Once, at the end."""


class Growth:
    """How many bytes and objects there are more than when it was made."""

    def __enter__(self) -> "Growth":
        tracemalloc.start()
        return self

    def __exit__(self, *_: object) -> None:
        tracemalloc.stop()

    def begin(self) -> None:
        gc.collect()
        self.bytes, self.objects = tracemalloc.get_traced_memory()[0], len(gc.get_objects())

    def check(self) -> None:
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - self.bytes < MOST_BYTES
        assert len(gc.get_objects()) - self.objects < MOST_OBJECTS


def soak_virtual(options: dict[str, Any], steps: int, leak: Any = None) -> None:
    """Three virtual ranks; what is held after a fifth of the steps must do for the rest."""
    clock, run = prepare(EXPERIMENT, 3, dataset=load("digits", samples=20), steps=steps, **options)
    clock.recorders = [Nothing() for _ in range(3)]
    first, begin = run.workers[0], run.workers[0].site.begin_step

    with Growth() as growth:

        def begin_step(step: int) -> None:
            if step == steps // 5:
                growth.begin()
            if step == steps:
                growth.check()
            if leak is not None:
                leak()
            begin(step)

        first.site.begin_step = begin_step  # type: ignore[method-assign]
        clock.run([algorithm_run(run.experiment, worker) for worker in run.workers])
    assert {worker.step for worker in run.workers} == {steps}
    assert all(np.isfinite(worker.parameters.flat).all() for worker in run.workers)


def soak_loopback(steps: int, leak: Any = None, ranks: int = 3, depth: int = 4) -> None:
    """Plans start in turn, up to `depth` in flight, and are waited for after random delays; each
    is right."""
    drawn, world = random.Random(1), World(ranks, 2)
    comms = [world.comm(rank) for rank in range(ranks)]
    buffers = [[np.zeros(7) for _ in range(ranks)] for _ in range(depth)]
    schedules = [build(name, ranks) for name in ("tree", "ring", "butterfly", "halving-doubling")]
    plans = [
        [Plan(comm, schedules[i], buffers[i][r], tag=i) for r, comm in enumerate(comms)]
        for i in range(depth)
    ]
    live, free, others = world.live, deque(range(depth)), set(plan._in_flight)
    in_flight: dict[int, list[np.ndarray]] = {}
    with Growth() as growth:
        for step in range(steps):
            if step == steps // 5:
                growth.begin()
            if leak is not None:
                leak()
            chosen = free.popleft()
            values = [np.array([drawn.random() for _ in range(7)]) for _ in range(ranks)]
            for buffer, value in zip(buffers[chosen], values, strict=True):
                buffer[:] = value
            for one in drawn.sample(plans[chosen], ranks):
                one.start()
            evaluate(schedules[chosen], values)
            in_flight[chosen] = values
            for _ in range(drawn.randrange(20)):  # a look here and there
                drawn.choice(plans[drawn.choice(list(in_flight))]).test()
            while in_flight and (not free or drawn.random() < 0.3):
                landed = drawn.choice(list(in_flight))
                world.drive(plans[landed])
                for buffer, value in zip(buffers[landed], in_flight.pop(landed), strict=True):
                    assert buffer.tobytes() == value.tobytes()
                free.append(landed)
        world.drive([one for number in in_flight for one in plans[number]])
        in_flight.clear()
        growth.check()
    assert world.live == live
    for one in (one for each in plans for one in each):
        one.close()
    world.check_quiet()
    assert set(plan._in_flight) <= others


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_ten_thousand_steps_on_the_virtual_clock(name):
    soak_virtual(ALGORITHMS[name], STEPS)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_averages_with_several_in_flight():
    soak_loopback(STEPS)


@pytest.mark.parametrize("name", ["minibatch-overlap", "dasgd"])
def test_a_short_run_holds_no_more_at_its_end(name):
    soak_virtual(ALGORITHMS[name], 100)


def test_the_checks_find_leaks():
    kept: list[bytes | list[int]] = []
    with pytest.raises(AssertionError):
        soak_virtual(ALGORITHMS["minibatch"], 50, lambda: kept.append(bytes(MOST_BYTES // 20)))
    with pytest.raises(AssertionError):
        soak_loopback(50, lambda: kept.extend([0] for _ in range(MOST_OBJECTS // 20)))


def test_a_short_run_on_loopback():
    soak_loopback(100)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_real_ranks_hold_no_more_at_the_end(mpi: Ranks):
    done = mpi(2, "soak.py", "train", REAL_STEPS, timeout=900)
    cases = grown(done.stdout)
    assert len(cases) == 6
    for case in cases:
        # A run with --progress thread takes one communicator of its own and keeps it.
        threaded = case["case"] == "overlap-thread"
        assert (case["communicators"] != 0) == threaded, case
        assert (case["handles"], case["threads"]) == (0, 0), case
        assert case["mebibytes"] < 2, case
        assert case["objects"] < MOST_OBJECTS, case


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_plans_leave_nothing_behind(mpi: Ranks):
    (case,) = grown(mpi(2, "soak.py", "plans", PLANS, timeout=600).stdout)
    assert (case["handles"], case["threads"], case["communicators"]) == (0, 0, 0), case
    assert case["mebibytes"] < 4, case
    assert case["objects"] < MOST_OBJECTS, case
    (leaked,) = grown(mpi(2, "soak.py", "plans", PLANS // 2, "leak", timeout=600).stdout)
    assert leaked["mebibytes"] > 4, leaked
    assert leaked["objects"] > MOST_OBJECTS, leaked


def grown(text: str) -> list[dict[str, Any]]:
    """What the program said."""
    lines = [line.partition("GROWN ")[2] for line in text.splitlines() if "GROWN " in line]
    return [json.loads(line) for line in lines]
