"""Runs on virtual ranks for tests: an Experiment in, the workers as it left them out."""

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from mpisgd.data import Dataset
from mpisgd.data import load as load_data
from mpisgd.drivers.virtual import world
from mpisgd.experiment.building import algorithm_run, load, resolve_for
from mpisgd.experiment.experiment import Experiment
from mpisgd.training.worker import Worker
from mpisgd.worlds.virtual import Clock

Run = Generator[None, None, None]
Algorithm = Callable[[Worker], Run]

NOISE = load_data("noise", samples=240, features=6, seed=3)
QUADRATIC = Experiment(
    model="quadratic", data="noise", batch=2, steps=23, rate=0.05, momentum=0.0, dtype="float64",
    evaluate_every=0,
)  # fmt: skip


def far(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference, relative to the largest value."""
    return float(np.abs(one - other).max() / np.abs(other).max())


class Rows:
    """A recorder that keeps everything: steps[step] and evaluations[step]."""

    def __init__(self) -> None:
        self.steps: dict[int, dict[str, float]] = {}
        self.evaluations: dict[int, tuple[np.ndarray, float]] = {}

    def step(self, step: int, columns: dict[str, float]) -> None:
        self.steps[step] = dict(columns)

    def evaluation(self, worker: Worker, sums: np.ndarray, time_s: float, step: int) -> None:
        self.evaluations[step] = sums.copy(), time_s


class Finished(NamedTuple):
    """A run that is over, or stopped: `parameters` is [rank, parameter]."""

    experiment: Experiment
    workers: list[Worker]
    rows: list[Rows]

    @property
    def parameters(self) -> np.ndarray:
        return np.array([worker.parameters.flat for worker in self.workers])

    @property
    def mean(self) -> np.ndarray:
        return self.parameters.mean(axis=0)


def prepare(
    experiment: Experiment,
    ranks: int,
    dataset: Dataset | None = None,
    step_time: Callable[[int, int], float] | None = None,
    **changes: Any,
) -> tuple[Clock, Finished]:
    """The clock and the workers on it, nothing run yet. `changes`: fields of the experiment."""
    experiment = replace(experiment, **changes)
    experiment.check()
    dataset = load(experiment) if dataset is None else dataset
    experiment = resolve_for(experiment, dataset, ranks)
    rows = [Rows() for _ in range(ranks)]
    clock, workers = world(experiment, dataset, rows)
    if step_time is not None:
        clock.step_time = step_time
    return clock, Finished(experiment, workers, rows)


def virtual(
    experiment: Experiment,
    ranks: int,
    generator: Algorithm | None = None,
    touch: Callable[[Worker], object] = lambda worker: None,
    **options: Any,
) -> Finished:
    """Run `experiment`, or `generator` for its algorithm, on virtual ranks.

    `touch` sees each worker before the run; `options` are those of `prepare`.
    """
    clock, finished = prepare(experiment, ranks, **options)
    for worker in finished.workers:
        touch(worker)
    run = generator or (lambda worker: algorithm_run(finished.experiment, worker))
    clock.run([run(worker) for worker in finished.workers])
    return finished
