"""Rows on their way to the result file: every rank's to rank 0, without anyone waiting."""

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from allreduce.communicator import Communicator, Request
from allreduce.waiting import wait_for
from mpisgd.store.schema import Field, check_columns, group
from mpisgd.store.weights import Weights

STEPS = group("steps")
NAMES = frozenset(field.name for field in STEPS)
FLIGHT = ("flight_start_s", "flight_end_s")  # of the averages that arrived in a step: an event
WIDTH = 1 + len(STEPS) + len(FLIGHT)
ROWS = 64  # rows in a message
INTERVAL = 2.0  # s between messages, and between flushes of the file
ROW, END = 1.0, -1.0  # marks: a row; this rank sends no more


class Store(Protocol):
    """Where results go: writer.Writer, remote.RemoteWriter or memory.MemoryStore."""

    def steps(self, rank: int, first: int, columns: Mapping[str, Any]) -> None: ...

    def evaluation(self, **row: float) -> None: ...

    def event(
        self, rank: int, lane: str, name: str, start_s: float, end_s: float, step: int
    ) -> None: ...

    def updates(self, rows: Iterable[Mapping[str, float]]) -> None: ...

    def restart(self, **row: Any) -> None: ...

    def flush(self) -> None: ...

    def settle(self) -> None: ...

    def complete(self, summary: Mapping[str, Any], weights: Weights | None = None) -> None: ...

    def close(self, reason: str | None = None) -> None: ...


class Rows:
    """Rows of `width` numbers from every rank to rank 0, without anyone waiting.

    `deliver(rank, rows)` is called on rank 0 with rows (n, width), in each rank's own order;
    `after()` when some have been.
    """

    def __init__(
        self,
        comm: Communicator,
        width: int,
        tag: int,
        deliver: Callable[[int, np.ndarray], object],
        *,
        after: Callable[[], object] = lambda: None,
        deadline: float = 60.0,
    ):
        self.comm, self.tag, self.deadline = comm, tag, deadline
        self.rank, self.deliver, self.after = comm.Get_rank(), deliver, after
        self._table = np.zeros((ROWS, 1 + width))  # a mark, and the row
        self._count, self._sent_at = 0, time.monotonic()
        self._sends: list[tuple[Request, np.ndarray]] = []
        self.shipped = self.added = 0  # messages and rows so far
        self._received = [0] * comm.Get_size()
        self._open = set(range(1, comm.Get_size())) if self.rank == 0 else set()

    def add(self, row: Sequence[float]) -> None:
        """Take one row."""
        self._table[self._count] = ROW, *row
        self.added += 1
        self._count += 1
        self.look()

    def look(self) -> None:
        """Hand over what there is when it is time to."""
        if self._count == ROWS or time.monotonic() - self._sent_at > INTERVAL:
            self._ship()

    def hand_over(self) -> None:
        """All that there is, now."""
        self._ship()

    def catch_up(self, shipped: Sequence[int]) -> None:
        """On rank 0: until so many messages of each rank have been delivered."""

        def missing() -> list[int]:
            return [rank for rank in self._open if self._received[rank] < shipped[rank]]

        def all_there() -> bool:
            self._receive()
            return not missing()

        wait_for(all_there, lambda: self._waits(missing()), self.deadline)

    def finish(self, without: Collection[int] = ()) -> None:
        """Hand over what is left; on rank 0, until every rank's last row is there, but for those
        `without`."""
        self._ship()
        if self.rank:
            self._table[0, 0] = END
            self._count = 1
            self._ship()
        self._open.difference_update(without)

        def all_there() -> bool:
            self._receive()
            return not self._open and self._sent()

        wait_for(all_there, lambda: self._waits(sorted(self._open)), self.deadline)
        self.after()

    def _waits(self, missing: list[int]) -> str:
        ranks = ", ".join(map(str, missing)) or "0"
        told = f"rank {self.rank} waited {self.deadline:.0f} s for rank {ranks}"
        return f"{told} to hand over its records"

    def _ship(self) -> None:
        table, count = self._table, self._count
        self._count, self._sent_at = 0, time.monotonic()
        if self.rank == 0:
            if count:
                self.deliver(0, table[:count, 1:])
            self._receive()
            self.after()
        elif count:
            table[count:, 0] = 0
            self._sends.append((self.comm.Isend(table, 0, self.tag), table))
            self.shipped += 1
            self._table = np.zeros_like(table)
            self._sent()

    def _sent(self) -> bool:
        self._sends = [(request, rows) for request, rows in self._sends if not request.Test()]
        return not self._sends

    def _receive(self) -> None:
        for rank in list(self._open):
            while rank in self._open and self.comm.Iprobe(rank, self.tag):
                table = np.zeros_like(self._table)
                self.comm.Recv(table, rank, self.tag)
                self._received[rank] += 1
                if table[0, 0] == END:
                    self._open.discard(rank)
                else:
                    self.deliver(rank, table[table[:, 0] == ROW, 1:])


def packed(step: int, columns: Mapping[str, float]) -> list[float]:
    """A row of WIDTH numbers: the step, the columns of /steps (what is not reported as the schema
    fills it), and FLIGHT. UsageError for a column that the schema lacks."""
    if not columns.keys() - FLIGHT <= NAMES:
        check_columns("steps", columns.keys() - FLIGHT)
    values = [columns.get(field.name, field.fill) for field in STEPS]
    return [step, *values, *(columns.get(name, math.nan) for name in FLIGHT)]  # type: ignore


def store_rows(store: Store, rank: int, rows: np.ndarray) -> None:
    """Rows of `packed`, of consecutive steps, to a store.Writer."""
    columns = {
        field.name: values
        for field, values in zip(STEPS, rows[:, 1 : 1 + len(STEPS)].T, strict=True)
        if (rank == 0 or "rank" in field.dims) and _reported(field, values)
    }
    store.steps(rank, int(rows[0, 0]), columns)
    starts, ends = rows[:, -len(FLIGHT) :].T
    for row in np.flatnonzero(np.isfinite(ends)):
        step = int(rows[row, 0])
        store.event(rank, "flight", "mean", float(starts[row]), float(ends[row]), step)


def _reported(field: Field, values: np.ndarray) -> bool:
    """Whether a column holds anything but what stands for nothing."""
    return bool((~np.isnan(values) if field.dtype.startswith("float") else values >= 0).any())
