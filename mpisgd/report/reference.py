"""A curve of somebody else's, a paper's for one, beside those of our runs.

A CSV file whose heading names columns of WITHIN and of HEIGHTS, which have their units in their
names, and perhaps `series`, what the curve is called; a `#` begins a remark, such as its source.
"""

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from allreduce import files
from mpisgd.report.accounting import clock
from mpisgd.report.collect import Named
from mpisgd.report.columns import ALGORITHM, CLOCK, FILE, RANKS, checked
from mpisgd.report.panels import legend, panels
from mpisgd.report.sections import Section
from mpisgd.report.targets import epochs
from mpisgd.store.reader import Run
from mpisgd.store.texts import printable
from mpisgd.values.drawing import style
from mpisgd.values.errors import UsageError
from mpisgd.values.tables import Column

OPTION, LARGEST = "--reference", 1 << 24
# Column of the file -> ours, and the factor to it.
WITHIN = {
    "time_s": ("time_s", 1.0), "time_min": ("time_s", 60.0), "time_h": ("time_s", 3600.0),
    "step": ("step", 1.0), "epochs": ("epochs", 1.0), "samples": ("samples_used", 1.0),
}  # fmt: skip
HEIGHTS = {
    "accuracy": ("accuracy", 1.0), "accuracy_percent": ("accuracy", 0.01),
    "error_percent": ("accuracy", -0.01), "loss": ("loss", 1.0),
}  # fmt: skip
SERIES = "series"
COLUMNS = (
    FILE, ALGORITHM, RANKS, CLOCK,
    Column("reference", "", "whose curve: the file, and its series", "", True),
    Column("over", "", "what both are compared at: a column of /evaluation, or epochs", "", True),
    Column("at", "", "its value in the reference", "", True),
    Column("metric", "", "what is compared", "", True),
    Column("theirs", ".4g", "its value in the reference", "1", True),
    Column("ours", ".4g", "ours there, between the evaluations before and after it", "1", True),
    Column("difference", "+.4g", "ours - theirs", "1", True),
)  # fmt: skip


class Curve(NamedTuple):
    """`points`: (x, y) in the units of our columns `over` and `metric`, x rising."""

    name: str
    over: str
    metric: str
    points: np.ndarray  # [point, 2]


def load(path: str) -> list[Curve]:
    """The curves of a file. UsageError with its line for what is none."""
    try:
        lines = files.text(path, LARGEST).splitlines()
    except files.Unreadable as error:
        raise UsageError(OPTION, path, str(error)) from None
    told = [line.partition("#")[0] for line in lines]
    kept = [(number, line) for number, line in enumerate(told, 1) if line.strip()]
    table = list(csv.reader(io.StringIO("\n".join(line for _, line in kept))))
    heading = [word.strip() for word in table[0]] if table else []
    within = [name for name in heading if name in WITHIN]
    heights = [name for name in heading if name in HEIGHTS]
    known = {SERIES, *WITHIN, *HEIGHTS}
    if not within or not heights or not known.issuperset(heading) or len(table) != len(kept):
        allowed = (f"its first line names columns: {', '.join(WITHIN)}, of them one at least; "
                   f"{', '.join(HEIGHTS)}, one at least; perhaps {SERIES}")  # fmt: skip
        raise UsageError(OPTION, path, allowed)
    found: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for (number, _), cells in zip(kept[1:], table[1:], strict=True):
        if len(cells) != len(heading):
            allowed = f"has {len(cells)} cells, and its heading {len(heading)}"
            raise UsageError(f"{OPTION} {path}, line {number}", None, allowed)
        row = dict(zip(heading, map(str.strip, cells), strict=True))
        place = f"{OPTION} {path}, line {number}"
        for x in within:
            for y in heights:
                if row[x] and row[y]:
                    key = printable(row.get(SERIES, "")), x, y
                    point = _number(place, x, row[x]), _number(place, y, row[y])
                    found.setdefault(key, []).append(point)
    return [_curve(Path(path).stem, *key, points) for key, points in found.items()]


def sections(runs: Sequence[Named], curves: Sequence[Curve]) -> list[Section]:
    """The table that lays them beside each other."""
    found = [row for named in runs if named.run.kind == "train" for row in rows(named, curves)]
    label, table = ("file", "reference", "at"), checked("reference", COLUMNS, found)
    title = "Beside a reference"
    return [Section("reference", title, label, COLUMNS, table, True)] if found else []


def rows(named: Named, curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """A row for each point of a reference within our curve."""
    about = {"file": named.name, "algorithm": named.run.config.get("algorithm"),
             "ranks": named.run.ranks, "clock": clock(named.run)}  # fmt: skip
    found = []
    for curve in curves:
        ours = points(named.run, curve)
        for at, theirs in curve.points.tolist():
            if len(ours) and ours[0, 0] <= at <= ours[-1, 0]:
                value = float(np.interp(at, ours[:, 0], ours[:, 1]))
                found.append(about | {
                    "reference": curve.name, "over": curve.over, "at": at, "metric": curve.metric,
                    "theirs": theirs, "ours": value, "difference": value - theirs,
                })  # fmt: skip
    return found


def points(run: Run, curve: Curve) -> np.ndarray:
    """Our own (x, y) [evaluation, 2] in the terms of a reference; none where a column is not."""
    over = epochs(run) if curve.over == "epochs" else run.evaluation.get(curve.over)
    metric = run.evaluation.get(curve.metric)
    if over is None or metric is None:
        return np.zeros((0, 2))
    both = np.column_stack([over, metric])
    return both[np.isfinite(both).all(axis=1)]


def notes(runs: Sequence[Named], curves: Sequence[Curve]) -> list[str]:
    """What the comparison leaves out."""
    told = []
    train = [named.run for named in runs if named.run.kind == "train"]
    if any(curve.over == "epochs" for curve in curves):
        mute = sum(epochs(run) is None for run in train)
        if mute:
            told.append(f"reference: {mute} of {len(train)} runs do not tell how many samples an "
                        "epoch has, and have no curve over epochs")  # fmt: skip
    if any(curve.over == "time_s" for curve in curves):
        told.append("reference: its seconds are of its own machine")
    return told


def _curve(file: str, series: str, x: str, y: str, listed: list[tuple[float, float]]) -> Curve:
    (over, across), (metric, up) = WITHIN[x], HEIGHTS[y]
    points = np.array(sorted(listed)) * [across, up] + [0, y == "error_percent"]
    return Curve(f"{file}: {series}" if series else file, over, metric, points)


def _number(place: str, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    percent = name in HEIGHTS and name.endswith("_percent")
    most = 100 if percent else 1 if name == "accuracy" else math.inf
    if not 0 <= value <= most or math.isinf(value):
        allowed = f"a number of at least 0{f' and at most {most}' if most < math.inf else ''}"
        raise UsageError(f"{place}: {name}", text, allowed)
    return value


NAMES = {"time_s": "training time (s)", "step": "steps", "epochs": "epochs of used samples",
         "samples_used": "samples used", "accuracy": "test accuracy",
         "loss": "test loss"}  # fmt: skip
TITLES = {
    f"reference-{metric}-{over}": f"{NAMES[metric].capitalize()} over {NAMES[over]}, and what "
    "others report (black)."
    for metric, _ in HEIGHTS.values()
    for over, _ in WITHIN.values()
}


def draw(curves: Sequence[Curve], runs: Sequence[Named], time: str) -> dict[str, Any]:
    """File name -> matplotlib Figure of the reference and of the `runs` on one clock; a colour an
    algorithm, a line a run."""
    found: dict[str, Any] = {}
    for over, metric in dict.fromkeys((curve.over, curve.metric) for curve in curves):
        theirs = [curve for curve in curves if (curve.over, curve.metric) == (over, metric)]
        ours = [(named, line) for named in runs if len(line := points(named.run, theirs[0]))]
        if ours:
            found[f"reference-{metric}-{over}-{time}"] = _figure(theirs, ours, time)
    return found


def _figure(theirs: Sequence[Curve], ours: Sequence[tuple[Named, np.ndarray]], time: str) -> Any:
    figure, (axes,) = panels([""], f"Beside a reference ({time} runs)")
    axes.set_xlabel(NAMES[theirs[0].over])
    axes.set_ylabel(NAMES[theirs[0].metric])
    names = [str(named.run.config.get("algorithm")) for named, _ in ours]
    for name, (_, line) in zip(names, ours, strict=True):
        axes.plot(*line.T, **style(name), linewidth=1)
    for number, curve in enumerate(theirs):
        dashes = ("--", ":", "-.")[number % 3]
        axes.plot(*curve.points.T, color="black", linestyle=dashes, label=curve.name)
    for name in dict.fromkeys(names):
        label = f"{name}, {names.count(name)} run{'s' * (names.count(name) > 1)}"
        axes.plot([], [], **style(name), label=label)
    return legend(figure)
