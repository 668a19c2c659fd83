"""What the tables of studies with named algorithms, rates and seeds share.

A cell has `name`, `rate` and `seed`; a finished line has lists over its evaluations and, at its
end, numbers of the test set, whose names begin with `test`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ledger import Group, Ledger, groups
from pages import plus_minus
from virtual_run import spread

from mpisgd.values.statistics import half_width

Row = dict[str, Any]
Cell = Mapping[str, Any]


def last(line: Row, name: str) -> float:
    """A column's value at the last step; NaN for a run that stopped before it."""
    if "failure" in line:
        return math.nan
    return line[name] if name.startswith("test") else line[name][-1]


def best_rate(ledger: Ledger, cells: Iterable[Cell]) -> float | None:
    """The rate of the cell with the least validation loss at its end, of cells that differ in
    their rate; None while one is missing, or if none is finite."""
    losses = {}
    for cell in cells:
        if cell not in ledger:
            return None
        if "failure" not in ledger[cell]:
            losses[cell["rate"]] = last(ledger[cell], "loss")
    return min(losses, key=lambda rate: losses[rate]) if losses else None


def chosen(
    ledger: Ledger,
    kind: str,
    common: Callable[[], Iterable[Cell]],
    tuned: Callable[[Ledger], Iterable[Cell]],
) -> list[Group]:
    """(cell without its seed, finished lines) of each algorithm: of `kind` "common" at the one
    rate, of "best" at the best of the grid."""
    return groups(ledger, common() if kind == "common" else tuned(ledger))


def ends(lines: Sequence[Row], wanted: Mapping[str, tuple[str, float, int]]) -> Row:
    """Mean and deviation over seeds at the last step; wanted: (column, factor, digits) of each
    heading."""
    return {
        heading: plus_minus(*spread([factor * last(line, name) for line in lines]), digits)
        for heading, (name, factor, digits) in wanted.items()
    }


def rates(
    ledger: Ledger, names: Iterable[str], cells: Callable[[str], Sequence[Cell]], digits: int
) -> list[Row]:
    """Validation loss at every rate of the grid; `cells(name)`: those of one algorithm."""
    rows = []
    for name in names:
        row: Row = {"algorithm": name}
        for cell in cells(name):
            heading = f"loss at {cell['rate']:g}"
            row[heading] = "not run"
            if cell in ledger:
                loss = last(ledger[cell], "loss")
                row[heading] = "not finite" if math.isnan(loss) else f"{loss:.{digits}f}"
        best = best_rate(ledger, cells(name))
        row["best"] = "-" if best is None else marked(best, [cell["rate"] for cell in cells(name)])
        rows.append(row)
    return rows


def difference(one: list[Row], other: list[Row], name: str, factor: float, digits: int) -> Row:
    """`one` less `other`, seed by seed: mean and deviation, the 95 % interval of the mean, by
    Student's t of as many pairs, and whether that leaves zero out."""
    pairs = zip(one, other, strict=True)
    values = [factor * (last(x, name) - last(y, name)) for x, y in pairs]
    mean, deviation = spread(values)
    half = half_width(values)
    return {
        "difference": plus_minus(mean, deviation, digits),
        "95 % interval": f"{mean - half:.{digits}f} to {mean + half:.{digits}f}",
        "told apart": "yes" if abs(mean) > half else "no",
    }


def marked(value: float, grid: Iterable[float]) -> str:
    """An optimum, and whether it lies on the edge of its grid: then it may lie beyond."""
    ends = min(grid := list(grid)), max(grid)
    return f"{value:g}" + (" (edge of the grid)" if value in ends and ends[0] < ends[1] else "")


def summary(ledger: Ledger, names: Sequence[str]) -> list[Row]:
    """One row for each run: its cell, and the named columns at its end."""
    return [
        {**line["cell"], **{name: last(line, name) for name in names}, "cpu_s": line["cpu_s"]}
        for line in ledger.lines.values()
    ]
