"""One training run of virtual ranks, with what studies keep of it."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import mpisgd
from mpisgd.data import Dataset
from mpisgd.experiment.building import resolve_for
from mpisgd.experiment.experiment import Experiment
from mpisgd.store.environment import environment
from mpisgd.training.effective import effective_steps

DIGITS = 6  # significant ones, in the ledger


class Run:
    """A run that has not begun. `values`: an Experiment's fields; `enough`: an accuracy at which it
    stops, before its steps are over."""

    def __init__(
        self,
        values: Mapping[str, Any],
        ranks: int,
        dataset: Dataset,
        enough: float | None = None,
    ):
        self.experiment = resolve_for(Experiment.read(values), dataset, ranks)
        steps = self.experiment.steps or 1
        self.share = effective_steps(self.experiment.config(), steps) / steps
        self._told = {**values, "ranks": ranks, "dataset": dataset}
        if enough is not None:
            self._told["until"] = lambda row: row["accuracy"] >= enough

    def finish(self) -> str:
        """Run to the end; why it ended early, or an empty text."""
        began = time.process_time()
        self.result = mpisgd.run(**self._told)
        self.cpu_s = time.process_time() - began
        return self.result.reason or ""

    @property
    def evaluations(self) -> dict[str, list[float]]:
        """Columns of the evaluations: steps, virtual seconds, loss, accuracy, training loss."""
        return self.columns("step", "time_s", "loss", "accuracy", "train_loss")

    def columns(self, *names: str) -> dict[str, list[float]]:
        """Columns of the evaluations, rounded."""
        table = self.result.evaluation
        return {name: [significant(value) for value in table.get(name, ())] for name in names}

    def final_test(self, dataset: Dataset) -> tuple[float, float]:
        """(loss, accuracy) of the last evaluation's parameters on the test samples of `dataset`."""
        loss, accuracy = self.result.evaluate(dataset)
        return significant(loss), significant(accuracy)


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
