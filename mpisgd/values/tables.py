"""Rows of plain values as text, JSON or CSV: the one place that prints tables."""

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

FORMATS = ("table", "json", "csv")


class Column(NamedTuple):
    """One column: the key in each row, and how text tables show it (JSON and CSV stay exact).

    meaning; unit: of what programs may scrape as a figure; essential: whether a first look needs
    it; of: how it is computed from what a row is about, where a table does so column by column.
    """

    key: str
    form: str = ""
    meaning: str = ""
    unit: str = ""
    essential: bool = False
    of: Callable[[Any], Any] | None = None


def render(columns: Sequence[Column | str], rows: Iterable[Mapping[str, Any]], form: str) -> str:
    """`rows` in one of FORMATS. Units belong in the keys: they are the headings, everywhere."""
    chosen = [Column(c) if isinstance(c, str) else c for c in columns]
    listed = list(rows)
    if form == "json":
        return json.dumps(
            [{c.key: _exact(row.get(c.key)) for c in chosen} for row in listed], indent=1
        )
    if form == "csv":
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([c.key for c in chosen])
        writer.writerows([_exact(row.get(c.key)) for c in chosen] for row in listed)
        return out.getvalue().rstrip("\n")
    return _text(chosen, listed)


def _text(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> str:
    cells = [[c.key for c in columns]]
    cells += [[cell(row.get(c.key), c.form) for c in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    numeric = [any(isinstance(row.get(c.key), int | float) for row in rows) for c in columns]
    lines = [
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in cells
    ]
    return "\n".join(lines)


def cell(value: Any, form: str) -> str:
    """A value as text tables show it."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if form:
        return format(value, form)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _exact(value: Any) -> Any:
    """JSON has no NaN or infinity: absent values are null."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
