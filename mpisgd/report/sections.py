"""The tables of a report, once, for every form it is shown in."""

import json
import math
import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mpisgd.algorithms import ALGORITHMS
from mpisgd.report import (
    accounting,
    benchmarks,
    columns,
    lateness,
    notes,
    scaling,
    servers,
    targets,
    views,
)
from mpisgd.report.collect import Named
from mpisgd.values import tables
from mpisgd.values.tables import Column

if TYPE_CHECKING:
    from mpisgd.report.reference import Curve

SPARSE = ("chunks", "polls_asked")  # numbers that only some rows have
MANY_SHARDS = 24  # rows
MORE = "more columns: --columns all; what they mean: --columns"

TABLES = (
    accounting.RUNS, servers.RUNS, servers.SHARDS, servers.STALENESS, servers.ARRIVALS,
    lateness.COLUMNS, targets.COLUMNS, scaling.SCALING, benchmarks.COLUMNS,
)  # fmt: skip


def legend(more: Sequence[Sequence[Column]] = ()) -> str:
    """What every column of every table means, one a line."""
    meant = columns.meanings((*TABLES, *more))
    return "\n".join(f"{key}: {meaning}" for key, meaning in meant.items())


class Section(NamedTuple):
    """One table. `label` holds the columns that name a row; a `long` one is shown as text, CSV or
    on a page only when it is asked for by its name."""

    name: str
    title: str
    label: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: list[dict[str, Any]]
    long: bool = False


class Report(NamedTuple):
    """All that a report says: its tables, its notes, the files it could not read, and the curves
    of others that are drawn beside its own."""

    runs: list[Named]
    sections: list[Section]
    notes: list[str]
    problems: list[str]
    reference: "Sequence[Curve]" = ()


def report(
    runs: Sequence[Named], wanted: Sequence[targets.Target] = (), problems: Sequence[str] = ()
) -> Report:
    """The report on these runs, in the order of what varies between them, numbers as numbers."""
    runs = sorted(runs, key=lambda named: _place(_axes(named)))
    train = [named for named in runs if named.run.kind == "train"]
    rows = [accounting.row(named.run, named.name) for named in train]
    shards = [row for named in train for row in servers.shards(named)]
    cases = [row for named in runs for row in benchmarks.rows(named)]
    cases.sort(key=lambda row: _place([row.get(key) for key in benchmarks.LABEL]))
    sections = [
        _section("runs", "Training runs", ("file",), accounting.RUNS, rows),
        _section("servers", "Runs with parameter servers", ("file",), servers.RUNS,
                 [row for n in train if (row := servers.row(n)) is not None]),
        _section("shards", "Shards of the parameters", ("file", "server"), servers.SHARDS,
                 shards, long=len(shards) > MANY_SHARDS),
        _section("staleness", "Staleness of used gradients", ("file", "server", "staleness"),
                 servers.STALENESS, [row for n in train for row in servers.staleness(n)],
                 long=True),
        _section("arrivals", "Time to the k-th gradient", ("file", "k"), servers.ARRIVALS,
                 [row for n in train for row in servers.arrivals(n)], long=True),
        _section("late", "Who came last to averages", ("file", "rank"), lateness.COLUMNS,
                 [row for n in train for row in lateness.rows(n)]),
        _section("targets", "Time to targets", ("file", "metric", "target"),
                 targets.COLUMNS, targets.rows(train, wanted)),
        _section("scaling", "Scaling", ("scaling", "algorithm", "allreduce", "ranks"),
                 scaling.SCALING, scaling.scaling(runs)),
        _section("bench", "Benchmarks", benchmarks.LABEL, benchmarks.columns(cases), cases),
    ]  # fmt: skip
    told = notes.notes(runs) + servers.budget(runs)
    return Report(list(runs), [s for s in sections if s.rows], told, list(problems))


def _axes(named: Named) -> list[Any]:
    """What runs are sorted by: wall and virtual apart, algorithms in the order in which the suite
    lists them, then the settings, then the file."""
    config, listed = named.run.config, list(ALGORITHMS)
    name = config.get("algorithm")
    return [
        named.run.virtual, listed.index(name) if name in listed else len(listed), name,
        config.get("allreduce"), named.run.ranks,
        *(config.get(column.key) for column in accounting.RULE), named.name,
    ]  # fmt: skip


def _place(values: Sequence[Any]) -> list[tuple[bool, float, str]]:
    """A key that sorts what is missing first, numbers as numbers, and texts behind them."""
    return [
        (value is not None, float(value), "")
        if isinstance(value, int | float)
        else (value is not None, math.inf, str(value))
        for value in values
    ]


def _section(
    name: str,
    title: str,
    label: tuple[str, ...],
    table: tuple[Column, ...],
    rows: Sequence[Mapping[str, Any]],
    long: bool = False,
) -> Section:
    return Section(name, title, label, table, columns.checked(name, table, rows), long)


def shown(
    made: Report,
    form: str,
    table: str | None = None,
    width: int = 0,
    names: Sequence[str] | None = None,
    wrap: int = 0,
) -> str:
    """The report as table, json, csv or fom. csv shows one table: `table`, else the first there is.

    width: text tables wider than this are cut in blocks of columns; 0 for never. wrap: the same of
    notes, which go on in the next line. names: of columns, or
    ("all",); default: in text the essential ones, else all. UsageError for an unknown name.
    """
    chosen = [s for s in made.sections if table in (None, s.name)]
    if table is None and form != "json":
        chosen = [s for s in chosen if not s.long]
    if names is not None and tuple(names) != (views.ALL,):
        chosen = _with_columns(chosen, names)
    if form == "json":
        page: dict[str, Any] = {
            s.name: json.loads(tables.render(s.columns, s.rows, "json")) for s in chosen
        }
        return json.dumps(page | {"notes": made.notes, "damaged": made.problems}, indent=1)
    if form == "csv":
        return tables.render(chosen[0].columns, chosen[0].rows, "csv") if chosen else ""
    if form == "fom":
        return "\n".join(line for section in chosen for line in _fom(section))
    return _text(chosen, made.notes, width, wrap, whole=names is not None)


def _with_columns(sections: Sequence[Section], names: Sequence[str]) -> list[Section]:
    """The tables that have any of the columns, with these alone."""
    views.check(names, list(dict.fromkeys(c.key for s in sections for c in s.columns)))
    cut = [s._replace(columns=views.named(names, s.columns, s.label)) for s in sections]
    return [section for section in cut if section.columns]


def _text(
    sections: Sequence[Section], told: Sequence[str], width: int, wrap: int, whole: bool
) -> str:
    """Tables, notes and, unless all columns are there, how to see them."""
    parts, left_out = [], False
    for section in sections:
        filled_ones = filled(section)
        few = filled_ones if whole else views.essential(filled_ones, section.rows)
        left_out |= len(few) < len(filled_ones)
        heading = f"{section.title}\n\n" if len(sections) > 1 else ""
        parts.append(heading + _blocks(few, section.rows, width))
    lines = [_wrapped(f"note: {line}", wrap) for line in told]
    lines += [MORE] if left_out else []
    return "\n\n".join([*parts, *(["\n".join(lines)] if lines else [])])


def _wrapped(line: str, width: int) -> str:
    if not width:
        return line
    return textwrap.fill(
        line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def filled(section: Section) -> list[Column]:
    """The columns in which any row says something."""
    return [c for c in section.columns if any(row.get(c.key) is not None for row in section.rows)]


def _blocks(chosen: Sequence[Column], rows: Sequence[dict[str, Any]], width: int) -> str:
    """The text table; the first column leads each block of columns when it must be cut."""
    lead, *rest = chosen
    blocks: list[str] = []
    while rest or not blocks:
        count = len(rest)
        text = tables.render([lead, *rest], rows, "table")
        while width and count > 1 and len(max(text.splitlines(), key=len)) > width:
            count -= 1
            text = tables.render([lead, *rest[:count]], rows, "table")
        rest = rest[count:]
        blocks.append(text)
    return "\n\n".join(blocks)


def _fom(section: Section) -> list[str]:
    """`FOM name=... value=... unit=...`, one line a number, as ReFrame, JUBE and Ramble scrape."""
    lines, unique = [], _Unique()
    for row in section.rows:
        words = [section.name, *(_word(row.get(key), key) for key in section.label)]
        label = unique(".".join(filter(None, words)))
        for column in section.columns:
            value = row.get(column.key)
            if column.unit and isinstance(value, int | float) and math.isfinite(value):
                lines.append(f"FOM name={label}.{column.key} value={value!r} unit={column.unit}")
    return lines


class _Unique:
    """Names as they are, at their second and later use with a number behind them."""

    def __init__(self) -> None:
        self._used: Counter[str] = Counter()

    def __call__(self, name: str) -> str:
        self._used[name] += 1
        return f"{name}.again{self._used[name]}" if self._used[name] > 1 else name


def _word(value: Any, key: str) -> str:
    """`value` as part of a name without blanks; a file by its path without the suffix, a number
    that not every row has with the name of its column."""
    if value is None:
        return ""
    if key in SPARSE:
        return f"{key}{value}"
    text = str(value)
    text = str(Path(text).with_suffix("")) if text.endswith(".h5") else text
    return re.sub(r"[^A-Za-z0-9_/+-]+", "_", text)
