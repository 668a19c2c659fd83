"""The laws of mini-batch SGD, Local SGD and DaSGD, in float64 on virtual ranks.

Sources: Zhou et al. 2020 (arXiv 2006.00441), and what follows from its equations.
"""

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from virtual_runs import NOISE, QUADRATIC, Finished, Run, far, virtual

from mpisgd.algorithms.averaging import local
from mpisgd.data import load
from mpisgd.data.shards import Sampler
from mpisgd.experiment.experiment import Experiment
from mpisgd.training.worker import Worker
from mpisgd.values.errors import UsageError

DIGITS = load("digits", samples=53)
EVEN = load("digits", samples=48)

NETWORK = Experiment(
    model="mlp", hidden=(7,), data="digits", batch=3, steps=11, rate=0.2, dtype="float64",
    evaluate_every=0,
)  # fmt: skip
OPTIMISERS: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.0},
    "momentum": {"momentum": 0.9, "weight_decay": 0.01},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "rmsprop": {"optimiser": "rmsprop", "momentum": 0.9},
}


def idle(worker: Worker) -> Run:
    """No step at all."""
    yield from ()


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


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
@pytest.mark.parametrize("outer_momentum", [0.0, 0.8])
def test_averaged_models_count_by_their_samples_as_gradients_do(ranks, outer_momentum):
    """53 samples: some have fewer in an epoch's last step, some none. The momentum of the average
    is the same on all ranks; one that each rank has of its own gradients is not, and comes near.
    """
    plain = virtual(NETWORK, ranks, dataset=DIGITS, momentum=outer_momentum)
    others: list[dict[str, Any]] = [{"algorithm": "slowmo", "outer_momentum": outer_momentum}]
    if not outer_momentum:
        others += [{"algorithm": "local"}, {"algorithm": "dasgd", "delay": 0, "xi": 0.0}]
    for other in others:
        run = virtual(NETWORK, ranks, dataset=DIGITS, momentum=0.0, tau=1, **other)
        assert far(run.mean, plain.mean) < 1e-12


def test_models_that_do_not_count_by_their_samples_break_the_law():
    def unweighted(worker: Worker) -> Run:
        worker.share = lambda steps=1: 1.0  # type: ignore[method-assign]
        yield from local(worker, 1)

    experiment = replace(NETWORK, momentum=0.0)
    plain = virtual(experiment, 4, dataset=DIGITS)
    assert far(virtual(experiment, 4, unweighted, dataset=DIGITS).mean, plain.mean) > 1e-4


@pytest.mark.parametrize("tau", [1, 2, 5, 30])
def test_the_shares_of_a_round_are_those_of_its_samples(tau):
    sampler = Sampler(53, 4, 3)
    for step in range(tau, 40):
        sizes = np.array([sampler.batch_sizes(k) for k in range(step - tau + 1, step + 1)]).sum(0)
        shares = [sampler.share(rank, step, tau) for rank in range(4)]
        assert shares == pytest.approx(sizes / sizes.mean(), rel=1e-15)
        assert (shares == [1.0] * 4) == (len(set(sizes)) == 1)


# 3. DaSGD that merges at once and keeps nothing local is Local SGD.


@pytest.mark.parametrize("ranks", [1, 3, 4])
@pytest.mark.parametrize("tau", [1, 4])
def test_dasgd_without_delay_and_xi_is_local_sgd_bit_for_bit(tau, ranks):
    delayed = virtual(
        NETWORK, ranks, dataset=DIGITS, algorithm="dasgd", tau=tau, delay=0, xi=0.0
    )  # fmt: skip
    plain = virtual(NETWORK, ranks, dataset=DIGITS, algorithm="local", tau=tau)
    assert np.array_equal(delayed.parameters, plain.parameters)


# 3a. Slow momentum: without it, Local SGD; with an average at each step, momentum.


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("tau", [1, 4])
def test_slowmo_without_momentum_at_rate_1_is_local_sgd_bit_for_bit(tau, optimiser):
    experiment = replace(NETWORK, rate_schedule="linear-tail", **OPTIMISERS[optimiser])
    slow = virtual(experiment, 3, dataset=DIGITS, algorithm="slowmo", tau=tau,
                   outer_momentum=0.0, outer_rate=1.0)  # fmt: skip
    plain = virtual(experiment, 3, dataset=DIGITS, algorithm="local", tau=tau)
    assert slow.parameters.tobytes() == plain.parameters.tobytes()


@pytest.mark.parametrize("schedule", ["constant", "one-cycle"])
@pytest.mark.parametrize("outer_rate", [1.0, 0.5])
def test_slowmo_at_each_step_is_sgd_with_momentum_whatever_the_rates(outer_rate, schedule):
    """The momentum is of gradients, not of steps: it does not shrink with the rate."""
    experiment = replace(NETWORK, rate_schedule=schedule, momentum=0.0, batch=4)
    slow = virtual(experiment, 3, dataset=EVEN, algorithm="slowmo", tau=1,
                   outer_momentum=0.8, outer_rate=outer_rate)  # fmt: skip
    plain = virtual(experiment, 3, dataset=EVEN, momentum=0.8, touch=slower(outer_rate))
    assert far(slow.mean, plain.mean) < 1e-12


def slower(factor: float) -> Any:
    def touch(worker: Worker) -> None:
        rate = worker.rate
        worker.rate = lambda k: factor * rate(k)

    return touch


# 4. Where all ranks have the same Hessian, nothing is lost by averaging late.


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("tau", "delay"), [(1, 0), (1, 1), (4, 0), (4, 1), (4, 4), (7, 3)])
def test_the_mean_of_local_sgd_and_of_the_delta_rule_is_minibatch(tau, delay, momentum):
    experiment = replace(QUADRATIC, momentum=momentum)
    minibatch = virtual(experiment, 5, dataset=NOISE)
    delta: dict[str, Any] = {"algorithm": "dasgd", "tau": tau, "delay": delay, "merge": "delta"}
    for other in ({"algorithm": "local", "tau": tau}, delta):
        run = virtual(experiment, 5, dataset=NOISE, **other)
        assert far(run.mean, minibatch.mean) < 1e-12


def test_the_convex_rule_loses_work_and_rmsprop_is_not_linear():
    minibatch = virtual(QUADRATIC, 5, dataset=NOISE)
    convex: dict[str, Any] = {"algorithm": "dasgd", "tau": 4, "delay": 2, "xi": 0.25}
    assert far(virtual(QUADRATIC, 5, dataset=NOISE, **convex).mean, minibatch.mean) > 1e-2
    rmsprop: dict[str, Any] = {"optimiser": "rmsprop", "momentum": 0.9}
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

        worker.merge = watched  # type: ignore

    options: dict[str, Any] = {"algorithm": "dasgd", "tau": 3, "delay": delay, "xi": xi}
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
    fresh = virtual(NETWORK, 3, dataset=DIGITS, generator=idle)
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

DASGD: dict[str, Any] = {"algorithm": "dasgd", "tau": 3, "delay": 2}


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
    start = virtual(experiment, ranks, generator=idle, dataset=DIGITS)
    assert np.ptp(start.parameters, axis=0).max() == 0
    run = virtual(experiment, ranks, dataset=DIGITS, touch=touch, **options)
    assert 11 in averages
    for values in averages.values():
        assert len(values) == ranks
        assert np.ptp(values, axis=0).max() == 0
    assert (np.ptp(run.parameters, axis=0).max() == 0) == equal


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
