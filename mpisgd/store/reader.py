"""Read result files, whole, partial or still being written; refuse damaged and foreign ones.

Nothing in a file is trusted: no link out of it is followed, no object is made from its bytes, and
every dataset must have the type and the dimensions of the schema.
"""

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import h5py
import numpy as np

from mpisgd.store import texts
from mpisgd.store.opening import DamagedFile, attributes, line, opened
from mpisgd.store.schema import FIELDS, Field, counted, fields
from mpisgd.store.schema import group as columns
from mpisgd.store.target import partial_path
from mpisgd.store.weights import ARRAYS, COLUMN, Weights, digest_of, restored
from mpisgd.values.errors import UsageError

TABLES = ("steps", "evaluation", "updates", "events")  # groups that a Run has by their name
LINKS = {name.encode() for field in FIELDS for name in (field.group, field.name)}  # that are used
# gzip shrinks at most about 1,032 to 1, and measured times hardly: a file that claims more than the
# smaller of these is damaged or malicious.
MOST_EXPANSION, ALLOWANCE = 2000, 1 << 24
LIKELY_EXPANSION, LIKELY_SIZE = 64, 1 << 28


class Case(NamedTuple):
    """One case of a benchmark: what it was, and seconds [repetition, rank]."""

    row: dict[str, Any]
    seconds: np.ndarray


def read(path: str | os.PathLike) -> "Run":
    """The run in `path`, or in PATH.partial when there is no PATH. Raises DamagedFile."""
    found = Path(path)
    if not os.path.exists(found) and os.path.exists(partial_path(found)):
        found = partial_path(found)
    if os.path.isdir(found):
        raise DamagedFile(str(path), None, "is a folder, not a result file")
    return Run(found)


class Run:
    """One result file. Columns are read when asked for, and may then raise DamagedFile."""

    def __init__(self, path: Path):
        self.path = path
        self._file: h5py.File | None = opened(path)
        try:
            with self.guard():
                self._size = os.stat(path).st_size
                self.attributes = attributes(path, self._file)
                self.kind: str = self.attributes["kind"]
                self.ranks: int = self.attributes["ranks"]
                self.complete: bool = self.attributes["complete"]
                self.virtual: bool = self.attributes["virtual"]
                self.schema_version: int = self.attributes["schema_version"]
                self._fields = {field.path: field for field in fields(self.kind)}
                self._groups: dict[str, tuple[h5py.h5g.GroupID, dict[bytes, int]]] = {}
                self._shapes: dict[str, tuple[int, ...]] = {}
                self._sizes: dict[str, int] = {}  # bytes of an element
                self._datasets: dict[str, h5py.h5d.DatasetID] = {}
                # How many steps each rank reported [rank]; a killed run's ranks may differ.
                self.reported = np.zeros(0, int)
                self.rows = self._counts()
                self._check_size()
                self.config = self._text("config")
                if self.kind == "train" and (reason := texts.wrong(self.config, self.ranks)):
                    self.damaged(f"/config: {reason}")
                self.environment = self._text("environment")
                self.summary = self._text("summary")
                self.reason: str | None = self._text("reason").get("reason")
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Close the file; what was read stays. A column asked for later opens it again."""
        self._datasets.clear()
        self._groups.clear()
        if self._file is not None:  # h5py looks through all files that it knows
            self._file.close()
            self._file = None

    def release(self) -> None:
        """Forget what is long, and close the file of a complete run, which does not change: for
        who has many. What is asked for later is read again."""
        for name in ("steps", "updates", "events", "cases"):
            self.__dict__.pop(name, None)
        if self.complete:
            self.close()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def steps(self) -> "Table":
        """/steps: name -> array [step, rank] (rate: [step]); step 1 is row 0."""
        return Table(self, "steps")

    @cached_property
    def evaluation(self) -> "Table":
        """/evaluation: name -> array [evaluation]."""
        return Table(self, "evaluation")

    @cached_property
    def updates(self) -> "Table":
        """/updates: name -> array [push]; empty for algorithms without servers."""
        return Table(self, "updates")

    @cached_property
    def events(self) -> "Table":
        """/events: name -> array [event]."""
        return Table(self, "events")

    @cached_property
    def restarts(self) -> list[dict[str, Any]]:
        """/restarts, one dict a restart."""
        if not self.has("restarts/rows"):
            return []
        return [self._parse("restarts/rows", text) for text in self.column("restarts/rows")]

    @cached_property
    def weights(self) -> Weights | None:
        """What was learned, if it was kept; believed only if its digest is the run's."""
        if not self.has(COLUMN) or not len(values := self.column(COLUMN)):
            return None
        found = restored(self.summary.get(ARRAYS), values)
        told = self.summary.get("parameters_sha256")
        if found is None or digest_of(found.parameters) != told:
            self.damaged(f"/{COLUMN} is not what /summary says of it")
        return found

    @cached_property
    def cases(self) -> list[Case]:
        """/samples, one Case a case, in the order they were stored."""
        if self.kind != "bench":
            return []
        rows = [self._parse("samples/cases", text) for text in self.column("samples/cases")]
        case, seconds = self.column("samples/case"), self.column("samples/seconds")
        return [Case(row, seconds[case == index]) for index, row in enumerate(rows)]

    def column(self, path: str) -> np.ndarray:
        """The valid rows of one dataset, such as "steps/wait_s". Raises DamagedFile."""
        rows = self.rows[path]
        with self.guard():
            dataset = self._dataset(path)  # whole, without the slow way of selections, or its head
            whole = rows >= self._shapes[path][0]
            values = self._values(path, dataset) if whole else h5py.Dataset(dataset)[:rows]
            if len(values) == rows:
                return values
            padded = np.full((rows, *values.shape[1:]), self._fields[path].fill, values.dtype)
            padded[: len(values)] = values
            return padded

    def arrays(self) -> Iterator[tuple[Field, np.ndarray]]:
        """Every dataset with its valid rows, one at a time; columns never reported are left out."""
        for field in self._fields.values():
            if self.has(field.path):
                yield field, self.column(field.path)

    def _dataset(self, path: str) -> h5py.h5d.DatasetID:
        """One dataset, of the file that is open or has to be opened again."""
        if path not in self._datasets:
            if not self._file:
                self._file = opened(self.path)
                if attributes(self.path, self._file) != self.attributes:
                    self.damaged("was replaced while it was reported on")
            self._check(self._fields[path])
        return self._datasets[path]

    def check(self) -> None:
        """Read all that was not read at the start, each column once, so that damage is found now
        and not in the middle of something. Raises DamagedFile."""
        _ = self.restarts, self.cases, *(dict(getattr(self, name)) for name in TABLES)
        if self.has(COLUMN):
            self.column(COLUMN)

    def has(self, path: str) -> bool:
        """Whether anything was ever reported in this dataset."""
        return self._shapes.get(path, (0,))[0] > 0

    def damaged(self, reason: str) -> NoReturn:
        """Raise DamagedFile for this file."""
        raise DamagedFile(str(self.path), None, reason)

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """What HDF5 says of damage becomes one line with the file's name."""
        try:
            yield
        except UsageError:
            raise
        except (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError) as error:
            raise DamagedFile(str(self.path), None, f"is damaged ({line(error)})") from error

    def _check(self, field: Field) -> bool:
        """Whether there is this dataset; a column may be younger than the file. DamagedFile for one
        that is not linked within the file, of its type and dimensions."""
        group, links = self._group(field, field.group)
        name = field.name.encode()
        if group is None or not self._linked(links, name, field):
            return False
        here = self._opened(group, name, field)
        kind, shape = here.get_type(), here.shape
        if field.dtype == "json":
            fits = isinstance(kind, h5py.h5t.TypeStringID) and not kind.is_variable_str()
        else:
            fits = kind == _type(field.dtype)
        if not fits:
            self.damaged(f"/{field.path} has type {here.dtype}, not {field.dtype}")
        fixed = {"rank": self.ranks, "one": 1}
        dims = field.dims or ("one",)
        if len(shape) != len(dims) or shape != tuple(map(fixed.get, dims, shape)):
            self.damaged(f"/{field.path} has shape {shape}, not {list(dims)}")
        if shape[0] and _elsewhere(here.get_create_plist()):
            self.damaged(f"/{field.path} is not a dataset of this file")
        self._sizes[field.path], self._shapes[field.path] = kind.get_size(), shape
        self._datasets[field.path] = here
        return True

    def _opened(self, group: Any, name: bytes, field: Field) -> h5py.h5d.DatasetID:
        """A dataset, as what it has to be; only where it is not, is asked what is there."""
        try:
            return h5py.h5d.open(group, name)
        except (OSError, RuntimeError, KeyError, ValueError, TypeError):
            if not isinstance(h5py.h5o.open(group, name), h5py.h5d.DatasetID):
                self.damaged(f"/{field.path} is not a dataset of this file")
            raise

    def _values(self, path: str, dataset: h5py.h5d.DatasetID) -> np.ndarray:
        """All of a dataset."""
        dtype = self._fields[path].dtype
        text = dtype == "json"
        values = np.empty(self._shapes[path], f"S{self._sizes[path]}" if text else dtype)
        if values.size:
            native = None if text else _type(dtype)
            dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, values, native)
        return values

    def _group(
        self, field: Field, name: str
    ) -> tuple[h5py.h5g.GroupID | None, Mapping[bytes, int]]:
        """A group that holds the field, the root ("") or one of the schema, and the kinds of its
        links, looked up once; no group if it is younger than the file."""
        if name not in self._groups:
            here: Any = self._file and self._file.id
            if name:
                if not self._linked(self._group(field, "")[1], name.encode(), field):
                    return None, {}
                here = h5py.h5o.open(here, name.encode())
                if not isinstance(here, h5py.h5g.GroupID):
                    self.damaged(f"/{field.path} is not inside a group")
            found: dict[bytes, int] = {}

            def note(link: bytes, info: Any) -> None:
                if link in LINKS:
                    found[link] = info.type

            here.links.iterate(note, info=True)
            self._groups[name] = here, found
        return self._groups[name]

    def _linked(self, links: Mapping[bytes, int], name: bytes, field: Field) -> bool:
        """Whether the group has the field, or what holds it; False for one younger than the file.
        A link to elsewhere is damage."""
        if name not in links:
            if field.later:
                return False
            self.damaged(f"has no /{field.path}")
        if links[name] != h5py.h5l.TYPE_HARD:
            self.damaged(f"/{field.path} is a link to elsewhere, which is not followed")
        return True

    def _check_size(self) -> None:
        """What all columns together take in memory can be in the file."""
        size = sum(
            self._sizes[path] * math.prod(shape[1:]) * max(1, self.rows[path])
            for path, shape in self._shapes.items()
            if shape[0]
        )
        likely = max(self._size * LIKELY_EXPANSION, LIKELY_SIZE)
        if size > min(self._size * MOST_EXPANSION + ALLOWANCE, likely):
            self.damaged(f"claims {size} bytes, more than the file can hold")

    def _counts(self) -> dict[str, int]:
        """Path -> the valid rows of each dataset: what its counter says. Where that is nothing,
        none is opened before it is asked for."""
        found: dict[str, int] = {}
        for counted_by, listed in counted(self.kind):
            counts = (
                self._values(counted_by, self._dataset(counted_by))
                if counted_by
                else np.ones(1, int)
            )
            if counted_by == "rows/steps":
                self.reported = counts
            if not counts.any():
                found |= dict.fromkeys((field.path for field in listed), 0)
                continue
            paths = [field.path for field in listed if self._check(field)]
            if counted_by:
                found |= dict.fromkeys(paths, self._count(counted_by, paths, counts))
            else:
                found |= {path: self._shapes[path][0] for path in paths}
        return found

    def _count(self, counted_by: str, paths: Sequence[str], counts: np.ndarray) -> int:
        count = int(counts.max())
        longest = max(self._shapes[path][0] for path in paths)
        if count > longest and not self.complete:  # rows may have come since those were opened
            for path in paths:
                self._datasets[path].refresh()
                self._shapes[path] = self._datasets[path].shape
            longest = max(self._shapes[path][0] for path in paths)
        if count > longest or counts.min() < 0:
            self.damaged(f"/{counted_by} counts {count} rows of {longest}")
        return count

    def _text(self, path: str) -> dict[str, Any]:
        return self._parse(path, self.column(path)[0])

    def _parse(self, path: str, text: bytes) -> dict[str, Any]:
        value = texts.parse(text)
        if value is None:
            self.damaged(f"/{path} is not JSON")
        return value


class Table(Mapping[str, np.ndarray]):
    """The reported columns of one group, each read once, when asked for."""

    def __init__(self, run: Run, group: str):
        self._run = run
        self._group = group
        self._read: dict[str, np.ndarray] = {}
        self._names = [field.name for field in columns(group) if run.has(field.path)]

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._read:
            self._read[name] = self._run.column(f"{self._group}/{name}")
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@cache
def _type(dtype: str) -> h5py.h5t.TypeID:
    """HDF5's own."""
    return h5py.h5t.py_create(np.dtype(dtype))


def _elsewhere(plist: Any) -> bool:
    """Whether a dataset's values are in other files."""
    return plist.get_layout() == h5py.h5d.VIRTUAL or plist.get_external_count() > 0
