"""Figures of a prediction: epoch time against ranks, and t_c/t_p with the delay it asks for."""

import io
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import Any

from mpisgd.store.lock import save
from mpisgd.values.drawing import own_style
from mpisgd.values.errors import MissingExtra, UsageError

SUFFIXES = (".png", ".svg", ".pdf")
VIEWS = ("epochs", "delays")
PANELS = 24
TITLE = "model of this project, not measured, not the paper's numbers"


def check(path: str, view: str | None = None) -> None:
    """UsageError for what could not be drawn, before any work; MissingExtra without matplotlib.

    view: what `--show` names, if the command has one.
    """
    target = Path(path)
    if target.suffix not in SUFFIXES:
        raise UsageError("--figure", path, f"ends in {', '.join(SUFFIXES)}")
    if not target.absolute().parent.is_dir():
        raise UsageError("--figure", path, "its folder does not exist")
    if view is not None and view not in VIEWS:
        raise UsageError("--figure", None, f"draws --show {' or '.join(VIEWS)}, not {view}")
    if find_spec("matplotlib") is None:
        raise MissingExtra("matplotlib", "--figure", "plot")


@own_style("--figure")
def draw(path: str, view: str, rows: list[dict[str, Any]]) -> None:
    """Draw `rows` of the given view into `path`. Raises UsageError for too many panels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    keys = ("net", "allreduce") if view == "epochs" else ("allreduce",)
    for row in rows:
        panels.setdefault(tuple(row[key] for key in keys), []).append(row)
    if len(panels) > PANELS:
        raise UsageError("--figure", None, f"{len(panels)} panels; at most {PANELS}: fewer --net")
    across = min(3, len(panels)) if view == "epochs" else 1
    down = -(-len(panels) // across)
    figure = Figure(figsize=(5.2 * across if view == "epochs" else 9, 3.8 * down))
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained")
    figure.suptitle(f"{rows[0]['device']}, {rows[0]['network']} ({TITLE})", fontsize=9)
    for i, (key, part) in enumerate(panels.items()):
        axes = figure.add_subplot(down, across, i + 1)
        (_epochs if view == "epochs" else _delays)(axes, part)
        axes.set_title(", ".join(key), fontsize=10)
    write(figure, path)


def write(figure: Any, path: str) -> None:
    """A matplotlib Figure as the file `path`, in the form that its ending names. UsageError."""
    content = io.BytesIO()
    figure.savefig(content, format=Path(path).suffix[1:], dpi=150)
    save(path, content.getvalue(), "--figure")


def _epochs(axes: Any, rows: list[dict[str, Any]]) -> None:
    styles = cycle(("o-", "s--", "^-.", "d:"))
    algorithms = list(dict.fromkeys(row["algorithm"] for row in rows))
    for algorithm, style in zip(algorithms, styles, strict=False):
        mine = [row for row in rows if row["algorithm"] == algorithm]
        ranks, seconds = [row["ranks"] for row in mine], [row["epoch_s"] for row in mine]
        (line,) = axes.plot(ranks, seconds, style, label=algorithm, markersize=4)
        if min(row["effective_share"] for row in mine) < 1:
            # A step that is partly thrown away by the merge is not worth a step.
            effective = [row["iterations"] * row["effective_step_s"] for row in mine]
            label = f"{algorithm}, as many effective steps"
            axes.plot(ranks, effective, ":", color=line.get_color(), alpha=0.5, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted({row["ranks"] for row in rows})
    axes.set_xticks(ticks if len(ticks) <= 12 else ticks[:: len(ticks) // 8])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("ranks")
    axes.set_ylabel("seconds an epoch")
    axes.grid(True, which="both", alpha=0.25)
    axes.legend(fontsize=8)


def _delays(axes: Any, rows: list[dict[str, Any]]) -> None:
    most = max(row["ranks"] for row in rows)
    chosen = [row for row in rows if row["ranks"] == most]
    bars = axes.bar([row["net"] for row in chosen], [row["ratio"] for row in chosen])
    axes.bar_label(bars, [f"d={row['delay']}" for row in chosen], fontsize=8)
    axes.margins(y=0.12)
    for line in range(1, max(row["delay"] for row in chosen) + 1):
        if line <= 12:
            axes.axhline(line, color="grey", linewidth=0.6, linestyle=":")
    axes.set_ylabel(f"t_c / t_p, {most} ranks")
    axes.tick_params(axis="x", rotation=60)
