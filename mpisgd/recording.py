"""Rows on their way to the result file: every rank's to rank 0, without anyone waiting."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from allreduce.errors import Stalled
from allreduce.plan import wait_until
from mpisgd import evaluation

COLUMNS = (
    "start_s", "step_s", "compute_s", "update_s", "poll_s", "wait_s", "polls", "samples", "loss",
)  # fmt: skip
ROWS = 64  # rows in a message
INTERVAL = 2.0  # s between messages, and between flushes of the file
TAG = 32000  # MPI promises 32,767
END = -1.0  # where a row has its step: this rank sends no more


class Recorder:
    """One rank's rows. Rank 0 holds the `store`, a store.Writer, or None to keep nothing.

    `effective`: share of the work that outlives merges. `on_step`: called on rank 0 at each step.
    """

    def __init__(
        self,
        comm: Any,
        store: Any,
        effective: float,
        *,
        deadline: float = 60.0,
        on_step: Callable[[], object] | None = None,
    ):
        self.comm, self.store, self.effective, self.deadline = comm, store, effective, deadline
        self.rank, self.on_step = comm.Get_rank(), on_step
        self.last_evaluation: dict[str, Any] = {}
        self._rows, self._rates = _table(), np.zeros(ROWS)
        self._count, self._sent_at = 0, time.monotonic()
        self._sends: list[tuple[Any, np.ndarray]] = []
        self._open = set(range(1, comm.Get_size())) if self.rank == 0 else set()

    def step(self, step: int, columns: dict[str, float]) -> None:
        """Take one row of /steps."""
        row = self._rows[self._count]
        row[0] = step
        row[1:] = [columns[name] for name in COLUMNS]
        self._rates[self._count] = columns["rate"]
        self._count += 1
        if self.on_step is not None:
            self.on_step()
        if self._count == ROWS or time.monotonic() - self._sent_at > INTERVAL:
            self._ship()

    def evaluation(self, worker: Any, sums: np.ndarray, time_s: float) -> None:
        """Take the sums over all ranks of one evaluation."""
        self.last_evaluation = evaluation.row(sums, worker, self.effective, time_s)
        if self.store is not None:
            self.store.evaluation(**self.last_evaluation)

    def finish(self) -> None:
        """Ship what is left; on rank 0, until every rank's last row is there."""
        self._ship()
        if self.rank:
            self._rows[0, 0] = END
            self._count = 1
            self._ship()
        began = time.monotonic()

        def all_there() -> bool:
            self._receive()
            if time.monotonic() - began > self.deadline:
                missing = ", ".join(map(str, sorted(self._open))) or "0"
                raise Stalled(f"rank {self.rank} waited {self.deadline:.0f} s for rank {missing} "
                              "to hand over its records")  # fmt: skip
            return not self._open and self._sent()

        wait_until(all_there)

    def _ship(self) -> None:
        """Hand over the rows so far."""
        if self.rank == 0:
            self._store(0, self._rows[: self._count])
            self._receive()
            if self.store is not None:
                self.store.flush()
        elif self._count:
            rows = self._rows
            rows[self._count :, 0] = 0
            self._sends.append((self.comm.Isend(rows, 0, TAG), rows))
            self._rows = _table()
            self._sent()
        self._count, self._sent_at = 0, time.monotonic()

    def _sent(self) -> bool:
        self._sends = [(request, rows) for request, rows in self._sends if not request.Test()]
        return not self._sends

    def _receive(self) -> None:
        for rank in list(self._open):
            while rank in self._open and self.comm.Iprobe(rank, TAG):
                rows = _table()
                self.comm.Recv(rows, rank, TAG)
                if rows[0, 0] == END:
                    self._open.discard(rank)
                else:
                    self._store(rank, rows[rows[:, 0] > 0])

    def _store(self, rank: int, rows: np.ndarray) -> None:
        if self.store is None or not len(rows):
            return
        columns = dict(zip(COLUMNS, rows[:, 1:].T, strict=True))
        if rank == 0:
            columns["rate"] = self._rates[: len(rows)]
        self.store.steps(rank, int(rows[0, 0]), columns)


def _table() -> np.ndarray:
    return np.zeros((ROWS, 1 + len(COLUMNS)))
