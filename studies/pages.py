"""Pages of studies: their tables and how their figures look; equal data gives equal bytes.

Tables are written as CSV files, and as Markdown between the marks of its page.

A page has `<!-- table NAME -->` and `<!-- end -->` on lines of their own; what stands between
them is replaced, so that a page cannot show other numbers than the ledger's.

Of studies with named algorithms, rates and seeds a cell has `name`, `rate` and `seed`; a finished
line has lists over its evaluations and, at its end, numbers of the test set, whose names begin with
`test`.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from command import Ledger
from runs import spread

from mpisgd.report.figures import encoded
from mpisgd.values.statistics import half_width
from mpisgd.values.tables import render

Cell = Mapping[str, Any]
Row = dict[str, Any]


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


def fill_all(text: str, tables: Mapping[str, Sequence[Row]]) -> str:
    """`text` with each of `tables` between its marks; "not run" for one without rows."""
    for name, rows in tables.items():
        text = fill(text, name, markdown(rows) if rows else "not run")
    return text


def write_page(folder: Path, page: Callable[[str, Ledger], str], ledger: Ledger) -> None:
    """The README of `folder`, if it has one, as `page` makes it from itself and `ledger`."""
    readme = folder / "README.md"
    if readme.exists():
        readme.write_text(page(readme.read_text(encoding="utf-8"), ledger), encoding="utf-8")


def publish(
    folder: Path,
    page: Callable[[str, Ledger], str],
    rows: Callable[[Ledger], Sequence[Row]],
    figures: Mapping[str, Callable[[Ledger], Any]],
) -> None:
    """From the ledger of `folder`: summary.csv of `rows`, a PNG file for each of `figures`, if it
    draws one, and the README's tables."""
    ledger = Ledger(folder / "runs.jsonl")
    write_csv(folder / "summary.csv", rows(ledger))
    for name, draw in figures.items():
        if (drawn := draw(ledger)) is not None:
            save(drawn, folder / f"{name}.png")
    write_page(folder, page, ledger)


def flat(ledger: Ledger, without: Sequence[str] = ()) -> list[Row]:
    """One row for each run: its cell, and what was kept of it, but for some."""
    left_out = {"cell", *without}
    return [
        {**line["cell"], **{name: value for name, value in line.items() if name not in left_out}}
        for line in ledger.lines.values()
    ]


def plus_minus(mean: float, deviation: float, digits: int) -> str:
    """`mean ± deviation`, without the latter when there is only one value."""
    if math.isnan(mean):
        return "-"
    if math.isnan(deviation):
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ± {deviation:.{digits}f}"


def banded(values: Sequence[float], digits: int) -> str:
    """Mean and half-width of Student's 95 % interval of the values that are there; how many are
    not."""
    there = [value for value in values if not math.isnan(value)]
    if not there:
        return "not finite"
    text = plus_minus(spread(there)[0], half_width(there), digits)
    lost = len(values) - len(there)
    return f"{text} ({lost} of {len(values)} not finite)" if lost else text


def middle(values: Iterable[float], digits: int) -> str:
    """`median (least to greatest)`."""
    found = list(values)
    low, high = min(found), max(found)
    return f"{median(found):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def reached(line: Row, target: float, name: str = "time_s") -> float:
    """The column `name`, virtual seconds if not told, at the first evaluation with at least
    `target` accuracy; NaN if none."""
    pairs = zip(line[name], line["accuracy"], strict=True)
    return next((value for value, accuracy in pairs if accuracy >= target), math.nan)


def if_all(values: Sequence[float], digits: int, who: str = " seeds did") -> str:
    """Mean and deviation if no value is NaN, else of how many seeds none is."""
    there = sum(not math.isnan(value) for value in values)
    if there == len(values):
        return plus_minus(*spread(values), digits)
    return f"not reached ({there} of {len(values)}{who})"


def last(line: Row, name: str) -> float:
    """A column's value at the last step; NaN for a run that stopped before it. Some ledgers keep
    their evaluations in a field of their own."""
    if "failure" in line:
        return math.nan
    return line[name] if name.startswith("test") else line.get("evaluations", line)[name][-1]


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


def cost(ledger: Ledger) -> list[Row]:
    """How many runs there are, and what they took."""
    spent = sum(line["cpu_s"] for line in ledger.lines.values()) / 3600
    return [{"runs": len(ledger.lines), "core hours": f"{spent:.2f}"}]


COLOURS = {
    "mini-batch": "#222222",
    "Local": "#ee6677",
    "DaSGD": "#4477aa",
    "delta": "#228833",
}
MARKERS = {"mini-batch": "s", "Local": "o", "DaSGD": "^", "delta": "D"}
BLUES = ("#9ecae1", "#6baed6", "#3182bd", "#08519c")  # DaSGD's variants, light to dark


def family(label: str) -> str:
    """The algorithm that a label begins with."""
    return next(name for name in COLOURS if label.startswith(name))


def panels(count: int, title: str, width: float = 4.2, height: float = 3.8) -> tuple[Any, Any]:
    """(figure, axes in a row with one vertical scale)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(6.4, width * count), height), layout="constrained")
    axes = figure.subplots(1, count, squeeze=False, sharey=True)[0]
    figure.suptitle(title, fontsize="medium")
    for one in axes:
        one.grid(alpha=0.3)
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes


def band(axes: Any, places: Any, rows: Any, colour: str, label: str) -> None:
    """Means over `rows` (seeds, places), and Student's 95 % intervals around them."""
    values = np.asarray(rows)
    middle, half = values.mean(axis=0), np.array([half_width(list(v)) for v in values.T])
    axes.plot(places, middle, color=colour, label=label)
    axes.fill_between(places, middle - half, middle + half, color=colour, alpha=0.15)


def legend(figure: Any, axes: Any, columns: int) -> None:
    """One legend below all panels, each label once."""
    found: dict[str, Any] = {}
    for one in axes:
        handles, labels = one.get_legend_handles_labels()
        for handle, label in zip(handles, labels, strict=True):
            found.setdefault(label, handle)
    figure.legend(
        list(found.values()), list(found), loc="outside lower center", ncols=columns,
        fontsize="small", frameon=False,
    )  # fmt: skip


def save(figure: Any, path: Path) -> None:
    path.write_bytes(encoded(figure, path.suffix[1:]))
