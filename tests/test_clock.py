"""The clock world: virtual seconds, stops that all ranks share, and waits that never end."""

from dataclasses import replace

import numpy as np
import pytest
from virtual_runs import Finished, prepare, virtual

from allreduce.errors import Stalled
from mpisgd.data import load
from mpisgd.experiment.building import algorithm_run
from mpisgd.experiment.experiment import Experiment
from mpisgd.training.worker import Worker
from mpisgd.values.errors import NotFinite

DIGITS = load("digits", samples=53)
NETWORK = Experiment(
    model="mlp", hidden=(5,), data="digits", batch=3, steps=9, dtype="float64", evaluate_every=0
)
ALGORITHMS = [
    {"algorithm": "minibatch"},
    {"algorithm": "local", "tau": 4},
    {"algorithm": "dasgd", "tau": 4, "delay": 1},
]


def seconds(rank: int, step: int) -> float:
    """Different on every rank and step, in powers of two: sums of them are exact."""
    return 2.0 ** -((rank * 5 + step * 3) % 7)


def times(run: Finished, name: str) -> np.ndarray:
    """One column of the steps: [step, rank]."""
    return np.array([[rows.steps[k][name] for rows in run.rows] for k in sorted(run.rows[0].steps)])


def test_minibatch_takes_the_slowest_of_each_step():
    run = virtual(NETWORK, 4, dataset=DIGITS, step_time=seconds)
    alone = np.array([[seconds(rank, step) for rank in range(4)] for step in range(1, 10)])
    assert np.array_equal(times(run, "compute_s"), alone)
    assert np.array_equal(times(run, "step_s"), np.repeat(alone.max(1, keepdims=True), 4, 1))
    assert np.array_equal(times(run, "wait_s"), alone.max(1, keepdims=True) - alone)
    assert run.rows[0].evaluations[9][1] == alone.max(axis=1).sum()


def test_local_sgd_takes_the_slowest_of_each_period():
    run = virtual(NETWORK, 4, dataset=DIGITS, step_time=seconds, algorithm="local", tau=3)
    alone = np.array([[seconds(rank, step) for rank in range(4)] for step in range(1, 10)])
    periods = alone.reshape(3, 3, 4).sum(axis=1)
    assert run.rows[0].evaluations[9][1] == periods.max(axis=1).sum()
    assert np.array_equal(times(run, "start_s")[::3, 0], [0, *periods.max(axis=1).cumsum()[:2]])


def test_dasgd_waits_only_for_averages_that_are_not_there():
    """The merge at k = 5 needs all ranks at step 4: rank 0 is the slow one until then."""

    def late(rank: int, step: int) -> float:
        return 2.0 if rank == 0 and step <= 4 else 1.0

    run = virtual(
        NETWORK, 2, dataset=DIGITS, step_time=late, algorithm="dasgd", tau=4, delay=1, steps=5
    )  # fmt: skip
    waits = times(run, "wait_s")
    assert waits[:, 0].tolist() == [0, 0, 0, 0, 0]
    assert waits[:, 1].tolist() == pytest.approx([0, 0, 0, 0, 3])  # 8 s against 4 + 1 s


@pytest.mark.parametrize("options", ALGORITHMS)
def test_time_changes_no_number(options):
    steady = virtual(NETWORK, 4, dataset=DIGITS, **options)
    uneven = virtual(NETWORK, 4, dataset=DIGITS, step_time=seconds, **options)
    slow = virtual(NETWORK, 4, dataset=DIGITS, network="titanx-20g", **options)
    for other in (uneven, slow):
        assert np.array_equal(steady.parameters, other.parameters)
        assert np.array_equal(times(steady, "loss"), times(other, "loss"))
    assert slow.rows[0].evaluations[9][1] > steady.rows[0].evaluations[9][1]


def test_ranks_that_never_meet_are_a_stall_not_a_hang():
    def careless(worker: Worker):
        average = worker.mean(worker.parameters)
        for k in worker.steps():
            yield from worker.compute_gradient()
            if worker.rank != 1 or k < 3:
                average.start()
                yield from average.wait()

    with pytest.raises(Stalled, match="rank 0 waits for butterfly, and nothing is on its way"):
        virtual(NETWORK, 3, careless, dataset=DIGITS)


def poison(worker: Worker, rank: int, step: int) -> None:
    """The gradient of `rank` at `step` gets one NaN."""
    gradient = worker.model.gradient

    def poisoned(parameters, inputs, targets, result, *told):
        loss = gradient(parameters, inputs, targets, result, *told)
        if (worker.rank, worker.step) == (rank, step):
            result.flat[0] = np.nan
        return loss

    worker.model.gradient = poisoned  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("options", "step", "merge"),
    [
        ({"algorithm": "minibatch"}, 5, 5),
        ({"algorithm": "local", "tau": 4}, 5, 8),
        ({"algorithm": "local", "tau": 4}, 8, 8),
        ({"algorithm": "dasgd", "tau": 4, "delay": 1}, 4, 5),
        ({"algorithm": "dasgd", "tau": 4, "delay": 1}, 5, 9),  # the average of step 4 is clean
        ({"algorithm": "dasgd", "tau": 4, "delay": 4}, 3, 8),
        ({"algorithm": "dasgd", "tau": 4, "delay": 1, "xi": 1.0}, 2, 5),
    ],
)
def test_what_is_not_finite_stops_all_ranks_before_the_merge(options, step, merge):
    clock, run = prepare(NETWORK, 3, dataset=DIGITS, **options)
    for worker in run.workers:
        poison(worker, rank=1, step=step)
    with pytest.raises(NotFinite, match=f"on rank 1 at step {step}$"):
        clock.run([algorithm_run(run.experiment, worker) for worker in run.workers])
    assert {worker.step for worker in run.workers} == {merge}
    for worker in run.workers:
        if options["algorithm"] == "minibatch":
            assert np.isfinite(worker.parameters.flat).all()
        elif worker.rank != 1:
            free = virtual(NETWORK, 3, dataset=DIGITS, steps=merge, algorithm="local", tau=99)
            assert np.isfinite(worker.parameters.flat).all()
            if merge <= 5 or options.get("delay") == 4:  # nothing was merged before
                assert np.array_equal(worker.parameters.flat, free.parameters[worker.rank])
    if options["algorithm"] == "minibatch":
        before = virtual(NETWORK, 3, dataset=DIGITS, steps=step - 1)
        assert np.array_equal(run.parameters, before.parameters)


@pytest.mark.parametrize("options", ALGORITHMS)
def test_the_last_steps_are_seen_by_the_final_average(options):
    """The NaN comes after the last merge: only the evaluation's average can tell."""
    clock, run = prepare(replace(NETWORK, steps=11), 3, dataset=DIGITS, **options)
    for worker in run.workers:
        poison(worker, rank=2, step=11)
    with pytest.raises(NotFinite, match=r"on rank 2 at step 11$"):
        clock.run([algorithm_run(run.experiment, worker) for worker in run.workers])
    assert all(rows.evaluations == {} for rows in run.rows)


def test_a_single_rank_notices_too():
    clock, run = prepare(NETWORK, 1, dataset=DIGITS, algorithm="local", tau=100)
    poison(run.workers[0], rank=0, step=2)
    with pytest.raises(NotFinite, match=r"on rank 0 at step 2$"):
        clock.run([algorithm_run(run.experiment, worker) for worker in run.workers])
