"""Tables of means: runs that are one experiment, repeated, in one row with their spread."""

from collections.abc import Mapping, Sequence
from typing import Any

from mpisgd.report import targets
from mpisgd.report.settings import REPEATED, Group
from mpisgd.report.tables import Section
from mpisgd.values.statistics import Spread
from mpisgd.values.tables import Column

N = Column("n", "", "runs that the row is the mean of, equal but for their seed, or as --group-by "
           "says", "1", True)  # fmt: skip
TABLES = ("runs", "servers", "targets")  # that have means
SUFFIX = "-mean"
HALF = "_half_width"


def beside(
    sections: Sequence[Section], groups: Sequence[Group], told: Sequence[str]
) -> list[Section]:
    """The tables, and before each that has means those, which stand for it at a first look."""
    if all(len(group.runs) == 1 for group in groups):
        return list(sections)
    found = []
    for section in sections:
        if section.name in TABLES:
            found += [_mean(section, groups, told), section._replace(long=True)]
        else:
            found.append(section)
    return found


def spelt(section: Section) -> Section:
    """The table for programs: of a mean the half-width in a column of its own, behind it."""
    spread = {key for row in section.rows for key, value in row.items()
              if isinstance(value, Spread)}  # fmt: skip
    columns: list[Column] = []
    for column in section.columns:
        columns.append(column)
        if column.key in spread:
            meaning = f"of {column.key}: half-width of its 95 % interval"
            columns.append(Column(column.key + HALF, column.form, meaning, column.unit))
    halves = [{key + HALF: row[key].half for key in spread if isinstance(row.get(key), Spread)}
              for row in section.rows]  # fmt: skip
    rows = [row | half for row, half in zip(section.rows, halves, strict=True)]
    return section._replace(columns=tuple(columns), rows=rows)


def _mean(section: Section, groups: Sequence[Group], told: Sequence[str]) -> Section:
    place = {named.name: k for k, group in enumerate(groups) for named in group.runs}
    keys = [key for key in section.label if key != "file"]
    parts: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in section.rows:
        parts.setdefault((place[row["file"]], *(row.get(key) for key in keys)), []).append(row)
    rows = [_row(section.columns, part, groups[key[0]].settings) for key, part in parts.items()]
    columns = [column for column in section.columns if column.key not in REPEATED]
    lead = [column for column in columns if column.key in told]
    rest = [column for column in columns if column.key not in told]
    label = tuple(dict.fromkeys([c.key for c in lead] + keys)) or section.label
    title = f"{section.title}: means of n runs +- half-width of the 95 % interval (Student)"
    return Section(
        section.name + SUFFIX, title, label, (*lead, N, *rest), rows, section.long, len(lead)
    )


def _row(
    columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]
) -> dict[str, Any]:
    found: dict[str, Any] = {"n": len(rows)}
    for column in columns:
        values = [row.get(column.key) for row in rows]
        found[column.key] = _joined(column.key, values, column.key in settings)
    reached = [row["reached"] != targets.NOT for row in rows if "reached" in row]
    if reached and len(rows) > 1:
        found["reached"] = f"{sum(reached)} of {len(rows)}"
    return found


def _joined(key: str, values: Sequence[Any], setting: bool) -> Any:
    """What all say; the mean of measured numbers; nothing where one lacks it, which flatters."""
    if all(value == values[0] for value in values):
        return values[0]
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    return Spread(values) if numbers and not setting else None
