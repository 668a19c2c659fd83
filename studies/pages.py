"""Tables of a study: as CSV files, and as Markdown between the marks of its page.

A page has `<!-- table NAME -->` and `<!-- end -->` on lines of their own; what stands between
them is replaced, so that a page cannot show other numbers than the ledger's.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mpisgd.values.tables import render

Row = Mapping[str, Any]


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """`rows` with all their keys as columns."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    path.write_text(render(columns, rows, "csv") + "\n", encoding="utf-8")


def markdown(rows: Sequence[Row]) -> str:
    """`rows` as a Markdown table; their keys are the headings."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        lines.append("| " + " | ".join(str(row.get(name, "")) for name in columns) + " |")
    return "\n".join(lines)


def fill(text: str, name: str, table: str) -> str:
    """`text` with `table` between the marks of `name`. ValueError if it has no such marks."""
    pattern = re.compile(rf"(<!-- table {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
    filled, count = pattern.subn(lambda match: f"{match[1]}{table}\n{match[2]}", text)
    if count != 1:
        raise ValueError(f"the page has {count} tables named {name}: one is wanted")
    return filled


def plus_minus(mean: float, deviation: float, digits: int) -> str:
    """`mean ± deviation`, without the latter when there is only one value."""
    if math.isnan(mean):
        return "-"
    if math.isnan(deviation):
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ± {deviation:.{digits}f}"
