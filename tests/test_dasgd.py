"""DaSGD against its equation, written out on plain arrays, and against planted faults."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_runs import NOISE, QUADRATIC, Finished, Run, far, virtual

from mpisgd import models
from mpisgd.algorithms.merges import MERGES
from mpisgd.data.shards import Sampler
from mpisgd.training.worker import Worker


def literal(run: Finished) -> np.ndarray:
    """x_k^j of the paper's equation (or of the other merge rules), without momentum: [rank, n].

    Every x_k is kept, so no snapshot can be the wrong one.
    """
    experiment, ranks = run.experiment, len(run.workers)
    tau, delay = experiment.tau, experiment.delay
    assert tau is not None
    assert isinstance(delay, int)
    sampler = Sampler(NOISE.samples, ranks, experiment.batch, experiment.seed)
    mine: list[Any] = [
        models.build("quadratic", NOISE, rank=j, size=ranks, seed=experiment.seed)
        for j in range(ranks)
    ]
    x = [np.array(ranks * [np.random.default_rng((experiment.seed, 1)).standard_normal(6)])]
    for k in range(1, run.workers[0].last + 1):
        y = np.empty_like(x[0])
        for j, model in enumerate(mine):
            noise = NOISE.batch(sampler.indices(k, j))[0].mean(axis=0, dtype=float)
            slope = model.curvature * (x[k - 1][j] - model.optimum) + noise
            y[j] = x[k - 1][j] - experiment.rate * slope
        if k - delay > 0 and (k - delay) % tau == 0:
            begun = y if delay == 0 else x[k - delay]
            mean = begun.mean(axis=0)
            xi = experiment.xi
            assert xi is not None
            merged = {
                "convex": xi * y + (1 - xi) * mean,
                "delta": y + (mean - begun),
                "overwrite": 0 * y + mean,
            }
            y = merged[str(experiment.merge)]
        x.append(y)
    return x[-1]


@st.composite
def settings_of_dasgd(draw: st.DrawFn) -> dict[str, Any]:
    tau = draw(st.integers(1, 5))
    merge = draw(st.sampled_from(["convex", "delta", "overwrite"]))
    options: dict[str, Any] = {"tau": tau, "delay": draw(st.integers(0, tau)), "merge": merge}
    if merge == "convex":
        options["xi"] = draw(st.sampled_from([0.0, 0.25, 0.5, 1.0]))
    return options | {"steps": draw(st.integers(1, 17)), "seed": draw(st.integers(0, 5))}


@settings(deadline=None, max_examples=100)
@given(options=settings_of_dasgd(), ranks=st.integers(1, 5))
def test_dasgd_is_its_equation(options, ranks):
    run = virtual(QUADRATIC, ranks, dataset=NOISE, algorithm="dasgd", **options)
    assert far(run.parameters, literal(run)) < 1e-12


@pytest.mark.parametrize("merge", ["convex", "delta", "overwrite"])
@pytest.mark.parametrize(
    ("tau", "delay", "steps"),
    [
        (4, 0, 8),  # merged where it starts
        (4, 4, 8),  # merged before the next one starts, and the first one just in time
        (4, 4, 7),  # .. never
        (1, 0, 3),
        (1, 1, 3),
        (5, 2, 4),  # fewer steps than tau
        (4, 1, 4),  # an average is started that nobody merges
        (4, 1, 5),  # the first merge is the last step
    ],
)
def test_dasgd_is_its_equation_at_its_boundaries(tau, delay, steps, merge):
    options: dict[str, Any] = {"tau": tau, "delay": delay, "merge": merge, "steps": steps}
    run = virtual(QUADRATIC, 3, dataset=NOISE, algorithm="dasgd", **options)
    assert far(run.parameters, literal(run)) < 1e-12
    free = virtual(QUADRATIC, 3, dataset=NOISE, algorithm="local", tau=99, steps=steps)
    assert np.array_equal(run.parameters, free.parameters) == (steps < tau + delay)


# The same checks find faults that others' programs have had.


def faulty(worker: Worker, fault: str, tau: int = 4, delay: int = 2, xi: float = 0.25) -> Run:
    """DaSGD with one fault, or with none."""
    average = worker.mean(worker.parameters, keep_started=True)
    period = tau + 1 if fault == "period of tau + 1" else tau
    late = delay + 1 if fault == "merged a step late" else delay
    rule = MERGES["delta" if fault == "the started values of the merge" else "convex"]
    for k in worker.steps():
        yield from worker.compute_gradient()
        if fault != "merged before the update":
            worker.update(worker.gradient.flat)
        if k % period == 0 and fault != "the average of now":
            average.start()
        if k > late and (k - late) % period == 0:
            if fault == "the average of now":
                average.start()
            mean = yield from average.wait()
            started = average.started
            if fault == "the started values of the merge":
                started = worker.parameters.flat.copy()
            worker.merge(rule, mean, started, 1 - xi if fault == "xi and 1 - xi" else xi)
        if fault == "merged before the update":
            worker.update(worker.gradient.flat)
        yield from worker.end_step()


def check_equation(generator: Any, merge: str = "convex", touch: Any = lambda worker: None) -> bool:
    """Whether the law holds for the run of `generator`."""
    options: dict[str, Any] = {"algorithm": "dasgd", "tau": 4, "delay": 2, "merge": merge}
    run = virtual(QUADRATIC, 4, generator, touch, dataset=NOISE, **options)
    return far(run.parameters, literal(run)) < 1e-12


def test_the_equation_holds_without_a_fault():
    assert check_equation(lambda worker: faulty(worker, "none"))


@pytest.mark.parametrize(
    ("fault", "merge"),
    [
        ("period of tau + 1", "convex"),
        ("merged a step late", "convex"),
        ("the average of now", "convex"),
        ("the started values of the merge", "delta"),
        ("merged before the update", "convex"),
        ("xi and 1 - xi", "convex"),
    ],
)
def test_the_equation_finds_faults(fault, merge):
    assert not check_equation(lambda worker: faulty(worker, fault), merge)


def test_the_equation_finds_workers_that_share_their_parameters():
    """In the authors' published script all workers had one network object."""
    first: list[Worker] = []

    def share(worker: Worker) -> None:
        first.append(worker)
        worker.parameters = first[0].parameters

    assert not check_equation(lambda worker: faulty(worker, "none"), touch=share)
