"""The figures of a report. Wall and virtual seconds never share one. Needs the extra `plot`."""

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpisgd.report import bench_figures, reference, servers
from mpisgd.report.accounting import clock
from mpisgd.report.collect import Named
from mpisgd.report.sections import Report
from mpisgd.report.speed import PARTS
from mpisgd.values.drawing import own_style

WIDTH, HEIGHT = 6.4, 4.0  # inches
PART_COLOURS = {"compute": "#4477aa", "update": "#66ccee", "poll": "#ccbb44", "wait": "#ee6677"}
COLOURS = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#ccbb44", "#66ccee", "#888888")
MARKERS = "osD^vP*X"
SHARDS = 4  # of a run, in one figure


@own_style()
def draw(report: Report) -> dict[str, Any]:
    """File name -> matplotlib Figure, for what the report has data for. Raises MissingExtra."""
    tables = {section.name: section.rows for section in report.sections}
    figures: dict[str, Any] = {}
    for time in ("wall", "virtual"):
        runs = [n for n in report.runs if clock(n.run) == time and n.run.kind == "train"]
        for name, function in CURVES.items():
            figures[f"{name}-{time}"] = function(runs, time)
        for table, name, picture in PICTURES:
            rows = [row for row in tables.get(table, ()) if row["clock"] == time]
            figures[f"{name}-{time}"] = picture(rows, time)
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


def accuracy_over_time(runs: Sequence[Named], time: str) -> Any:
    """Test accuracy over training time."""
    return _accuracy(runs, "time_s", f"training time ({time} seconds)", "Accuracy over time")


def accuracy_over_steps(runs: Sequence[Named], time: str) -> Any:
    """Test accuracy over effective steps: what is left when speed is taken away."""
    title = f"Accuracy over effective steps ({time} runs)"
    return _accuracy(runs, "steps_effective", "effective steps", title)


def breakdown(rows: Sequence[dict[str, Any]], time: str) -> Any:
    """Where a step's time goes, one bar a run; the rest of a step is left open."""
    rows = [row for row in rows if row.get("step_s") and row.get("compute_share") is not None]
    if not rows:
        return None
    figure, axes = _axes(f"Where a step's time goes ({time} time)", len(rows))
    left = np.zeros(len(rows))
    for part in PARTS:
        shares = [row[f"{part}_share"] or 0.0 for row in rows]
        width = np.array([row["step_s"] for row in rows]) * shares * 1e3
        axes.barh(
            range(len(rows)), width, left=left, label=part, color=PART_COLOURS.get(part, "#bbbbbb")
        )
        left += width
    axes.set_yticks(range(len(rows)), [_label(row) for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel(f"milliseconds of a median step ({time})")
    axes.grid(axis="y", visible=False)
    return _with_legend(figure, axes, 4)


def speedup(rows: Sequence[dict[str, Any]], time: str) -> Any:
    """Speed-up over ranks, with the ideal line."""
    if not rows:
        return None
    figure, axes = _axes(f"Speed-up ({time} time)")
    curves: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in rows:
        words = (row["algorithm"], row["allreduce"], row["settings"], row["scaling"])
        key = (", ".join(str(word) for word in words if word), row["base"])
        curves.setdefault(key, []).append((row["ranks"], row["speedup"] or np.nan))
    for index, ((label, _), points) in enumerate(curves.items()):
        places, values = zip(*points, strict=True)
        axes.plot(places, values, label=label, **_style(index))
        axes.plot(places, [p / places[0] for p in places], color="#999999", linestyle=":", zorder=1)
    axes.plot([], [], color="#999999", linestyle=":", label="ideal")
    ranks = sorted({row["ranks"] for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(ranks, [str(rank) for rank in ranks])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("ranks")
    axes.set_ylabel("speed-up over the base case")
    return _with_legend(figure, axes, 2)


def staleness(runs: Sequence[Named], time: str) -> Any:
    """Share of used gradients by staleness, a line a shard."""
    figure, axes = _axes(f"Staleness of used gradients ({time} runs)")
    index = 0
    for named in runs:
        pushes = servers.columns(named.run)
        found = np.unique(pushes["server"]).tolist() if pushes else []
        chosen = found if len(found) <= SHARDS else [found[0], found[len(found) // 2], found[-1]]
        for server in chosen:
            values, counts = servers.histogram(servers.of_shard(pushes, server))
            if not len(values):
                continue
            words = {"algorithm": named.run.config.get("algorithm"), "ranks": named.run.ranks}
            label = _label(words | {"file": named.name})
            label += f", shard {server}" if len(found) > 1 else ""
            axes.plot(values, counts / counts.sum(), label=label, **_style(index))
            index += 1
    if not index:
        return None
    axes.set_xlabel("staleness (updates of the shard)")
    axes.set_ylabel("share of used gradients")
    axes.set_ylim(bottom=0)
    return _with_legend(figure, axes, 2)


def arrivals(rows: Sequence[dict[str, Any]], time: str) -> Any:
    """Mean time to the k-th gradient of an update, a curve a run."""
    if not rows:
        return None
    figure, axes = _axes(f"Time to the k-th gradient of an update ({time} time)")
    curves: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        label = _label(row | {"ranks": row["workers"]}).replace("ranks", "workers", 1)
        curves.setdefault(label, []).append((row["k"], row["mean_s"]))
    for index, (label, points) in enumerate(curves.items()):
        axes.plot(*zip(*points, strict=True), label=label, **_style(index))
    axes.set_xlabel("k, gradients that have come")
    axes.set_ylabel(f"mean seconds since the last update ({time})")
    seconds = [row["mean_s"] for row in rows if row["mean_s"] > 0]
    if seconds and max(seconds) > 20 * min(seconds):
        axes.set_yscale("log")
    return _with_legend(figure, axes, 2)


CURVES: dict[str, Callable[[Sequence[Named], str], Any]] = {
    "accuracy-time": accuracy_over_time,
    "accuracy-steps": accuracy_over_steps,
    "staleness": staleness,
}
PICTURES: tuple[tuple[str, str, Callable[[Sequence[dict[str, Any]], str], Any]], ...] = (
    ("runs", "breakdown", breakdown),
    ("scaling", "speedup", speedup),
    ("arrivals", "arrivals", arrivals),
    ("bench", "latency", bench_figures.latency),
    ("bench", "bandwidth", bench_figures.bandwidth),
    ("bench", "ratio", bench_figures.ratio),
    ("bench", "overlap", bench_figures.overlap),
)


def _accuracy(runs: Sequence[Named], column: str, label: str, title: str) -> Any:
    runs = [n for n in runs if {column, "accuracy"} <= set(n.run.evaluation)]
    if not runs:
        return None
    figure, axes = _axes(title)
    for index, named in enumerate(runs):
        evaluation = named.run.evaluation
        words = {"algorithm": named.run.config.get("algorithm"), "ranks": named.run.ranks}
        axes.plot(
            evaluation[column],
            evaluation["accuracy"],
            label=_label(words | {"file": named.name}),
            **_style(index),
        )
    axes.set_xlabel(label)
    axes.set_ylabel("test accuracy, averaged model")
    return _with_legend(figure, axes, 2)


def _axes(title: str, bars: int = 0) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, max(HEIGHT, 1.6 + 0.35 * bars)), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize="medium")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _with_legend(figure: Any, axes: Any, columns: int) -> Any:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        [_plain(label) for label in labels],
        loc="outside lower center",
        ncols=columns,
        fontsize="small",
        frameon=False,
    )
    return figure


def _style(index: int) -> dict[str, Any]:
    marker = MARKERS[index % len(MARKERS)]
    return {"color": COLOURS[index % len(COLOURS)], "marker": marker, "markersize": 4}


def _label(row: dict[str, Any]) -> str:
    """A run's short name: algorithm, ranks and file."""
    file = str(row["file"]).rsplit("/", 1)[-1].removesuffix(".partial").removesuffix(".h5")
    return _plain(f"{row['algorithm']}, {row['ranks']} ranks: {file}"[:48])


def _plain(text: str) -> str:
    """Names from files are text: no formula is made of a `$`."""
    return text if "\\$" in text else text.replace("$", r"\$")
