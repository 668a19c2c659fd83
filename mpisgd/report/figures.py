"""The figures of a report. Wall and virtual seconds never share one. Needs the extra `plot`."""

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpisgd.report import (
    bench_figures,
    learning,
    reference,
    scaling_figures,
    server_figures,
    sweep_figures,
)
from mpisgd.report.accounting import clock
from mpisgd.report.panels import legend, panels, plain
from mpisgd.report.scaling_figures import OTHER, PART_COLOURS
from mpisgd.report.sections import Report
from mpisgd.report.settings import Group, labels
from mpisgd.report.speed import PARTS, speed
from mpisgd.values.drawing import own_style

BARS = 40  # in one figure


@own_style()
def draw(report: Report) -> dict[str, Any]:
    """File name -> matplotlib Figure, for what the report has data for. Raises MissingExtra."""
    tables = {section.name: section.rows for section in report.sections}
    train = [named for named in report.runs if named.run.kind == "train"]
    names = dict(zip((named.name for named in train), labels(train), strict=True))
    figures: dict[str, Any] = {}
    for time in ("wall", "virtual"):
        groups = [group for group in report.groups if group.settings["clock"] == time]
        for name, picture in OF_GROUPS.items():
            figures[f"{name}-{time}"] = picture(groups, time)
        runs = [named for named in train if clock(named.run) == time]
        figures[f"staleness-{time}"] = server_figures.staleness(runs, names, time)
        arrivals = [row for row in tables.get("arrivals", ()) if row["clock"] == time]
        figures[f"arrivals-{time}"] = server_figures.arrivals(arrivals, names, time)
        for table, name, drawn in OF_ROWS:
            rows = [row for row in tables.get(table, ()) if row["clock"] == time]
            figures[f"{name}-{time}"] = drawn(rows, time)
        figures |= reference.draw(report.reference, runs, time)
    return {name: figure for name, figure in figures.items() if figure is not None}


@own_style()
def encoded(figure: Any, form: str) -> bytes:
    """The figure as PNG, SVG or PDF; equal data gives equal bytes."""
    import matplotlib

    out = io.BytesIO()
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form, {})
    with matplotlib.rc_context({"svg.hashsalt": "mpisgd"}):
        figure.savefig(out, format=form, dpi=150, metadata=metadata)
    return out.getvalue()


def breakdown(groups: Sequence[Group], time: str) -> Any:
    """Where a step's time goes, a bar an experiment; the rest of a step is left open."""
    told = [(group.label, [speed(named.run) for named in group.runs]) for group in groups]
    bars = [
        (name, known) for name, found in told
        if (known := [s for s in found if s["step_s"] and s["compute_share"] is not None])
    ]  # fmt: skip
    if not bars:
        return None
    left_out = f", the first {BARS} of {len(bars)}" if len(bars) > BARS else ""
    figure, (axes,) = panels([""], f"Where a step's time goes ({time} time{left_out})")
    bars = bars[:BARS]
    figure.set_size_inches(6.4, max(2.4, 1.4 + 0.24 * len(bars)))
    left = np.zeros(len(bars))
    for part in PARTS:
        width = np.array([
            1e3 * np.mean([s["step_s"] * (s[f"{part}_share"] or 0.0) for s in known])
            for _, known in bars
        ])  # fmt: skip
        colour = PART_COLOURS.get(part, OTHER)
        axes.barh(range(len(bars)), width, left=left, label=part, color=colour)
        left += width
    axes.set_yticks(range(len(bars)), [plain(name) for name, _ in bars])
    axes.margins(y=0.01)
    axes.invert_yaxis()
    axes.set_xlabel(f"milliseconds of a median step ({time})")
    axes.grid(axis="y", visible=False)
    return legend(figure)


OF_GROUPS: dict[str, Callable[[Sequence[Group], str], Any]] = {
    "accuracy-time": learning.over_time,
    "accuracy-steps": learning.over_steps,
    "heat": sweep_figures.heat,
    "breakdown": breakdown,
}
OF_ROWS: tuple[tuple[str, str, Callable[[Sequence[dict[str, Any]], str], Any]], ...] = (
    ("scaling", "speedup", scaling_figures.speedup),
    ("scaling", "step-parts", scaling_figures.parts),
    ("scaling", "laws", scaling_figures.laws),
    ("bench", "latency", bench_figures.latency),
    ("bench", "bandwidth", bench_figures.bandwidth),
    ("bench", "ratio", bench_figures.ratio),
    ("bench", "overlap", bench_figures.overlap),
    ("bench", "errors", bench_figures.errors),
)
