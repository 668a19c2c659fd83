"""One run of virtual servers and workers, driven from Python, with what a study keeps of it."""

import time
from collections.abc import Mapping
from typing import Any

from virtual_run import significant

from mpisgd.data import Dataset
from mpisgd.drivers.virtual_servers import Ledger, check_finite, world
from mpisgd.experiment.building import resolve_for
from mpisgd.experiment.experiment import Experiment
from mpisgd.servers.roles import Builder
from mpisgd.training.evaluation import shard_sums
from mpisgd.training.worker import NotFinite

COLUMNS = ("step", "time_s", "loss", "accuracy", "samples_computed", "samples_used")


class ServedRun:
    """A run that has not begun. `values`: an Experiment's fields; `enough`: an accuracy at which it
    stops, before its steps are over."""

    def __init__(
        self, values: Mapping[str, Any], ranks: int, dataset: Dataset, enough: float = 2.0
    ):
        self.experiment = resolve_for(Experiment.read(values), dataset, ranks)
        self.enough, self.rows = enough, _Rows()
        self.evaluations: list[dict[str, Any]] = []
        builder = Builder(self.experiment, dataset)
        self.evaluator = builder.evaluator(self)
        self.virtual_servers = world(builder, self.evaluator, self.rows)
        self.cpu_s = 0.0

    def finish(self) -> str:
        """Run to the end; why it ended early, or an empty text."""
        began = time.process_time()
        try:
            self.virtual_servers.run()
            check_finite(self.virtual_servers.servers)
        except NotFinite as failure:
            return str(failure)
        finally:
            self.cpu_s = time.process_time() - began
        return ""

    def evaluation(self, **row: Any) -> None:
        """The evaluator's store: keep the row, and stop where it is enough."""
        self.evaluations.append(row)
        if row["accuracy"] >= self.enough:
            for site in self.virtual_servers.server_sites:
                site.asked_to_stop = True

    def flush(self) -> None:
        """Nothing is held back."""

    @property
    def columns(self) -> dict[str, list[float]]:
        """COLUMNS of the evaluations."""
        return {name: [significant(row[name]) for row in self.evaluations] for name in COLUMNS}

    def final_test(self, dataset: Dataset) -> tuple[float, float]:
        """(loss, accuracy) of the last evaluation's parameters on the test samples of `dataset`."""
        evaluator = self.evaluator
        loss, correct, samples, *_ = shard_sums(
            evaluator.model, dataset, evaluator.parameters, None, 0, 1
        )
        return significant(loss / samples), significant(correct / samples)


class _Rows(Ledger):
    """All rows of /updates."""

    def __init__(self) -> None:
        super().__init__(None)

    def add(self, row: dict[str, float]) -> None:
        self.rows.append(row)
