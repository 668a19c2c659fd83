"""A sweep: which setting was best, how its neighbours did, and what of the grid was not run.

A sweep is runs of one algorithm that differ in at least two of the numbers AXES. Its cells are the
means over seeds; the best one has the highest accuracy at the end, or without accuracies the lowest
loss. A neighbour differs from it in one axis, by one value of the grid.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

from mpisgd.report.columns import ALGORITHM, CLOCK
from mpisgd.report.settings import REPEATED, Group, label, varying
from mpisgd.report.speed import effective_step_s, last
from mpisgd.report.sweep import EDGE, ONE_RUN, verdict
from mpisgd.values.statistics import Spread
from mpisgd.values.tables import Column

AXES = ("tau", "delay", "xi", "rate", "batch", "momentum", "outer_momentum", "outer_rate")
FEWEST = 4  # cells

COLUMNS = (
    ALGORITHM,
    Column("settings", "", "what tells a sweep from others", "", True),
    Column("place", "", "best: highest accuracy, else lowest loss; neighbour of it, one value of "
           "one axis away; not run: cells of the grid without a run", "", True),
    *(Column(axis, "", f"axis {axis} of the sweep", "", True) for axis in AXES),
    Column("n", "", "runs that the row is the mean of", "1", True),
    Column("accuracy", ".4f", "test accuracy at the end", "1", True),
    Column("loss", "", "test loss at the end", "1"),
    Column("effective_step_s", "", "seconds of a step over the share of effective steps", "s",
           True),
    Column("edge", "", "axes whose lowest or highest value the best setting has: the optimum may "
           "lie beyond", "", True),
    CLOCK,
)  # fmt: skip

Cell = tuple[Any, ...]  # a value of each axis


class Sweep(NamedTuple):
    """The cells of one grid: axes, their values in order, and the group in each cell. measure:
    accuracy or loss, by which the best is chosen; best: its cell."""

    name: str
    axes: list[str]
    values: list[list[Any]]
    cells: dict[Cell, Group]
    measure: str
    best: Cell

    @property
    def missing(self) -> list[Cell]:
        """Cells of the grid that were not run, though they could have been: delay <= tau."""
        named = (dict(zip(self.axes, cell, strict=True)) for cell in product(*self.values))
        possible = [c for c in named if c.get("delay", 0) <= c.get("tau", c.get("delay", 0))]
        return [cell for c in possible if (cell := tuple(c.values())) not in self.cells]

    @property
    def neighbours(self) -> list[Cell]:
        """The cells beside the best, along one axis each, that were run."""
        places = [v.index(b) for v, b in zip(self.values, self.best, strict=True)]
        found = []
        for axis, (place, values) in enumerate(zip(places, self.values, strict=True)):
            for beside in (place - 1, place + 1):
                if 0 <= beside < len(values):
                    found.append((*self.best[:axis], values[beside], *self.best[axis + 1 :]))
        return [cell for cell in found if cell in self.cells]

    @property
    def edges(self) -> list[str]:
        """Axes on whose end the best lies, and beyond which there could be a better one."""
        config = self.cells[self.best].runs[0].run.config
        ends = zip(self.axes, self.values, self.best, strict=True)
        return [axis for axis, values, best in ends
                if verdict(config, axis, values, values.index(best))[0] == EDGE]  # fmt: skip


def sweeps(groups: Sequence[Group]) -> list[Sweep]:
    """The sweeps among these experiments, each with at least two axes and four cells."""
    parts: dict[Any, list[Group]] = {}
    for group in groups:
        rest = {k: str(v) for k, v in group.settings.items() if k not in (*AXES, *REPEATED)}
        parts.setdefault(tuple(sorted(rest.items())), []).append(group)
    found = [_sweep(part) for part in parts.values() if len(part) >= FEWEST]
    made = [sweep for sweep in found if sweep is not None]
    firsts = [next(iter(s.cells.values())).settings for s in made]
    names = varying([{k: v for k, v in f.items() if k not in (*AXES, *REPEATED)} for f in firsts])
    told = [label(first, names) if names else "" for first in firsts]
    return [sweep._replace(name=name) for sweep, name in zip(made, told, strict=True)]


def value(group: Group, measure: str) -> Any:
    """The mean of what the runs ended with, with its spread if they are several; None without."""
    if measure == "effective_step_s":
        told = [effective_step_s(named.run) for named in group.runs]
    else:
        told = [last(named.run, measure) for named in group.runs]
    known = [number for number in told if number is not None]
    if len(known) < len(told):
        return None
    return known[0] if len(set(known)) == 1 else Spread(known)


def rows(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Of each sweep the best cell, its neighbours and what was not run."""
    found = []
    for sweep in sweeps(groups):
        first = sweep.cells[sweep.best].settings
        about = {"algorithm": first.get("algorithm"), "settings": sweep.name or None,
                 "clock": first.get("clock")}  # fmt: skip
        for place, cells in (("best", [sweep.best]), ("neighbour", sweep.neighbours)):
            for cell in cells:
                edge = ", ".join(sweep.edges) or "none" if place == "best" else None
                found.append(about | {"place": place, "edge": edge} | _cell(sweep, cell))
        for cell in sweep.missing:
            found.append(about | {"place": "not run"} | dict(zip(sweep.axes, cell, strict=True)))
    return found


def notes(groups: Sequence[Group]) -> list[str]:
    """What is not known of these sweeps."""
    most = [max(len(group.runs) for group in sweep.cells.values()) for sweep in sweeps(groups)]
    return [f"sweep with {ONE_RUN}"] if 1 in most else []


def _sweep(groups: Sequence[Group]) -> Sweep | None:
    axes = [a for a in AXES if len({str(g.settings.get(a)) for g in groups}) > 1]
    cells = {tuple(g.settings.get(a) for a in axes): g for g in groups}
    known: list[Cell] = [cell for cell in cells if all(isinstance(v, int | float) for v in cell)]
    measure = next((m for m in ("accuracy", "loss")
                    if any(value(cells[c], m) is not None for c in known)), None)  # fmt: skip
    if len(axes) < 2 or len(known) < FEWEST or measure is None:
        return None
    sign = 1 if measure == "accuracy" else -1
    told = {c: v for c in known if (v := value(cells[c], measure)) is not None}
    best = max(told, key=lambda cell: sign * told[cell])
    values: list[list[Any]] = [sorted({cell[k] for cell in known}) for k in range(len(axes))]
    return Sweep("", axes, values, {cell: cells[cell] for cell in known}, measure, best)


def _cell(sweep: Sweep, cell: Cell) -> dict[str, Any]:
    group = sweep.cells[cell]
    measured = {key: value(group, key) for key in ("accuracy", "loss", "effective_step_s")}
    return dict(zip(sweep.axes, cell, strict=True)) | {"n": len(group.runs)} | measured
