"""How old gradients are, and what that does: staleness with servers and emulated on one rank."""

import math

import numpy as np
import pytest
from server_runs import TINY, prepare, served
from virtual_runs import virtual

from mpisgd.experiment.experiment import Experiment

SLOW_7 = "7:5x"


def test_async_staleness_is_one_less_than_the_workers_on_average():
    """8 workers, one of them 5 times slower: fast ones 6.2 updates, the slow one 35."""
    run = served(9, algorithm="async", steps=200, straggler=SLOW_7)
    assert run.column("staleness").mean() == pytest.approx(7, rel=0.01)
    assert run.column("staleness", worker=7)[1:].mean() == pytest.approx(35, rel=0.02)
    assert run.column("staleness", worker=0)[10:].mean() == pytest.approx(6.2, rel=0.02)


def quadratic_async(delay: int, product: float) -> float:
    """How far from the optimum async ends whose gradients are `delay` updates old; `product`: of
    rate and largest curvature, which is 10."""
    _, run = prepare(
        delay + 2,
        algorithm="async",
        steps=1200 // (delay + 1),
        momentum=0.0,
        rate=product / 10,
        batch=1,
    )
    for worker in run.virtual_servers.workers:
        worker.dataset.train_inputs[...] = 0  # no noise
        worker.model.optimum[...] = 0
    run.virtual_servers.run()
    with np.errstate(over="ignore"):
        return float(np.abs(run.parameters).max())


@pytest.mark.parametrize("delay", [0, 1, 2, 5])
def test_delayed_gradients_are_stable_up_to_the_known_rate(delay):
    edge = 2 * math.sin(math.pi / (2 * (2 * delay + 1)))
    assert quadratic_async(delay, 0.95 * edge) < 1
    assert quadratic_async(delay, 1.05 * edge) > 1e2


@pytest.mark.parametrize("delay", [0, 1, 3])
def test_stale_gradients_on_one_rank_are_those_of_async(delay):
    """Async with equal workers makes every gradient `delay` updates old once all have begun."""
    steps = 30
    changes = {"momentum": 0.0, "rate": 0.02, "batch": 1, "data_samples": steps * (delay + 1)}
    emulated = virtual(
        Experiment.read(
            TINY | changes | {"algorithm": "stale", "staleness": delay, "ramp": 0,
                              "steps": steps * (delay + 1)}
        ),
        1,
    )  # fmt: skip
    ages = [row["staleness"] for row in emulated.rows[0].steps.values()]
    assert ages == [min(k, delay) for k in range(steps * (delay + 1))]
    run = served(delay + 2, algorithm="async", steps=steps, **changes)
    assert run.column("staleness", used=1).tolist() == ages


def test_staleness_is_ramped():
    experiment = Experiment.read(
        TINY | {"algorithm": "stale", "staleness": 4, "ramp": 8, "steps": 12}
    )
    ages = [row["staleness"] for row in virtual(experiment, 2).rows[0].steps.values()]
    assert ages == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 4, 4]


@pytest.mark.parametrize("delay", [0, 1, 2, 5])
def test_emulated_staleness_is_stable_up_to_the_known_rate(delay):
    edge = 2 * math.sin(math.pi / (2 * (2 * delay + 1)))

    def end(product: float) -> float:
        experiment = Experiment.read(
            TINY | {"algorithm": "stale", "staleness": delay, "ramp": 0, "steps": 1000,
                    "momentum": 0.0, "rate": product / 10}
        )  # fmt: skip

        def quiet(worker):
            worker.dataset.train_inputs[...] = 0
            worker.model.optimum[...] = 0

        return float(np.abs(virtual(experiment, 1, touch=quiet).parameters).max())

    assert end(0.95 * edge) < 1
    assert end(1.05 * edge) > 1e2
