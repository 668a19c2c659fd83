"""One training run of virtual ranks, driven from Python, with recorders of the study's own."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from allreduce.evaluate import evaluate
from mpisgd.data import Dataset
from mpisgd.drivers import virtual
from mpisgd.experiment.building import algorithm_run, resolve_for
from mpisgd.experiment.experiment import Experiment
from mpisgd.models.statistics import moments, pooled
from mpisgd.store.environment import environment
from mpisgd.training.effective import effective_steps
from mpisgd.training.evaluation import row, shard_sums
from mpisgd.training.worker import NotFinite, Worker

DIGITS = 6  # significant ones, in the ledger


class Rows:
    """A recorder: rows of /evaluation, and `watch(rank, step)` at the end of each step."""

    def __init__(
        self, rank: int, config: Mapping[str, Any], watch: Callable[[int, int], object] | None
    ):
        self.rank, self.config, self.watch = rank, config, watch
        self.evaluations: list[dict[str, Any]] = []
        self.ends: list[float] = []

    def step(self, step: int, columns: Mapping[str, float]) -> None:
        self.ends.append(columns["start_s"] + columns["step_s"])
        if self.watch is not None:
            self.watch(self.rank, step)

    def evaluation(self, worker: Worker, sums: np.ndarray, time_s: float) -> None:
        self.evaluations.append(row(sums, worker, self.config, time_s))


class Run:
    """A run that has not begun. `values`: an Experiment's fields."""

    def __init__(
        self,
        values: Mapping[str, Any],
        ranks: int,
        dataset: Dataset,
        watch: Callable[[int, int], object] | None = None,
    ):
        self.experiment = resolve_for(Experiment.read(values), dataset, ranks)
        config, steps = self.experiment.config(), self.experiment.steps
        self.share = effective_steps(config, steps) / steps
        self.dataset = dataset
        self.rows = [Rows(rank, config, watch) for rank in range(ranks)]
        self.clock, self.workers = virtual.world(self.experiment, dataset, self.rows)
        self.cpu_s = 0.0

    def finish(self) -> str:
        """Run to the end; why it ended early, or an empty text."""
        began = time.process_time()
        try:
            self.clock.run([algorithm_run(self.experiment, worker) for worker in self.workers])
        except NotFinite as failure:
            return str(failure)
        finally:
            self.cpu_s = time.process_time() - began
        return ""

    @property
    def evaluations(self) -> dict[str, list[float]]:
        """Columns of the evaluations: steps, virtual seconds, loss, accuracy, training loss."""
        names = ("step", "time_s", "loss", "accuracy", "train_loss")
        rows = self.rows[0].evaluations
        return {name: [significant(row[name]) for row in rows] for name in names}

    def final_test(self, dataset: Dataset) -> tuple[float, float]:
        """(loss, accuracy) of the ranks' mean parameters on the test samples of `dataset`."""
        copies = [worker.parameters.like() for worker in self.workers]
        for copy, worker in zip(copies, self.workers, strict=True):
            copy.flat[...] = worker.parameters.flat
        evaluate(self.clock.schedule, [copy.buffer for copy in copies], mean=True)
        model = self.workers[0].model
        kept = sum(moments(worker.model) for worker in self.workers)
        with pooled(model, np.asarray(kept)):
            loss, correct, samples, *_ = shard_sums(model, dataset, copies[0], None, 0, 1)
        return significant(loss / samples), significant(correct / samples)


def significant(value: float) -> float:
    """`value` with DIGITS significant digits."""
    return float(f"{value:.{DIGITS}g}")


def made_with() -> dict[str, Any]:
    """Commit and versions, for a line of the ledger."""
    found = environment()
    numpy_version = found["packages"].get("numpy")
    return {
        "commit": found["git_commit"],
        "python": found["python"],
        "numpy": numpy_version,
        "blas": found["blas"],
    }


def spread(values: Sequence[float]) -> tuple[float, float]:
    """(mean, sample standard deviation over seeds); the latter NaN for one value."""
    array = np.asarray(values, np.float64)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else float("nan")
