"""Heat maps of sweeps: two axes a panel, further axes a panel each, the best cell marked."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from mpisgd.report.cells import Cell, Sweep, sweeps, value
from mpisgd.report.panels import panels
from mpisgd.report.settings import Group

MOST = 3  # sweeps in a figure
NUMBERS = 120  # cells of a panel that have their number written in
BEST, MISSING = "#d62728", "#eeeeee"


def heat(groups: Sequence[Group], time: str) -> Any:
    """Accuracy, or loss, at the end over two axes; a panel for each value of the others."""
    found = sweeps(groups)
    parts = [(sweep, rest) for sweep in found[:MOST] for rest in product(*sweep.values[2:])]
    if not parts:
        return None
    titles = [_title(sweep, rest) for sweep, rest in parts]
    more = f" (the first {MOST} of {len(found)} sweeps)" if len(found) > MOST else ""
    figure, made = panels(titles, f"Test {found[0].measure} at the end, {time} runs{more}; "
                          "framed: best, grey: not run", across=min(3, len(parts)))  # fmt: skip
    tables = [_table(sweep, rest) for sweep, rest in parts]
    known = np.concatenate([table[np.isfinite(table)] for table in tables])
    for axes, (sweep, rest), table in zip(made, parts, tables, strict=False):
        drawn = axes.imshow(table, origin="lower", aspect="auto", cmap="viridis",
                            vmin=known.min(), vmax=known.max())  # fmt: skip
        _lettered(axes, sweep, table, (known.min() + known.max()) / 2)
        if sweep.best[2:] == rest:
            place = [v.index(b) for v, b in zip(sweep.values, sweep.best, strict=True)]
            _frame(axes, place[1], place[0])
    figure.colorbar(drawn, ax=made, label=f"test {found[0].measure}", shrink=0.8)
    return figure


def _table(sweep: Sweep, rest: Cell) -> np.ndarray:
    """[first axis, second axis]; NaN where nothing was run."""
    rows, columns = sweep.values[:2]
    found = np.full((len(rows), len(columns)), np.nan)
    for (i, row), (j, column) in product(enumerate(rows), enumerate(columns)):
        group = sweep.cells.get((row, column, *rest))
        told = None if group is None else value(group, sweep.measure)
        found[i, j] = np.nan if told is None else told
    return found


def _lettered(axes: Any, sweep: Sweep, table: np.ndarray, middle: float) -> None:
    axes.set_facecolor(MISSING)
    axes.grid(visible=False)
    axes.set_yticks(range(len(sweep.values[0])), [f"{v:g}" for v in sweep.values[0]])
    axes.set_xticks(range(len(sweep.values[1])), [f"{v:g}" for v in sweep.values[1]])
    axes.set_ylabel(sweep.axes[0], fontsize="small")
    axes.set_xlabel(sweep.axes[1], fontsize="small")
    if table.size <= NUMBERS:
        for (i, j), number in np.ndenumerate(table):
            if np.isfinite(number):
                colour = "black" if number > middle else "white"
                axes.text(j, i, f"{number:.3f}", ha="center", va="center", fontsize=6.5,
                          color=colour)  # fmt: skip


def _frame(axes: Any, x: int, y: int) -> None:
    from matplotlib.patches import Rectangle

    place = (x - 0.5, y - 0.5)
    axes.add_patch(Rectangle(place, 1, 1, fill=False, edgecolor=BEST, linewidth=2.5, zorder=3))


def _title(sweep: Sweep, rest: Cell) -> str:
    words = [f"{axis} {v:g}" for axis, v in zip(sweep.axes[2:], rest, strict=True)]
    return ", ".join(filter(None, [sweep.name, *words]))
