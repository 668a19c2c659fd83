"""A result in memory: the methods of a Writer, and what a Run has. No HDF5."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from mpisgd.store.schema import LANES, NAMES, Field, check_columns, fields
from mpisgd.store.weights import Weights

Columns = Mapping[str, np.ndarray]


class Record(NamedTuple):
    """What is in a result file, by the names that reader.Run has for it."""

    config: dict[str, Any]
    environment: dict[str, Any]
    ranks: int
    virtual: bool
    complete: bool
    reason: str | None
    summary: dict[str, Any]
    reported: np.ndarray  # [rank], rows of /steps
    steps: Columns  # [step, rank]; rate: [step]
    evaluation: Columns
    updates: Columns
    events: Columns
    restarts: list[dict[str, Any]]
    weights: Weights | None = None


class MemoryStore:
    """Keeps what a Writer would write, see there; `record()` says what there is."""

    def __init__(
        self,
        *,
        config: Mapping[str, Any],
        environment: Mapping[str, Any],
        ranks: int,
        kind: str = "train",
        virtual: bool = False,
    ):
        self.config, self.environment = dict(config), dict(environment)
        self.ranks, self.virtual = ranks, virtual
        self._complete = False
        self._reason: str | None = None
        self._summary: dict[str, Any] = {}
        self._weights: Weights | None = None
        self._fields = {field.path: field for field in fields(kind)}
        self._pieces: list[tuple[int, int, dict[str, np.ndarray]]] = []
        self._rows: dict[str, list[Mapping[str, float]]] = {}
        self._restarts: list[dict[str, Any]] = []

    def steps(self, rank: int, first: int, columns: Columns) -> None:
        check_columns("steps", columns)
        self._pieces.append((rank, first, {n: np.array(v, ndmin=1) for n, v in columns.items()}))

    def evaluation(self, **row: float) -> None:
        self._append("evaluation", row)

    def updates(self, rows: Iterable[Mapping[str, float]]) -> None:
        for row in rows:
            self._append("updates", row)

    def event(self, rank: int, lane: str, name: str, start_s: float, end_s: float, step: int):
        where = {"rank": rank, "lane": LANES.index(lane), "name": NAMES.index(name)}
        self._append("events", where | {"start_s": start_s, "end_s": end_s, "step": step})

    def restart(self, **row: Any) -> None:
        self._restarts.append(row)

    def flush(self) -> None:
        """All is kept at once."""

    def settle(self) -> None:
        """All is kept at once."""

    def complete(self, summary: Mapping[str, Any], weights: Weights | None = None) -> None:
        self._complete, self._summary = True, dict(summary)
        self._weights = weights

    def close(self, reason: str | None = None) -> None:
        if not self._complete:
            self._reason = reason

    def record(self) -> Record:
        """What there is by now."""
        tables = {name: self._table(name) for name in ("evaluation", "updates", "events")}
        reported = np.zeros(self.ranks, np.int64)
        for rank, first, columns in self._pieces:
            reported[rank] = max(reported[rank], first - 1 + _length(columns))
        return Record(
            self.config, self.environment, self.ranks, self.virtual, self._complete, self._reason,
            self._summary, reported, self._steps(int(reported.max(initial=0))),
            restarts=self._restarts, weights=self._weights, **tables,
        )  # fmt: skip

    def _append(self, group: str, row: Mapping[str, float]) -> None:
        check_columns(group, row)
        self._rows.setdefault(group, []).append(row)

    def _table(self, group: str) -> Columns:
        rows = self._rows.get(group, [])
        given = {name for row in rows for name in row}
        return {
            field.name: np.array([row.get(field.name, field.fill) for row in rows], field.dtype)
            for field in self._fields.values()
            if field.group == group and field.name in given
        }

    def _steps(self, count: int) -> Columns:
        found: dict[str, np.ndarray] = {}
        for rank, first, columns in self._pieces:
            for name, values in columns.items():
                column = found.setdefault(name, self._empty(self._fields[f"steps/{name}"], count))
                rows = slice(first - 1, first - 1 + len(values))
                column[(rows, rank)[: column.ndim]] = values
        return found

    def _empty(self, field: Field, count: int) -> np.ndarray:
        shape = (count, self.ranks) if "rank" in field.dims else (count,)
        return np.full(shape, field.fill, field.dtype)


def _length(columns: Columns) -> int:
    return len(next(iter(columns.values()), ()))
