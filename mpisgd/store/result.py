"""What a training run has come to, for Python: its tables as named arrays, and its parameters."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from mpisgd.values.errors import UsageError

if TYPE_CHECKING:
    from mpisgd.data import Dataset
    from mpisgd.data.shards import Sampler
    from mpisgd.experiment.experiment import Experiment
    from mpisgd.store.memory import Columns, Record
    from mpisgd.store.reader import Run
    from mpisgd.store.weights import Weights


class Result:
    """A run, from memory or a file. Columns, their dimensions and units: docs/result-files.md.

    `steps`: name -> [step, rank] (rate: [step]); `evaluation`, `updates`, `events`: name -> [row].
    `complete`; else `reason` says why it ended early, and `code` is the command's exit code.
    """

    def __init__(
        self,
        record: "Record | Run",
        weights: "Weights | None" = None,
        code: int = 0,
        evaluate: "Callable[[Dataset], tuple[float, float]] | None" = None,
    ):
        self.record, self.code = record, code
        self._weights = weights
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
    def weights(self) -> "Weights | None":
        """The averaged model as evaluated last: parameters, and what normalising layers remember.
        Of a run that was only read: if it was made with --keep-parameters."""
        return self.record.weights if self._weights is None else self._weights

    @property
    def parameters(self) -> Mapping[str, np.ndarray] | None:
        """name -> array, as of `weights`."""
        return None if self.weights is None else self.weights.parameters

    @cached_property
    def _sampler(self) -> "Sampler":
        from mpisgd.data.shards import Sampler
        from mpisgd.experiment.building import load

        experiment = self.experiment
        samples = load(experiment).samples
        return Sampler(samples, experiment.workers, experiment.batch, experiment.seed)

    def batch(self, step: int, worker: int = 0) -> np.ndarray:
        """Which training samples `worker` had at its `step`, from 1: (rows,) indices, in the order
        in which it read them; docs/train.md says by which rule. Loads the data set, once.

        With servers workers count their own steps; with --requeue `step` counts batches, of which
        one may have been computed twice. UsageError for a step or worker that the run has not.
        """
        experiment = self.experiment
        if not 1 <= step <= (experiment.steps or 1):
            raise UsageError("step", step, f"1 to {experiment.steps}")
        if not 0 <= worker < experiment.workers:
            raise UsageError("worker", worker, f"0 to {experiment.workers - 1}")
        return self._sampler.indices(step, worker)

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

    def _repr_html_(self) -> str:
        """As a notebook shows it: a table, and the curve."""
        from mpisgd.store.notebook import shown

        return shown(self)

    def __repr__(self) -> str:
        config = self.record.config
        told = "" if self.complete else f", {self.reason or 'not complete'}"
        last = [f"{n} {self.evaluation[n][-1]:.4g}" for n in ("loss", "accuracy")
                if len(self.evaluation.get(n, ()))]  # fmt: skip
        return f"Result({', '.join([config['algorithm'], f'{self.ranks} ranks', *last])}{told})"
