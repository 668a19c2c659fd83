"""The laws of mini-batch SGD, Local SGD and DaSGD, in float64 on virtual ranks.

Sources: Zhou et al. 2020 (arXiv 2006.00441), and what follows from its equations.
"""

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_runs import Finished, virtual

from mpisgd import models
from mpisgd.algorithms.merges import MERGES
from mpisgd.data import load
from mpisgd.data.shards import Sampler
from mpisgd.errors import UsageError
from mpisgd.experiment import Experiment
from mpisgd.worker import Worker

DIGITS = load("digits", samples=53)
EVEN = load("digits", samples=48)
NOISE = load("noise", samples=240, features=6, seed=3)

NETWORK = Experiment(
    model="mlp", hidden=(7,), data="digits", batch=3, steps=11, rate=0.2, dtype="float64",
    evaluate_every=0,
)  # fmt: skip
QUADRATIC = Experiment(
    model="quadratic", data="noise", batch=2, steps=23, rate=0.05, momentum=0.0, dtype="float64",
    evaluate_every=0,
)  # fmt: skip
OPTIMISERS: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.0},
    "momentum": {"momentum": 0.9, "weight_decay": 0.01},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "rmsprop": {"optimiser": "rmsprop", "momentum": 0.9},
}
Run = Generator[None, None, None]


def far(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference, relative to the largest value."""
    return float(np.abs(one - other).max() / np.abs(other).max())


# 1. M ranks with batches of B are one rank with batches of M B.


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_minibatch_is_serial_sgd_with_the_global_batch(optimiser, ranks):
    """53 samples: the last global batch of an epoch is uneven, and may leave ranks empty."""
    experiment = replace(NETWORK, **OPTIMISERS[optimiser])
    many = virtual(experiment, ranks, dataset=DIGITS)
    serial = virtual(experiment, 1, dataset=DIGITS, batch=3 * ranks)
    sizes = [many.workers[0].sampler.batch_sizes(step) for step in range(1, 12)]
    assert any(len(set(step)) > 1 for step in sizes)
    for worker in many.workers:
        assert far(worker.parameters.flat, serial.mean) < 1e-12


def test_batches_that_do_not_count_by_their_samples_break_the_law():
    def unweighted(worker: Worker) -> Run:
        average = worker.mean(worker.gradient, in_place=True)
        for _ in worker.steps():
            yield from worker.compute_gradient()
            average.start()
            worker.update((yield from average.wait()))
            yield from worker.end_step()

    many = virtual(NETWORK, 4, unweighted, dataset=DIGITS)
    serial = virtual(NETWORK, 1, dataset=DIGITS, batch=12)
    assert far(many.mean, serial.mean) > 1e-4


# 2. Averaging parameters at every step is averaging gradients, if the update is linear in them.


def averaged_both_ways(optimiser: str) -> tuple[Finished, Finished]:
    experiment = replace(NETWORK, batch=4, **OPTIMISERS[optimiser])
    return (
        virtual(experiment, 3, dataset=EVEN, algorithm="local", tau=1),
        virtual(experiment, 3, dataset=EVEN, algorithm="minibatch"),
    )


@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "nesterov"])
def test_averaging_parameters_at_each_step_is_averaging_gradients(optimiser):
    parameters, gradients = averaged_both_ways(optimiser)
    assert far(parameters.mean, gradients.mean) < 1e-12


def test_averaging_parameters_is_something_else_for_rmsprop():
    parameters, gradients = averaged_both_ways("rmsprop")
    assert far(parameters.mean, gradients.mean) > 1e-6


# 3. DaSGD that merges at once and keeps nothing local is Local SGD.


@pytest.mark.parametrize("ranks", [1, 3, 4])
@pytest.mark.parametrize("tau", [1, 4])
def test_dasgd_without_delay_and_xi_is_local_sgd_bit_for_bit(tau, ranks):
    delayed = virtual(
        NETWORK, ranks, dataset=DIGITS, algorithm="dasgd", tau=tau, delay=0, xi=0.0
    )  # fmt: skip
    plain = virtual(NETWORK, ranks, dataset=DIGITS, algorithm="local", tau=tau)
    assert np.array_equal(delayed.parameters, plain.parameters)


# 4. Where all ranks have the same Hessian, nothing is lost by averaging late.


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("tau", "delay"), [(1, 0), (1, 1), (4, 0), (4, 1), (4, 4), (7, 3)])
def test_the_mean_of_local_sgd_and_of_the_delta_rule_is_minibatch(tau, delay, momentum):
    experiment = replace(QUADRATIC, momentum=momentum)
    minibatch = virtual(experiment, 5, dataset=NOISE)
    delta = {"algorithm": "dasgd", "tau": tau, "delay": delay, "merge": "delta"}
    for other in ({"algorithm": "local", "tau": tau}, delta):
        run = virtual(experiment, 5, dataset=NOISE, **other)
        assert far(run.mean, minibatch.mean) < 1e-12


def test_the_convex_rule_loses_work_and_rmsprop_is_not_linear():
    minibatch = virtual(QUADRATIC, 5, dataset=NOISE)
    convex = {"algorithm": "dasgd", "tau": 4, "delay": 2, "xi": 0.25}
    assert far(virtual(QUADRATIC, 5, dataset=NOISE, **convex).mean, minibatch.mean) > 1e-2
    rmsprop = {"optimiser": "rmsprop", "momentum": 0.9}
    minibatch = virtual(QUADRATIC, 5, dataset=NOISE, **rmsprop)
    run = virtual(QUADRATIC, 5, dataset=NOISE, **rmsprop, algorithm="local", tau=4)
    assert far(run.mean, minibatch.mean) > 1e-4


# 5. A merge multiplies the disagreement by xi.


@pytest.mark.parametrize("xi", [0.0, 0.25, 0.9, 1.0])
@pytest.mark.parametrize("delay", [0, 2, 3])
def test_disagreement_shrinks_by_xi_at_a_merge(delay, xi):
    merges: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}

    def touch(worker: Worker) -> None:
        merge = worker.merge

        def watched(*arguments: Any) -> None:
            before = worker.parameters.flat.copy()
            merge(*arguments)
            merges.setdefault(worker.step, []).append((before, worker.parameters.flat.copy()))

        worker.merge = watched  # type: ignore[method-assign]

    options = {"algorithm": "dasgd", "tau": 3, "delay": delay, "xi": xi}
    virtual(NETWORK, 4, dataset=DIGITS, touch=touch, **options)
    assert sorted(merges) == [k for k in range(1, 12) if k >= 3 + delay and (k - delay) % 3 == 0]
    for pairs in merges.values():
        before, after = (np.array(side) for side in zip(*pairs, strict=True))
        disagreement = before - before.mean(axis=0)
        assert np.abs(disagreement).max() > 1e-4
        np.testing.assert_allclose(after - after.mean(axis=0), xi * disagreement, atol=1e-14)


# 6. With xi = 1 nobody learns from anybody.


@pytest.mark.parametrize("delay", [0, 1, 3])
def test_xi_of_one_is_independent_serial_runs_bit_for_bit(delay):
    run = virtual(NETWORK, 3, dataset=DIGITS, algorithm="dasgd", tau=3, delay=delay, xi=1.0)
    fresh = virtual(NETWORK, 3, dataset=DIGITS, generator=lambda worker: iter(()))
    for rank, worker in enumerate(fresh.workers):
        for step in range(1, 12):
            inputs, targets = DIGITS.batch(worker.sampler.indices(step, rank))
            worker.model.gradient(
                worker.parameters, inputs, targets, worker.gradient, lambda share: None
            )
            worker.optimiser.step(worker.parameters.flat, worker.gradient.flat, 0.2)
    assert np.array_equal(run.parameters, fresh.parameters)
    assert far(run.parameters[0], run.parameters[1]) > 1e-3


# 9. All ranks see the same averages; their parameters are the same where nothing is kept local.

DASGD = {"algorithm": "dasgd", "tau": 3, "delay": 2}


@pytest.mark.parametrize("allreduce", ["tree", "butterfly", "ring", "halving-doubling"])
@pytest.mark.parametrize("ranks", [3, 4, 5])
@pytest.mark.parametrize(
    ("options", "equal"),
    [
        ({"algorithm": "minibatch"}, True),
        ({"algorithm": "local", "tau": 11}, True),
        (DASGD | {"merge": "overwrite"}, True),
        (DASGD | {"xi": 0.0}, True),
        (DASGD | {"xi": 0.25}, False),
        (DASGD | {"merge": "delta"}, False),
    ],
)
def test_averages_are_the_same_bits_on_all_ranks(options, equal, ranks, allreduce):
    """11 steps end with a merge for each of these algorithms."""
    averages: dict[int, list[np.ndarray]] = {}

    def touch(worker: Worker) -> None:
        make = worker.mean

        def mean(*arguments: Any, **named: Any) -> Any:
            average = make(*arguments, **named)
            wait = average.wait

            def watched() -> Generator[None, None, np.ndarray]:
                values = yield from wait()
                averages.setdefault(worker.step, []).append(values.copy())
                return values

            average.wait = watched  # type: ignore[method-assign]
            return average

        worker.mean = mean  # type: ignore[method-assign]

    experiment = replace(NETWORK, dtype="float32", allreduce=allreduce)
    start = virtual(experiment, ranks, generator=lambda w: iter(()), dataset=DIGITS)
    assert np.ptp(start.parameters, axis=0).max() == 0
    run = virtual(experiment, ranks, dataset=DIGITS, touch=touch, **options)
    assert 11 in averages
    for values in averages.values():
        assert len(values) == ranks
        assert np.ptp(values, axis=0).max() == 0
    assert (np.ptp(run.parameters, axis=0).max() == 0) == equal


# DaSGD's equation, literally, on plain arrays.


def literal(run: Finished) -> np.ndarray:
    """x_k^j of the paper's equation (or of the other merge rules), without momentum: [rank, n].

    Every x_k is kept, so no snapshot can be the wrong one.
    """
    experiment, ranks = run.experiment, len(run.workers)
    tau, delay = experiment.tau, experiment.delay
    assert tau is not None
    assert delay is not None
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
    options = {"tau": tau, "delay": draw(st.integers(0, tau)), "merge": merge}
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
            if fault == "momentum":
                worker.parameters.flat += 1e-6
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


# 12. Odd numbers.


@pytest.mark.parametrize("options", [{"algorithm": "local", "tau": 4}, DASGD, {}])
def test_the_result_is_the_mean_of_what_the_last_step_left(options):
    """11 steps, tau = 4: the last ones were not averaged, but for the result."""
    run = virtual(NETWORK, 3, dataset=DIGITS, **options)
    sums, _ = run.rows[0].evaluations[11]
    assert list(run.rows[0].evaluations) == [11]
    model, parameters = run.workers[0].model, run.workers[0].parameters.like()
    parameters.flat[...] = run.mean
    expected = model.evaluate(parameters, *DIGITS.test(0, DIGITS.test_samples))
    assert sums[:3] == pytest.approx(expected, rel=1e-12)
    for row in run.rows:
        assert np.array_equal(row.evaluations[11][0], sums)


@pytest.mark.parametrize(
    "options", [{"algorithm": "minibatch"}, {"algorithm": "local", "tau": 2}, DASGD]
)
def test_fewer_samples_than_ranks(options):
    tiny = load("digits", samples=2)
    run = virtual(NETWORK, 5, dataset=tiny, steps=7, **options)
    assert np.isfinite(run.parameters).all()
    samples = [[row.steps[step]["samples"] for row in run.rows] for step in range(1, 8)]
    assert [sum(step) for step in samples] == 7 * [2]
    assert run.experiment.evaluate_every == 0
    if options["algorithm"] == "minibatch":
        serial = virtual(NETWORK, 1, dataset=tiny, steps=7, batch=15)
        assert far(run.mean, serial.mean) < 1e-12


def test_a_delay_above_tau_is_refused():
    for options in ({"tau": 3, "delay": 4}, {"delay": 5}, {"tau": 0}, {"tau": 2, "delay": -1}):
        with pytest.raises(UsageError, match=r"--(delay|tau) -?\d: "):
            Experiment.read({"algorithm": "dasgd", **options})
