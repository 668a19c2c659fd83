"""`--delay auto`: the smallest delay that hides an all-reduce, measured or priced, then fixed."""

import time
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from allreduce.algorithms import build
from allreduce.collectives import Maker
from allreduce.plan import Plan
from allreduce.wire import Wire
from mpisgd.experiment.experiment import Experiment
from mpisgd.mpi import tags

REPETITIONS = 7
PAIRED = "gossip"  # whose averages are of pairs


class Times(NamedTuple):
    """Seconds of a step's computation and of an average of the parameters, the same on all
    ranks."""

    step_s: float
    allreduce_s: float


def tuned(experiment: Experiment, times: Times) -> Experiment:
    """The experiment with `delay` by the rule of the DaSGD paper, d = ceil(t_c / t_p), and
    tau = d + 1; a tau that was given stays, and bounds the delay."""
    from mpisgd.predict.epoch import delay_rule

    delay = delay_rule(times.step_s, times.allreduce_s, experiment.ranks)
    tau = experiment.tau or delay + 1
    return replace(experiment, delay=min(delay, tau), tau=tau)


def parameters_wire(experiment: Experiment, parameters: Any) -> Wire | None:
    """How an average of the parameters travels."""
    if experiment.wire is None:
        return None
    low = 0 if parameters.leading else parameters.size  # of the signals, which travel as they are
    shapes = tuple(parameters.shapes.values())
    return Wire(experiment.wire, low, low + parameters.extra.size, shapes)


def measure(comm: Any, allreduce: Maker, experiment: Experiment, worker: Any) -> Times:
    """On real ranks: medians over REPETITIONS of the slowest rank. `worker` is thrown away."""
    inputs, targets = worker.dataset.batch(worker.sampler.indices(1, worker.rank))
    deadline = experiment.deadline_s
    schedule = build("tree", worker.size)
    samples = np.zeros((2, REPETITIONS, worker.size))
    buffer = worker.parameters.like().buffer
    wire = parameters_wire(experiment, worker.parameters)
    error = 0 * buffer if experiment.error_feedback else None
    wired: dict[str, Any] = {} if wire is None else {"wire": wire, "error": error}
    with (
        allreduce(
            comm, buffer, tag=tags.DELAY_PROBE, chunks=experiment.chunks, deadline=deadline, **wired
        ) as plan,
        Plan(comm, schedule, samples, tag=tags.DELAY_PROBE + 1, deadline=deadline) as exchange,
    ):
        for repetition in range(-1, REPETITIONS):  # the first is a warm-up
            began = time.perf_counter()
            worker.model.gradient(worker.parameters, inputs, targets, worker.gradient, _ignore)
            worker.optimiser.step(worker.parameters.flat, worker.gradient.flat, 0.0)
            step_s = max(time.perf_counter() - began, experiment.step_seconds or 0.0)
            plan.start()  # lines the ranks up
            plan.wait()
            began = time.perf_counter()
            plan.start()
            plan.wait()
            if repetition >= 0:
                samples[:, repetition, worker.rank] = step_s, time.perf_counter() - began
        exchange.start()
        exchange.wait()
    slowest = samples.max(axis=2).tolist()
    return Times(*np.median(slowest, axis=1).tolist())


def _ignore(share: float) -> None:
    """Nothing is in flight while a gradient is timed."""
