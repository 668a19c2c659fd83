"""Figures of scaling: speed-up and efficiency, what a step is spent on, and laws fitted to them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpisgd.report.laws import FURTHER, fitted
from mpisgd.report.panels import legend, panels, ranks_below
from mpisgd.report.speed import PARTS
from mpisgd.values.drawing import style

PART_COLOURS = {"compute": "#4477aa", "update": "#66ccee", "poll": "#ccbb44", "wait": "#ee6677"}
OTHER = "#cccccc"
TOGETHER = 8  # curves in a panel
GREY = "#999999"
LAWS = {"amdahl": "#4477aa", "universal": "#ee6677", "extra-p": "#228833"}
Row = dict[str, Any]
Curves = dict[str, list[Row]]
VIEWS = (
    ("speedup", "speed-up, all samples"), ("effective_speedup", "speed-up, effective samples"),
    ("efficiency", "efficiency, all samples"),
    ("effective_efficiency", "efficiency, effective samples"),
)  # fmt: skip


def speedup(rows: Sequence[Row], time: str) -> Any:
    """Speed-up and efficiency over ranks, of all samples and of effective ones."""
    curves = _curves(rows)
    if not curves:
        return None
    figure, made = panels([title for _, title in VIEWS], f"Scaling ({time} time)", across=2)
    for axes, (key, _) in zip(made, VIEWS, strict=True):
        _ideal(axes, key, rows)
        count: dict[str, int] = {}
        for name, points in curves.items():
            algorithm = str(points[0]["algorithm"])
            look = style(algorithm, count.setdefault(algorithm, 0))
            count[algorithm] += 1
            values = [np.nan if row[key] is None else row[key] for row in points]
            axes.plot([row["ranks"] for row in points], values, label=name, **look)
        ranks_below(axes, [row["ranks"] for row in rows])
        if "speedup" in key:
            axes.set_yscale("log", base=2)
            axes.yaxis.set_major_formatter("{x:g}")
        else:
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    figure.supxlabel("ranks", fontsize="small")
    return legend(figure)


def parts(rows: Sequence[Row], time: str) -> Any:
    """Seconds of a step by what they were spent on, over ranks, a panel a curve."""
    curves = {name: points for name, points in _curves(rows).items()
              if any(row.get("compute_s") is not None for row in points)}  # fmt: skip
    if not curves:
        return None
    title = f"What a step is spent on ({time} time)"
    figure, made = panels(list(curves), title, share=True)
    for axes, points in zip(made, curves.values(), strict=False):
        places, bottom = np.arange(len(points)), np.zeros(len(points))
        for part in (*PARTS, "other"):
            height = np.array([1e3 * (row.get(f"{part}_s") or 0.0) for row in points])
            colour = PART_COLOURS.get(part, OTHER)
            axes.bar(places, height, 0.7, bottom, color=colour, label=part)
            bottom += height
        effective = [1e3 * (row.get("effective_step_s") or np.nan) for row in points]
        axes.plot(places, effective, "k_", markersize=12, label="effective step")
        axes.set_xticks(places, [str(row["ranks"]) for row in points])
        axes.grid(axis="x", visible=False)
    figure.supxlabel("ranks", fontsize="small")
    figure.supylabel("milliseconds of a step", fontsize="small")
    return legend(figure)


def laws(rows: Sequence[Row], time: str) -> Any:
    """What a rank adds over ranks, and the laws fitted to it; dashed: extrapolated."""
    curves = {name: points for name, points in _curves(rows).items() if fitted(points)}
    if not curves:
        return None
    title = f"Fitted laws, 95 % intervals; dashed: extrapolated ({time} time)"
    source = "simulated" if time == "virtual" else "measured"
    figure, made = panels(list(curves), title)
    for axes, points in zip(made, curves.values(), strict=False):
        ranks = np.array([row["ranks"] for row in points], float)
        each = [row["samples_per_s"] / row["ranks"] for row in points]
        axes.plot(ranks, each, "ko", markersize=4, label=source, zorder=3)
        for fit in fitted(points):
            inside = np.geomspace(ranks[0], ranks[-1], 40)
            outside = np.geomspace(ranks[-1], FURTHER * ranks[-1], 20)
            for where, line in ((inside, "-"), (outside, "--")):
                middle, low, high = (values / where for values in fit.at(where))
                shown = {"label": fit.law} if line == "-" else {}
                axes.plot(where, middle, line, color=LAWS[fit.law], **shown)
                if np.isfinite(low).all() and np.isfinite(high).all():
                    axes.fill_between(where, low, high, color=LAWS[fit.law], alpha=0.12, lw=0)
        axes.set_ylim(0, 1.3 * max(each))
        ranks_below(axes, [int(rank) for rank in (*ranks, FURTHER * ranks[-1])])
    figure.supxlabel("ranks", fontsize="small")
    figure.supylabel("samples per second and rank", fontsize="small")
    return legend(figure)


def _ideal(axes: Any, key: str, rows: Sequence[Row]) -> None:
    ranks = sorted({row["ranks"] for row in rows})
    ideal = [rank / ranks[0] if "speedup" in key else 1.0 for rank in ranks]
    axes.plot(ranks, ideal, color=GREY, linestyle=":", label="ideal", zorder=1)


def _curves(rows: Sequence[Row]) -> Curves:
    """The rows of each curve under what tells it from the others."""
    names = [key for key in ("scaling", "allreduce") if len({row[key] for row in rows}) > 1]
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        words = (row["algorithm"], row["settings"], *(row[key] for key in names))
        found.setdefault((", ".join(str(w) for w in words if w), row["base"]), []).append(row)
    named: Curves = {}
    for (name, base), points in found.items():
        named[name if name not in named else f"{name}, over {base}"] = points
    return named
