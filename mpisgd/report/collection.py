"""Result files for Python: the runs themselves, and the tables of `mpisgd report` over them."""

import glob
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from html import escape
from typing import Any

from mpisgd.report import sections
from mpisgd.report.accounting import RULE
from mpisgd.report.collect import Named, collect, find
from mpisgd.store import frames
from mpisgd.store.result import Result
from mpisgd.values.errors import UsageError


def load(*paths: str | os.PathLike[str]) -> "Collection":
    """The results in files, folders and patterns such as "runs/*.h5". Raises UsageError for one
    that names nothing; what cannot be read is in `problems`."""
    files: list[str] = []
    for path in (os.fspath(path) for path in paths):
        matching = sorted(glob.glob(path, recursive=True)) if glob.has_magic(path) else [path]
        if not matching:
            raise UsageError("path", path, "matches no file")
        files += find(matching)
    return Collection(*collect(list(dict.fromkeys(files))))


class Collection(Sequence[Result]):
    """Runs in the order of their files. `names`: of the files; `problems`: a line for each that
    could not be read."""

    def __init__(self, named: Sequence[Named], problems: Sequence[str] = ()):
        self._named, self.problems = list(named), list(problems)
        self.names = [name for name, _ in self._named]
        self._results = [Result(run) for _, run in self._named]

    def __len__(self) -> int:
        return len(self._results)

    def __getitem__(self, index: Any) -> Any:
        """The Result at a place, or a Collection of those in a slice."""
        if isinstance(index, slice):
            return Collection(self._named[index], self.problems)
        return self._results[index]

    def __iter__(self) -> Iterator[Result]:
        return iter(self._results)

    def __repr__(self) -> str:
        told = f", {len(self.problems)} not readable" if self.problems else ""
        return f"Collection({len(self)} results{told}; tables: {', '.join(self.tables)})"

    def _repr_html_(self) -> str:
        """As a notebook shows it: the table of runs, or of benchmarks, and the notes."""
        from mpisgd.report.views import essential
        from mpisgd.store.notebook import table

        if not self.report.sections:
            return escape(repr(self))
        first = self.report.sections[0]
        columns = essential(sections.filled(first), first.rows)
        told = "".join(f"<p>note: {escape(note)}</p>" for note in self.notes)
        return table(columns, first.rows) + told

    @cached_property
    def report(self) -> sections.Report:
        """What `mpisgd report` says of them."""
        return sections.report(self._named, problems=self.problems)

    @property
    def notes(self) -> list[str]:
        """What may not be compared, and what was not equal."""
        return self.report.notes

    @cached_property
    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """The tables of the report, by name: rows as dicts."""
        return {section.name: section.rows for section in self.report.sections}

    def frame(self, table: str = "runs") -> Any:
        """A pandas DataFrame of a table of the report, or of one that each run has (steps,
        evaluation, updates, events), one run after the other, with its file and the settings that
        tell runs apart. Raises UsageError."""
        pandas = frames.module("pandas", "frame()")
        if table in frames.TABLES:
            parts = [result.frame(table).assign(file=name, **_settings(result))
                     for name, result in zip(self.names, self, strict=True)]  # fmt: skip
            made = pandas.concat(parts, ignore_index=True) if parts else pandas.DataFrame()
            made.attrs["units"] = {k: u for part in parts for k, u in part.attrs["units"].items()}
            return made
        if table not in self.tables:
            known = ", ".join((*frames.TABLES, *self.tables))
            raise UsageError("table", table, f"one of {known}")
        return pandas.DataFrame(self.tables[table])


def _settings(result: Result) -> dict[str, Any]:
    """What tells its rows from those of other runs; what it has not is left out."""
    config = result.record.config
    told = {"algorithm": config.get("algorithm"), "ranks": result.ranks}
    told |= {column.key: config.get(column.key) for column in RULE}
    return {name: value for name, value in told.items() if value is not None}
