"""The tables of a report, once, for every form it is shown in."""

import json
import math
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mpisgd.report import accounting, benchmarks, notes, scaling, servers, views
from mpisgd.report.collect import Named
from mpisgd.values import tables
from mpisgd.values.tables import Column

RUNS = (
    Column("file"), Column("algorithm"), Column("allreduce"), Column("ranks"), Column("tau"),
    Column("delay"), Column("xi"), Column("merge"), Column("steps"), Column("steps_per_s"),
    Column("samples_per_s"), Column("compute_share", ".1%"), Column("update_share", ".1%"),
    Column("poll_share", ".1%"), Column("wait_share", ".1%"),
    Column("other_share", ".1%"), Column("loss"),
    Column("accuracy", ".4f"), Column("ema_accuracy", ".4f"),
    Column("effective_steps", ".6g"), Column("step_s"), Column("effective_step_s"),
    Column("time_s"), Column("clock"), Column("lab_rate"), Column("state"), Column("restarts"),
    Column("model"), Column("data"), Column("batch"), Column("rate"), Column("step_time_s"),
    Column("seed"), Column("hosts"),
)  # fmt: skip
TARGETS = tuple(
    Column(key) for key in ("file", "algorithm", "ranks", "target", "reached",
                            *accounting.TARGET_COLUMNS, "effective_steps", "clock")
)  # fmt: skip
SCALING = (
    Column("scaling"), Column("algorithm"), Column("allreduce"), Column("settings"),
    Column("clock"), Column("ranks"),
    Column("runs"), Column("samples_per_s"), Column("speedup", ".3f"), Column("efficiency", ".1%"),
    Column("karp_flatt", ".4f"), Column("base"),
)  # fmt: skip
SERVERS = (
    Column("file"), Column("algorithm"), Column("ranks"), Column("servers"), Column("workers"),
    Column("colocated"), Column("backups"), Column("group"), Column("updates", ".6g"),
    Column("used_gradients", ".6g"), Column("dropped_gradients", ".6g"), Column("given_up", ".6g"),
    Column("late_gradients", ".6g"), Column("used_share", ".1%"), Column("used_samples", ".6g"),
    Column("dropped_samples", ".6g"), Column("late_samples", ".6g"), Column("used_samples_per_s"),
    Column("staleness_mean"), Column("staleness_max"), Column("update_s"), Column("own_step_s"),
    Column("slowest_step_s"), Column("waited_s"), Column("clock"),
)  # fmt: skip
SHARDS = (
    Column("file"), Column("algorithm"), Column("workers"), Column("server"), Column("updates"),
    Column("used_gradients"), Column("dropped_gradients"), Column("given_up"),
    Column("late_gradients"), Column("used_samples"), Column("dropped_samples"),
    Column("late_samples"), Column("staleness_mean"),
    Column("staleness_p10"), Column("staleness_median"), Column("staleness_p90"),
    Column("staleness_max"), Column("update_s"), Column("waited_s"), Column("clock"),
)  # fmt: skip
STALENESS = (
    Column("file"), Column("algorithm"), Column("workers"), Column("server"), Column("staleness"),
    Column("up_to"), Column("gradients"), Column("share", ".1%"), Column("clock"),
)  # fmt: skip
ARRIVALS = (
    Column("file"), Column("algorithm"), Column("workers"), Column("k"), Column("updates"),
    Column("mean_s"), Column("p10_s"), Column("median_s"), Column("p90_s"), Column("max_s"),
    Column("clock"),
)  # fmt: skip
MANY_SHARDS = 24  # rows
MORE = "more columns: --columns all; what they mean: --columns"

UNITS = {
    "steps_per_s": "1/s", "samples_per_s": "1/s", "step_s": "s", "effective_step_s": "s",
    "time_s": "s", "effective_steps": "steps", "loss": "1", "accuracy": "1", "ema_accuracy": "1",
    "compute_share": "1", "update_share": "1", "poll_share": "1", "wait_share": "1",
    "other_share": "1", "speedup": "1", "efficiency": "1", "karp_flatt": "1", "median_s": "s",
    "p10_s": "s", "p90_s": "s", "algbw_GBps": "GB/s", "busbw_GBps": "GB/s", "wrong": "1",
    "updates": "1", "used_gradients": "1", "dropped_gradients": "1", "given_up": "1",
    "used_share": "1", "used_samples": "1", "dropped_samples": "1", "used_samples_per_s": "1/s",
    "staleness_mean": "updates", "staleness_max": "updates", "update_s": "s", "waited_s": "s",
    "own_step_s": "s", "slowest_step_s": "s", "late_gradients": "1", "late_samples": "1",
    "restarts": "1", "mean_s": "s", "max_s": "s", "gradients": "1", "share": "1",
}  # fmt: skip


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
    """All that a report says: its tables, its notes, and the files it could not read."""

    runs: list[Named]
    sections: list[Section]
    notes: list[str]
    problems: list[str]


def report(
    runs: Sequence[Named], targets: Sequence[float] = (), problems: Sequence[str] = ()
) -> Report:
    """The report on these runs."""
    train = [named for named in runs if named.run.kind == "train"]
    rows = [accounting.row(named.run, named.name) for named in train]
    rows.sort(key=lambda row: row["clock"], reverse=True)  # wall and virtual apart
    reached = [row for n in train for row in accounting.targets(n.run, n.name, targets)]
    shards = [row for named in train for row in servers.shards(named)]
    cases = [row for named in runs for row in benchmarks.rows(named)]
    extra = [
        key for key in _keys(cases) if key not in (*benchmarks.KEYS, "file", "clock", "lab_rate")
    ]
    names = ["file", *benchmarks.KEYS, *extra, "clock", "lab_rate"]
    sections = [
        Section("runs", "Training runs", ("file",), RUNS, rows),
        Section("servers", "Runs with parameter servers", ("file",), SERVERS,
                [row for n in train if (row := servers.row(n)) is not None]),
        Section("shards", "Shards of the parameters", ("file", "server"), SHARDS,
                shards, long=len(shards) > MANY_SHARDS),
        Section("staleness", "Staleness of used gradients", ("file", "server", "staleness"),
                STALENESS, [row for n in train for row in servers.staleness(n)], long=True),
        Section("arrivals", "Time to the k-th gradient", ("file", "k"), ARRIVALS,
                [row for n in train for row in servers.arrivals(n)], long=True),
        Section("targets", "Time to targets", ("file", "target"), TARGETS, reached),
        Section("scaling", "Scaling", ("scaling", "algorithm", "allreduce", "ranks"), SCALING,
                scaling.scaling(runs)),
        Section("bench", "Benchmarks", ("file", "algorithm", "ranks", "bytes", "in_place"),
                tuple(Column(name) for name in names), cases),
    ]  # fmt: skip
    told = notes.notes(runs) + servers.budget(runs)
    return Report(list(runs), [s for s in sections if s.rows], told, list(problems))


def shown(
    made: Report,
    form: str,
    table: str | None = None,
    width: int = 0,
    columns: Sequence[str] | None = None,
    wrap: int = 0,
) -> str:
    """The report as table, json, csv or fom. csv shows one table: `table`, else the first there is.

    width: text tables wider than this are cut in blocks of columns; 0 for never. wrap: the same of
    notes, which go on in the next line. columns: names, or
    ("all",); default: in text the essential ones, else all. UsageError for an unknown name.
    """
    chosen = [s for s in made.sections if table in (None, s.name)]
    if table is None and form != "json":
        chosen = [s for s in chosen if not s.long]
    if columns is not None and tuple(columns) != (views.ALL,):
        chosen = _with_columns(chosen, columns)
    if form == "json":
        page: dict[str, Any] = {
            s.name: json.loads(tables.render(s.columns, s.rows, "json")) for s in chosen
        }
        return json.dumps(page | {"notes": made.notes, "damaged": made.problems}, indent=1)
    if form == "csv":
        return tables.render(chosen[0].columns, chosen[0].rows, "csv") if chosen else ""
    if form == "fom":
        return "\n".join(line for section in chosen for line in _fom(section))
    return _text(chosen, made.notes, width, wrap, whole=columns is not None)


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
        columns = filled(section)
        few = columns if whole else views.essential(section.name, columns, section.rows)
        left_out |= len(few) < len(columns)
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


def _blocks(columns: Sequence[Column], rows: Sequence[dict[str, Any]], width: int) -> str:
    """The text table; the first column leads each block of columns when it must be cut."""
    lead, *rest = columns
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
    lines = []
    for row in section.rows:
        label = [section.name, *(_word(row.get(key)) for key in section.label)]
        for column in section.columns:
            value = row.get(column.key)
            if column.key in UNITS and isinstance(value, int | float) and math.isfinite(value):
                name = ".".join([*filter(None, label), column.key])
                lines.append(f"FOM name={name} value={value!r} unit={UNITS[column.key]}")
    return lines


def _word(value: Any) -> str:
    """`value` as part of a name without blanks; a file by its path without the suffix."""
    if value is None:
        return ""
    text = str(value)
    text = str(Path(text).with_suffix("")) if text.endswith(".h5") else text
    return re.sub(r"[^A-Za-z0-9_/+-]+", "_", text)


def _keys(rows: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))
