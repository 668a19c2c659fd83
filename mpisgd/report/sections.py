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
    cells,
    columns,
    lateness,
    laws,
    means,
    notes,
    scaling,
    servers,
    settings,
    targets,
    views,
)
from mpisgd.report.collect import Named
from mpisgd.report.settings import Group, place
from mpisgd.report.tables import Section
from mpisgd.values import tables
from mpisgd.values.tables import Column

if TYPE_CHECKING:
    from mpisgd.report.reference import Curve

SPARSE = ("chunks", "polls_asked")  # numbers that only some rows have
ALWAYS_LONG = ("staleness", "arrivals")
OF_RUNS = {
    "runs": ("Training runs", ("file",), accounting.RUNS),
    "servers": ("Runs with parameter servers", ("file",), servers.RUNS),
    "shards": ("Shards of the parameters", ("file", "server"), servers.SHARDS),
    "staleness": (
        "Staleness of used gradients", ("file", "server", "staleness"), servers.STALENESS,
    ),
    "arrivals": ("Time to the k-th gradient", ("file", "k"), servers.ARRIVALS),
    "late": (
        "Who came last to averages (ranks that never did are left out)", ("file", "rank"),
        lateness.COLUMNS,
    ),
    "targets": ("Time to targets", ("file", "metric", "target"), targets.COLUMNS),
}  # fmt: skip
"""Tables with rows of each run: title, the columns that name a row, all columns."""
MANY_SHARDS = 24  # rows
MORE = "more columns: --columns all; what they mean: --columns"

TABLES = (
    accounting.RUNS, servers.RUNS, servers.SHARDS, servers.STALENESS, servers.ARRIVALS,
    lateness.COLUMNS, targets.COLUMNS, scaling.SCALING, laws.COLUMNS, benchmarks.COLUMNS,
    *(table for _, table in benchmarks.VERDICTS.values()), cells.COLUMNS, (means.N,),
)  # fmt: skip


def legend(more: Sequence[Sequence[Column]] = ()) -> str:
    """What every column of every table means, one a line."""
    meant = columns.meanings((*TABLES, *more))
    return "\n".join(f"{key}: {meaning}" for key, meaning in meant.items())


class Report(NamedTuple):
    """All that a report says: its tables, its notes, and the files it could not read. `groups`:
    the training runs, those together that are shown as one; `reference`: the curves of others that
    are drawn beside its own."""

    runs: list[Named]
    sections: list[Section]
    notes: list[str]
    problems: list[str]
    groups: list[Group]
    reference: "Sequence[Curve]" = ()


def report(
    runs: Sequence[Named],
    wanted: Sequence[targets.Target] = (),
    problems: Sequence[str] = (),
    by: Sequence[str] | None = None,
    group: bool = True,
    asked: Sequence[str] = (),
) -> Report:
    """The report on these runs, in the order of what varies between them, numbers as numbers.

    group: runs that differ by their seed only, or `by` settings other than these, are one, with
    tables of their means beside those of runs. asked: columns, settings of runs among them, which
    their tables then have. Raises UsageError for a setting that none has.
    """
    runs = sorted(runs, key=lambda named: place(_axes(named)))
    train = [named for named in runs if named.run.kind == "train"]
    rows = _rows(train, wanted)
    whole = Section("scaling", "Scaling", ("scaling", "algorithm", "allreduce", "ranks"),
                    scaling.SCALING, scaling.scaling(runs))  # fmt: skip
    listed = [settings.settings(named) for named in train]
    told = settings.varying(listed)
    own = dict(zip((named.name for named in train), listed, strict=True))
    singles = _own(rows)
    columned = {column.key for section in singles for column in section.columns}
    more = [name for name in asked if name in columns.SETTINGS and name not in columned]
    singles = [_telling(section, told, own, more) for section in singles]
    groups = settings.groups(train, by) if group else settings.alone(train)
    tables_ = means.beside(singles, groups, told) if group else singles
    fits = Section("fits", "Fitted laws of scaling", ("scaling", *scaling.NAMES, "law"),
                   laws.COLUMNS, laws.rows(whole.rows))  # fmt: skip
    swept = Section("sweep", "Sweeps: the best setting, its neighbours, what was not run",
                    ("algorithm", "settings", "place", *cells.AXES), cells.COLUMNS,
                    cells.rows(groups))  # fmt: skip
    sections = [*tables_, swept, whole, fits, *_benchmarks(runs)]
    lines = notes.notes(runs) + cells.notes(groups) + servers.budget(runs)
    lines += _unreached(rows["targets"])
    return Report(list(runs), [s for s in sections if s.rows], lines, list(problems), groups)


def _benchmarks(runs: Sequence[Named]) -> list[Section]:
    """What was measured, and what the files say of whom to use."""
    cases = [row for named in runs for row in benchmarks.rows(named)]
    cases.sort(key=lambda row: place([row.get(key) for key in benchmarks.LABEL]))
    found = [_section("bench", "Benchmarks", benchmarks.LABEL, benchmarks.columns(cases), cases)]
    for name, (title, known) in benchmarks.VERDICTS.items():
        rows = [row for named in runs for row in benchmarks.verdicts(named, name)]
        found.append(_section(name, title, benchmarks.LABEL, benchmarks.columns(rows, known), rows))
    return found


def _rows(
    train: Sequence[Named], wanted: Sequence[targets.Target]
) -> dict[str, list[dict[str, Any]]]:
    """The rows of each table that has some of each run, run by run: what is long is forgotten."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in OF_RUNS}
    for named in train:
        served = servers.row(named)
        found["runs"].append(accounting.row(named.run, named.name))
        found["servers"] += [served] if served is not None else []
        found["shards"] += servers.shards(named)
        found["staleness"] += servers.staleness(named)
        found["arrivals"] += servers.arrivals(named)
        found["late"] += [{"file": named.name} | row for row in lateness.lateness(named.run)]
        named.release()
    return found | {"targets": targets.rows(train, wanted)}


def _own(rows: Mapping[str, list[dict[str, Any]]]) -> list[Section]:
    """The tables of `_rows`, those with anything to say; what says little only when asked for."""
    nothing = all(row["reached"] == targets.NOT for row in rows["targets"])
    long = {"shards": len(rows["shards"]) > MANY_SHARDS, "targets": nothing}
    made = [
        _section(name, title, label, table, rows[name], long.get(name, name in ALWAYS_LONG))
        for name, (title, label, table) in OF_RUNS.items()
    ]
    return [section for section in made if section.rows]


def _telling(
    section: Section,
    told: Sequence[str],
    own: Mapping[str, Mapping[str, Any]],
    more: Sequence[str],
) -> Section:
    """The table led by the settings that tell its rows apart, whatever they are; `more` settings
    come last in those that have means."""
    have = {column.key: column for column in section.columns}
    lead = [columns.shown(have.get(name) or columns.setting(name)) for name in told]
    rest = [column for column in section.columns if column.key not in told]
    more = [name for name in more if name not in told and section.name in means.TABLES]
    rows = [{name: _plain(own[row["file"]].get(name)) for name in (*told, *more)} | row
            for row in section.rows]  # fmt: skip
    every = (*lead, *rest, *map(columns.setting, more))
    return section._replace(columns=every, rows=rows, lead=len(lead) or 1)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, list | tuple) else value


def _unreached(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where no run reached any target, which is no table."""
    if not rows or any(row["reached"] != targets.NOT for row in rows):
        return []
    wanted = dict.fromkeys(f"{row['metric']} {row['target']:g}" for row in rows)
    return [f"not reached by any run: {', '.join(wanted)}; see --targets"]


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
        chosen = [means.spelt(section) for section in chosen]
        page: dict[str, Any] = {
            s.name: json.loads(tables.render(s.columns, s.rows, "json")) for s in chosen
        }
        return json.dumps(page | {"notes": made.notes, "damaged": made.problems}, indent=1)
    if form == "csv":
        chosen = [means.spelt(section) for section in chosen[:1]]
        return tables.render(chosen[0].columns, chosen[0].rows, "csv") if chosen else ""
    if form == "fom":
        return "\n".join(line for section in chosen for line in _fom(section))
    return _text(chosen, made.notes, width, wrap, names or ())


def _with_columns(sections: Sequence[Section], names: Sequence[str]) -> list[Section]:
    """The tables that have any of the columns, with these alone."""
    there_are = dict.fromkeys(column.key for section in sections for column in section.columns)
    views.check(names, there_are)
    cut = [s._replace(columns=views.named(names, s.columns, s.label)) for s in sections]
    return [section for section in cut if section.columns]


def _text(
    sections: Sequence[Section], told: Sequence[str], width: int, wrap: int, names: Sequence[str]
) -> str:
    """Tables, notes and, unless all columns are there, how to see them."""
    parts, left_out = [], False
    for section in sections:
        named = names and tuple(names) != (views.ALL,)
        filled_ones = list(section.columns) if named else filled(section)
        few = filled_ones if names else views.essential(filled_ones, section.rows, section.telling)
        left_out |= len(few) < len(filled_ones)
        heading = f"{section.title}\n\n" if len(sections) > 1 else ""
        above: list[str] = []
        if not named:
            equal, few = views.common(filled_ones if names else few, filled_ones, section.rows)
            above = [_wrapped(f"everywhere: {equal}", wrap) + "\n"] if equal else []
        telling = () if named else section.telling  # named ones keep their order
        parts.append(heading + "\n".join([*above, _blocks(few, section.rows, width, telling)]))
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


def _blocks(
    chosen: Sequence[Column], rows: Sequence[dict[str, Any]], width: int, telling: Sequence[str]
) -> str:
    """The text table; what tells rows apart leads each block of columns when it must be cut."""
    lead = [column for column in chosen if column.key in telling] or list(chosen[:1])
    lead = lead if width and _width(lead, rows) <= width / 2 else list(chosen[:1])
    rest = [column for column in chosen if column not in lead]
    blocks: list[str] = []
    while rest or not blocks:
        count = len(rest)
        while width and count > 1 and _width([*lead, *rest[:count]], rows) > width:
            count -= 1
        text = tables.render([*lead, *rest[:count]], rows, "table")
        rest = rest[count:]
        blocks.append(text)
    return "\n\n".join(blocks)


def _width(columns: Sequence[Column], rows: Sequence[dict[str, Any]]) -> int:
    return max(map(len, tables.render(columns, rows, "table").splitlines()))


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
