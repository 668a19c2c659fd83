"""Write a result file as the run goes, so that a kill at any moment leaves a readable one.

The file beside the target is written in HDF5's single-writer mode: every block of metadata is
checksummed and reaches the file after what it points to. The counters of valid rows are written
after the rows, so that a reader sees whole rows only. `complete` writes a compact, compressed and
checksummed copy and renames it: at no moment is there a target that is not whole.
"""

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mpisgd.store import layout
from mpisgd.store.reader import Run, read
from mpisgd.store.schema import KINDS, LANES, NAMES, SCHEMA_VERSION, Field, check_columns, fields
from mpisgd.store.target import check_target, partial_path
from mpisgd.store.weights import COLUMN, Weights
from mpisgd.values import files
from mpisgd.values.errors import UsageError

RESERVE = 1 << 19  # bytes of disk taken ahead: HDF5 does not survive a write that fails


class StoreError(OSError):
    """The result file cannot be written: one line with the file and the reason."""


class Writer:
    """One result file. One process writes it, for all ranks; rows are buffered until `flush`."""

    def __init__(
        self,
        path: str | os.PathLike,
        *,
        kind: str,
        config: Mapping[str, Any],
        environment: Mapping[str, Any],
        ranks: int,
        virtual: bool = False,
        overwrite: bool = False,
        resume_at: int | Sequence[int] | None = None,
        keep: Mapping[str, int] | None = None,
    ):
        """Begin PATH.partial.

        resume_at: continue what PATH.partial or PATH holds up to this step, rather than begin;
        rows of later steps are dropped and `restart` should say why. Ranks that were at different
        steps give one each. `keep`: group -> how many of
        its rows to keep, where the step does not say.

        Raises UsageError (see `check_target`) and StoreError.
        """
        assert kind in KINDS
        check_target(path, overwrite=overwrite, resume=resume_at is not None)
        self.path = files.resolved(path)
        self.partial = partial_path(path)
        self.ranks = ranks
        self.fields = {field.path: field for field in fields(kind)}
        self._step_names = {f.name for f in self.fields.values() if f.group == "steps"}
        self._pieces: list[tuple[int, int, dict[str, np.ndarray]]] = []
        self._rows: dict[str, list[Any]] = {}
        self._failure: StoreError | None = None
        self._file: Any = None
        attributes = {
            "schema_version": SCHEMA_VERSION,
            "kind": kind,
            "complete": False,
            "virtual": bool(virtual),
            "ranks": ranks,
            "created_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        with self._guard():
            arrays = {
                "config": layout.text(config),
                "environment": layout.text(environment),
            }
            if resume_at is not None:
                # A complete file that is being extended lies beside the partial one, if any.
                with read(self.partial if self.partial.exists() else self.path) as run:
                    ends = np.broadcast_to(resume_at, ranks)
                    arrays = dict(_kept(run, ends, keep or {})) | arrays
            named = ((self.fields[name], values) for name, values in arrays.items())
            with files.replacing(self.partial) as begun:
                layout.create(begun, attributes, named, live=True)
                _reserve(begun, os.stat(begun).st_size + RESERVE)
            self._file = h5py.File(self.partial, "r+", libver="latest", locking=layout.LOCKING)
            self._reserved = 0
            self._inode = os.stat(self.partial).st_ino
            self._counts = {
                name: self._file[name][()] for name in self.fields if name.startswith("rows/")
            }
            self._file.swmr_mode = True

    def steps(self, rank: int, first: int, columns: Mapping[str, Any]) -> None:
        """Rows `first`, `first + 1`, ... (steps count from 1) of one rank: name -> 1-D array.

        Any order, any columns of /steps; a row stored twice keeps the later value.
        """
        copies = {name: np.array(values, ndmin=1) for name, values in columns.items()}
        shapes = {values.shape for values in copies.values()}
        assert first >= 1, first
        assert 0 <= rank < self.ranks, rank
        assert len(shapes) <= 1, shapes
        if not self._step_names.issuperset(copies):
            check_columns("steps", copies)
        if copies and shapes != {(0,)}:
            self._pieces.append((rank, first, copies))

    def evaluation(self, **row: float) -> None:
        """One row of /evaluation; columns not given read as not reported."""
        self._append("evaluation", row)

    def event(self, rank: int, lane: str, name: str, start_s: float, end_s: float, step: int):
        """One interval of a timeline; `lane` and `name` from the schema's lists."""
        self._append(
            "events",
            {
                "rank": rank,
                "lane": LANES.index(lane),
                "name": NAMES.index(name),
                "start_s": start_s,
                "end_s": end_s,
                "step": step,
            },
        )

    def events(self, array: np.ndarray) -> None:
        """Many intervals: a structured array with (some of) the columns of /events."""
        check_columns("events", array.dtype.names or ())
        for row in array:
            self._append("events", dict(zip(array.dtype.names or (), row, strict=True)))

    def updates(self, rows: Iterable[Mapping[str, float]]) -> None:
        """Rows of /updates, one for each gradient that a server was pushed."""
        for row in rows:
            self._append("updates", dict(row))

    def case(self, row: Mapping[str, Any], seconds: Any) -> None:
        """One case of a benchmark: what it was, and seconds [repetition, rank]."""
        block = np.atleast_2d(np.asarray(seconds, dtype=np.float64))
        assert block.shape[1] <= self.ranks, block.shape
        index = int(self._counts["rows/cases"][0]) + len(self._rows.get("samples/cases", ()))
        text = layout.encode(row, layout.ROW_WIDTH)
        self._rows.setdefault("samples/cases", []).append(text)
        wide = np.full((block.shape[0], self.ranks), np.nan)
        wide[:, : block.shape[1]] = block
        self._rows.setdefault("samples", []).extend(
            {"case": index, "seconds": repetition} for repetition in wide
        )

    def restart(self, **row: Any) -> None:
        """One row of /restarts: where the run was continued, and from what."""
        text = layout.encode(row, layout.ROW_WIDTH)
        self._rows.setdefault("restarts/rows", []).append(text)

    def settle(self) -> None:
        """As `flush`, and answered even by a writer in another process: then it is done."""
        self.flush()

    def flush(self) -> None:
        """Bring all rows so far to the file: they outlive a kill from here on.

        Raises StoreError when the disk is full or the file has vanished.
        """
        with self._guard():
            self._check_place()
            counts = {name: value.copy() for name, value in self._counts.items()}
            self._flush_steps(counts)
            self._flush_tables(counts)
            self._file.flush()  # the rows first ...
            for name, value in counts.items():
                if not np.array_equal(value, self._counts[name]):
                    self._file[name][...] = value
            self._file.flush()  # ... then what says that they are there
            self._counts = counts
            self._pieces.clear()
            self._rows.clear()

    def complete(self, summary: Mapping[str, Any], weights: Weights | None = None) -> None:
        """Flush, mark the run complete, with what was learned if it is to be kept, and move the
        file onto its target. Raises StoreError."""
        self.flush()
        with self._guard():
            self._file.close()
            self._file = None
            with files.replacing(self.partial) as whole:
                _compact(self.partial, whole, summary, weights)
            os.replace(self.partial, self.path)  # complete under its partial name: no loss between

    def close(self, reason: str | None = None) -> None:
        """End without completing: the file stays partial and, if it still can, says why."""
        if self._file is None:
            return
        if self._failure is None:
            with contextlib.suppress(StoreError):
                self.flush()
                with self._guard():
                    if reason is not None:
                        text = layout.encode({"reason": str(reason)[:400]}, layout.ROW_WIDTH)
                        self._file["reason"][...] = text
        with contextlib.suppress(Exception):
            used = self._file.id.get_filesize()
            self._file.close()
            if self._failure is None:
                os.truncate(self.partial, used)  # what was reserved and not needed
        self._file = None

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind, error, trace) -> None:
        self.close(None if error is None else f"{kind.__name__}: {error}")

    def _append(self, table: str, row: dict[str, Any]) -> None:
        check_columns(table, row)
        self._rows.setdefault(table, []).append(row)

    def _flush_steps(self, counts: dict[str, np.ndarray]) -> None:
        if not self._pieces:
            return
        low = min(first for _, first, _ in self._pieces) - 1
        high = max(first - 1 + _length(columns) for _, first, columns in self._pieces)
        for name in {name for _, _, columns in self._pieces for name in columns}:
            dataset = self._file[f"steps/{name}"]
            if dataset.shape[0] < high:
                dataset.resize(high, axis=0)
            block = dataset[low:high]  # ranks report at different times: keep what is there
            chosen = [piece for piece in self._pieces if name in piece[2]]
            lengths = [len(columns[name]) for _, _, columns in chosen]
            rows = np.concatenate(
                [np.arange(first - 1 - low, first - 1 - low + n)
                 for (_, first, _), n in zip(chosen, lengths, strict=True)]
            )  # fmt: skip
            ranks = np.repeat([rank for rank, _, _ in chosen], lengths)
            block[(rows, ranks)[: block.ndim]] = np.concatenate([c[name] for _, _, c in chosen])
            dataset[low:high] = block
        for rank, first, columns in self._pieces:
            end = first - 1 + _length(columns)
            counts["rows/steps"][rank] = max(counts["rows/steps"][rank], end)

    def _flush_tables(self, counts: dict[str, np.ndarray]) -> None:
        for table, rows in self._rows.items():
            single = table in self.fields  # a table of one JSON column
            counter = "rows/cases" if table == "samples/cases" else f"rows/{table.split('/')[0]}"
            low = int(counts[counter][0])
            high = low + len(rows)
            names = [table] if single else [f"{table}/{n}" for n in {n for r in rows for n in r}]
            for path in names:
                dataset = self._file[path]
                fill = self.fields[path].fill
                name = self.fields[path].name
                dataset.resize(high, axis=0)
                dataset[low:high] = np.array(
                    rows if single else [row.get(name, fill) for row in rows], dtype=dataset.dtype
                )
            counts[counter][0] = high

    def _check_place(self) -> None:
        if self._file is None:
            raise StoreError(f"{self.partial}: is closed")
        try:
            inode = os.stat(self.partial).st_ino
        except FileNotFoundError:
            inode = -1
        if inode != self._inode:
            why = "has vanished or was replaced while being written; is another run writing it?"
            raise StoreError(f"{self.partial}: {why}")
        needed = self._file.id.get_filesize() + self._growth()
        if needed > self._reserved:
            _reserve(self.partial, needed + RESERVE)
            self._reserved = needed + RESERVE

    def _growth(self) -> int:
        """At most how many bytes the next flush adds: twice the rows, and two chunks a column."""
        columns = {name for _, _, columns in self._pieces for name in columns}
        size = 0
        if self._pieces:
            high = max(first - 1 + _length(columns) for _, first, columns in self._pieces)
            stored = int(self._counts["rows/steps"].max(initial=0))
            size = 16 * max(0, high - stored) * self.ranks * len(columns)
        chunks = len(columns)
        for table, rows in self._rows.items():
            wide = layout.ROW_WIDTH if table in self.fields else 8 * (self.ranks + 12)
            size += 2 * len(rows) * wide
            chunks += 12
        return size + 2 * chunks * max(layout.CHUNK_BYTES, 16 * 8 * self.ranks)

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        """Any failure to write becomes one StoreError, and stays the answer from then on."""
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except UsageError:
            raise
        except StoreError as failure:
            self._failure = failure
            raise
        except (OSError, RuntimeError, ValueError) as error:
            number = getattr(error, "errno", None)
            line = " ".join((os.strerror(number) if number else str(error)).split())[:200]
            self._failure = StoreError(f"{self.partial}: cannot be written: {line}")
            raise self._failure from error


def _reserve(path: Path, size: int) -> None:
    """Take `size` bytes of disk for the file. OSError if they are not there."""
    if not hasattr(os, "posix_fallocate"):
        return
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # it cannot be asked
            raise
    finally:
        os.close(descriptor)


def _length(columns: Mapping[str, np.ndarray]) -> int:
    return len(next(iter(columns.values())))


def _kept(run: Run, ends: np.ndarray, keep: Mapping[str, int]) -> Iterator[tuple[str, np.ndarray]]:
    """What a run continued after the step `ends[rank]` of each rank keeps of what it had stored:
    path -> rows."""
    chosen: dict[str, Any] = {"steps": slice(0, int(ends.max())), "parameters": slice(0)}
    if run.rows["evaluation/step"]:
        chosen["evaluation"] = run.column("evaluation/step") <= ends.max()
    if run.rows["events/step"]:
        chosen["events"] = run.column("events/step") <= ends[run.column("events/rank") % run.ranks]
    for group, count in keep.items():
        chosen[group] = np.arange(run.rows[f"{group}/step"]) < count
    for field, values in run.arrays():
        if field.path == "rows/steps":
            yield field.path, np.minimum(values, ends)
        elif field.path.startswith("rows/") and field.name in chosen:
            yield field.path, np.array([np.count_nonzero(chosen[field.name])])
        elif field.dims:
            yield field.path, values[chosen.get(field.group, slice(None))]


def _compact(
    source: Path, destination: Path, summary: Mapping[str, Any], weights: Weights | None
) -> None:
    """A complete copy of the partial file `source`: smaller, and its damage can be detected."""
    told = dict(summary) | ({} if weights is None else weights.described())
    with read(source) as run:
        attributes = dict(run.attributes) | {"complete": True}
        arrays: Iterable[tuple[Field, np.ndarray]] = (
            (field, layout.text(told) if field.path == "summary" else values)
            for field, values in run.arrays()
        )
        if weights is not None:
            values = [(f, weights.values()) for f in fields(run.kind) if f.path == COLUMN]
            arrays = chain(arrays, values)
        layout.create(destination, attributes, arrays, live=False)
