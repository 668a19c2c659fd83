"""What an algorithm carries from step to step is registered: a run that begins anew at every step,
from nothing but what is saved, has the bits of the whole."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from checkpoint_runs import AVERAGING, DIGITS, TINY, go, same, states
from virtual_runs import Algorithm, far, prepare, virtual

from mpisgd.algorithms import ALGORITHMS
from mpisgd.checkpoint.options import AUTO, Saving
from mpisgd.checkpoint.rests import Rests
from mpisgd.checkpoint.state import BadState, pack, unpack
from mpisgd.experiment.building import algorithm_run
from mpisgd.experiment.experiment import Experiment
from mpisgd.training.worker import Worker

SLOWMO = replace(
    TINY, algorithm="slowmo", tau=4, outer_momentum=0.6, outer_rate=0.9, steps=40, momentum=0.0
)


class Rested(Exception):
    """All is to be saved."""


def raise_rested(workers: list[Worker]) -> None:
    raise Rested


def anew(experiment: Experiment, generator: Algorithm | None = None) -> np.ndarray:
    """The parameters of 3 ranks, each step by objects of its own: [rank, parameter]."""
    saved: list[Any] = []
    for step in range(1, experiment.steps or 0):
        clock, run = prepare(experiment, 3, DIGITS)
        begin = generator or partial(algorithm_run, run.experiment)
        if saved:
            clock.restore(saved[0])
        for worker in run.workers:
            if saved:
                worker.restore(unpack(saved[1 + worker.rank]))
            worker.rests = Rests(1, None)

        clock.keep = raise_rested
        with pytest.raises(Rested):
            clock.run([begin(worker) for worker in run.workers])
        assert {worker.step for worker in run.workers} == {step}
        saved = [clock.state(), *(pack(worker.state()) for worker in run.workers)]

    def touch(worker: Worker) -> None:
        worker.restore(unpack(saved[1 + worker.rank]))

    return virtual(experiment, 3, generator, touch, dataset=DIGITS).parameters


# A late gradient that is under way at a rest is given up, and ranks line up there: another run.
LINES_UP = ("partial-add", "local-partial", "dasgd-partial")


@pytest.mark.parametrize("name", [name for name in AVERAGING if name not in LINES_UP])
def test_an_algorithm_carries_nothing_that_is_not_registered(name):
    experiment = replace(TINY, **AVERAGING[name], steps=9)
    whole = virtual(experiment, 3, dataset=DIGITS).parameters
    assert np.array_equal(anew(experiment), whole)


def test_every_algorithm_is_asked():
    assert {options.get("algorithm", "minibatch") for options in AVERAGING.values()} == set(
        ALGORITHMS
    )


def in_a_variable(worker: Worker) -> Callable[[np.ndarray], np.ndarray]:
    slow = np.zeros_like(worker.parameters.flat)

    def change(gradient: np.ndarray) -> np.ndarray:
        slow[:] = 0.5 * slow + gradient
        return slow

    return change


def in_a_number(worker: Worker) -> Callable[[np.ndarray], np.ndarray]:
    rate = 1.0

    def change(gradient: np.ndarray) -> np.ndarray:
        nonlocal rate
        rate *= 0.9
        return rate * gradient

    return change


def on_the_worker(worker: Any) -> Callable[[np.ndarray], np.ndarray]:
    worker.slow = 0.0

    def change(gradient: np.ndarray) -> np.ndarray:
        worker.slow = 0.5 * worker.slow + gradient
        return worker.slow

    return change


def kept(worker: Worker) -> Callable[[np.ndarray], np.ndarray]:
    slow, rate = worker.keep("slow", 0 * worker.parameters.flat), worker.keep("rate", 1.0)

    def change(gradient: np.ndarray) -> np.ndarray:
        rate[0] *= 0.9
        slow[:] = 0.5 * slow + rate[0] * gradient
        return slow

    return change


@pytest.mark.parametrize("carries", [in_a_variable, in_a_number, on_the_worker, kept])
def test_whoever_keeps_what_it_did_not_register_is_found(carries):
    def momentum(worker: Worker) -> Any:
        change = carries(worker)
        average = worker.mean(worker.gradient, in_place=True)
        for _ in worker.steps():
            yield from worker.compute_gradient(weighted=True)
            average.start()
            worker.update(change((yield from average.wait())))
            yield from worker.end_step()

    experiment = replace(TINY, steps=6, momentum=0.0)
    whole = virtual(experiment, 3, momentum, dataset=DIGITS).parameters
    assert np.array_equal(anew(experiment, momentum), whole) == (carries is kept)


def test_a_saved_state_that_is_not_the_algorithms_is_refused():
    _, run = prepare(TINY, 3, DIGITS)
    worker, other, third = run.workers
    worker.keep("slow", np.zeros(3, np.float32))
    saved = unpack(pack(worker.state()))
    other.restore(saved)
    with pytest.raises(BadState, match=r"slow is float32 \(3,\), not float32 \(4,\)"):
        other.keep("slow", np.zeros(4, np.float32))
    third.restore(saved)
    with pytest.raises(BadState, match="holds nothing, not fast"):
        third.keep("fast", 1.0)
    with pytest.raises(AssertionError, match="slow is kept twice"):
        worker.keep("slow", 0)


def test_slowmo_goes_on_after_22_of_40_steps(tmp_path):
    whole, halves = (Saving(tmp_path / name, every_steps=22) for name in ("whole", "halves"))
    go(SLOWMO, whole)
    go(replace(SLOWMO, steps=22), halves)
    assert {f"{rank}/worker/kept/slow" for rank in range(3)} <= states(halves.place).keys()
    _, memory = go(SLOWMO, replace(halves, resume=AUTO))
    assert memory.after == 22
    assert same(states(whole.place), states(halves.place))
    plain = replace(SLOWMO, algorithm="local", outer_momentum=None, outer_rate=None)
    forgotten = Saving(tmp_path / "forgotten", every_steps=22)
    go(plain, forgotten)
    assert far(states(whole.place)["0/worker/parameters"],
               states(forgotten.place)["0/worker/parameters"]) > 1e-3  # fmt: skip
