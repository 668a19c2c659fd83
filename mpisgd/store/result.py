"""What a training run has come to, for Python: its tables as named arrays, and its parameters."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from mpisgd.data import Dataset
    from mpisgd.experiment.experiment import Experiment
    from mpisgd.store.memory import Columns, Record
    from mpisgd.store.reader import Run


class Result:
    """A run, from memory or a file. Columns, their dimensions and units: docs/result-files.md.

    `steps`: name -> [step, rank] (rate: [step]); `evaluation`, `updates`, `events`: name -> [row].
    `parameters`: name -> array, of the last evaluation; None of a run that was only read.
    `complete`; else `reason` says why it ended early, and `code` is the command's exit code.
    """

    def __init__(
        self,
        record: "Record | Run",
        parameters: Mapping[str, np.ndarray] | None = None,
        code: int = 0,
        evaluate: "Callable[[Dataset], tuple[float, float]] | None" = None,
    ):
        self.record, self.parameters, self.code = record, parameters, code
        self._evaluate = evaluate

    def __getstate__(self) -> dict[str, Any]:
        """Copies in other processes cannot evaluate anew: that needs the run's own model."""
        return {**vars(self), "_evaluate": None}

    def evaluate(self, dataset: "Dataset") -> tuple[float, float]:
        """(loss, accuracy) of `parameters` on the test samples of another data set; of a run of
        virtual ranks in this process."""
        assert self._evaluate is not None, "only a run of virtual ranks can"
        return self._evaluate(dataset)

    @property
    def experiment(self) -> "Experiment":
        """What was run, with all that was filled in."""
        from mpisgd.experiment.recorded import recorded

        return recorded(self.record.config, "the result")

    @property
    def steps(self) -> "Columns":
        return self.record.steps

    @property
    def evaluation(self) -> "Columns":
        return self.record.evaluation

    @property
    def updates(self) -> "Columns":
        return self.record.updates

    @property
    def events(self) -> "Columns":
        return self.record.events

    @property
    def summary(self) -> dict[str, Any]:
        return self.record.summary

    @property
    def ranks(self) -> int:
        return self.record.ranks

    @property
    def virtual(self) -> bool:
        """Whether all seconds are simulated."""
        return self.record.virtual

    @property
    def complete(self) -> bool:
        return self.record.complete

    @property
    def reason(self) -> str | None:
        return self.record.reason

    def frame(self, table: str = "evaluation") -> Any:
        """A pandas DataFrame of a table, see frames.frame."""
        from mpisgd.store.frames import frame

        return frame(self, table)

    def xarray(self, table: str = "steps") -> Any:
        """An xarray Dataset of a table, see frames.dataset."""
        from mpisgd.store.frames import dataset

        return dataset(self, table)

    def __repr__(self) -> str:
        config = self.record.config
        told = "" if self.complete else f", {self.reason or 'not complete'}"
        last = [f"{n} {self.evaluation[n][-1]:.4g}" for n in ("loss", "accuracy")
                if len(self.evaluation.get(n, ()))]  # fmt: skip
        return f"Result({', '.join([config['algorithm'], f'{self.ranks} ranks', *last])}{told})"
