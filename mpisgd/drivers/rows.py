"""Rows of virtual ranks on their way to a store."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mpisgd.store.recording import Store, packed, store_rows
from mpisgd.training.evaluation import row
from mpisgd.training.worker import Worker

if TYPE_CHECKING:
    from mpisgd.checkpoint.resume import Resumed
    from mpisgd.values.progress import Bar

ROWS = 64  # of one rank handed to the store at once
UPDATES = 1024  # the same of /updates


class Recording:
    """Takes the rows of all ranks; hands them to the `store`, if there is one.

    `last`: the last row of /evaluation; `reported`: the last step of each rank.
    """

    def __init__(
        self,
        store: Store | None,
        bar: "Bar | None",
        ranks: int,
        resumed: "Resumed | None" = None,
    ):
        self.store, self.bar = store, bar
        self.last: dict[str, Any] = {}
        self.reported = [0] * ranks
        self.counts = {"evaluation": 0, "updates": 0}  # rows, those before a restart included
        if resumed is not None:
            self.last, self.counts = resumed.meta["evaluation"], self.counts | resumed.meta["keep"]
            self.reported = list(resumed.meta.get("reported", self.reported))
        self._steps: list[list[list[float]]] = [[] for _ in range(ranks)]
        self._updates: list[dict[str, float]] = []
        self._watch: Callable[[Mapping[str, Any]], object] = lambda row: None

    def watch(self, look: Callable[[Mapping[str, Any]], object]) -> None:
        """Call it with each row of /evaluation."""
        self._watch = look

    def step(self, rank: int, step: int, columns: dict[str, float]) -> None:
        """A row of /steps."""
        self.reported[rank] = step
        rows = self._steps[rank]
        rows.append(packed(step, columns))
        if len(rows) >= ROWS:
            self._flush_steps(rank)

    def update(self, row: dict[str, float]) -> None:
        """A row of /updates."""
        self.counts["updates"] += 1
        if self.bar is not None and row["server"] == 0 and row["used"]:
            self.bar.update()
        self._updates.append(row)
        if len(self._updates) >= UPDATES:
            self._flush_updates()

    def evaluation(self, **row: Any) -> None:
        """A row of /evaluation."""
        self.last = row
        self.counts["evaluation"] += 1
        if self.store is not None:
            self.store.evaluation(**row)
            self.store.flush()
        self._watch(row)

    def recorders(self, config: Mapping[str, Any]) -> list["RankRecorder"]:
        """One for each rank. `config`: the run's settings."""
        return [RankRecorder(self, rank, config) for rank in range(len(self.reported))]

    def told(self) -> dict[str, Any]:
        """What a checkpoint says of rows."""
        return {"evaluation": self.last, "keep": self.counts}

    def flush(self) -> None:
        """Hand over what there is."""
        for rank in range(len(self._steps)):
            self._flush_steps(rank)
        self._flush_updates()
        if self.store is not None:
            self.store.flush()

    def close(self, reason: str | None) -> None:
        """The run has ended: if for a `reason`, the store says so."""
        if self.bar is not None:
            self.bar.close()
        self.flush()
        if self.store is not None and reason is not None:
            self.store.close(reason=reason)

    def _flush_steps(self, rank: int) -> None:
        rows = self._steps[rank]
        if rows and self.store is not None:
            store_rows(self.store, rank, np.array(rows))
        rows.clear()

    def _flush_updates(self) -> None:
        if self._updates and self.store is not None:
            self.store.updates(self._updates)
        self._updates = []


class RankRecorder:
    """One averaging rank's: the first counts steps, and evaluates for all."""

    def __init__(self, recording: Recording, rank: int, config: Mapping[str, Any]):
        self.recording, self.rank, self.config = recording, rank, config

    def step(self, step: int, columns: dict[str, float]) -> None:
        if self.rank == 0 and self.recording.bar is not None:
            self.recording.bar.update()
        self.recording.step(self.rank, step, columns)

    def evaluation(self, worker: Worker, sums: np.ndarray, time_s: float, step: int) -> None:
        if self.rank == 0:
            self.recording.evaluation(**row(sums, worker, self.config, time_s, step))
