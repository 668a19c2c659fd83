"""Advice on backups as it is told: columns, the text, the figure, the line to run."""

import shlex
from typing import Any

from mpisgd.predict.curves import Curve
from mpisgd.predict.figures import write
from mpisgd.values.drawing import own_style
from mpisgd.values.tables import Column, render

AROUND = 4  # splits beside the best that a text table shows
FEW = 24  # splits that it shows all of
Row = dict[str, Any]
SECONDS = ("converge_s", "converge_low_s", "converge_high_s")

# Every column, defined with its unit.
TERMS = {
    "machines": "M: machines that compute gradients; servers are not among them",
    "needed": "N: gradients that an update waits for",
    "backups": "b = M - N",
    "stale": "whether machines finish work that is out of date, or abandon it",
    "method": "exact: closed form; quadrature: of a known law; sampled: mean over runs of the "
    "machines' clocks; measured: the same with the seconds of a result file, resampled",
    "update_s": "expected seconds of an update",
    "update_low_s": "low end of its 95 % interval",
    "update_high_s": "high end of its 95 % interval",
    "iterations": "updates to converge, by the curve of --iterations",
    "extrapolated": "whether N lies outside the curve's points; empty for a model",
    "converge_s": "expected seconds to converge: update_s times iterations; empty where these "
    "are relative",
    "converge_low_s": "low end of its 95 % interval, the iterations taken as known",
    "converge_high_s": "high end of its 95 % interval, the iterations taken as known",
    "over_best": "converge_s over the least one, minus 1: the best split's margin",
    "over_best_low": "low end of its 95 % interval; the splits' draws are the same",
    "over_best_high": "high end of its 95 % interval",
    "best": "whether converge_s is the least",
}
SHOWN = ("needed", "backups", "method", "update_s", "update_low_s", "update_high_s", "iterations",
         "converge_s", "over_best", "over_best_low", "over_best_high", "best")  # fmt: skip


def text(rows: list[Row], curve: Curve, what: str) -> str:
    """The best split, its margins, how sure; the splits around it and some others. `what`: the
    machines, or the run that they are known from."""
    at = next(i for i, row in enumerate(rows) if row["best"])
    best, machines = rows[at], rows[-1]["machines"]
    equal = [row["needed"] for row in rows if row["over_best_low"] <= 0 and not row["best"]]
    model = "" if curve.known else ", relative to those at N = M"
    lines = [
        f"# {machines} machines ({what}; {best['stale']}), update times {best['method']}; "
        f"iterations: {curve.name}{model}",
        f"# best: {best['needed']} + {best['backups']}",
    ]
    if curve.known:
        least, low, high = (best[key] for key in SECONDS)
        lines[-1] += f", expected {least:.6g} s to converge [{low:.6g}, {high:.6g}]"
    for name, row in _others(rows, at):
        margin, low, high = (row[key] for key in ("over_best", "over_best_low", "over_best_high"))
        lines.append(f"# {name} {row['needed']} + {row['backups']} takes {margin:.2%} longer "
                     f"[{low:.2%}, {high:.2%}]")  # fmt: skip
    sure = f"not sure: N = {_spans(equal)} may be as good" if equal else "sure within the sampling"
    sure = sure if best["method"] in ("sampled", "measured") else "sure: no sampling"
    lines.append(f"# {sure}; the curve of iterations is taken as it is")
    if best["extrapolated"]:
        low, high = curve.known or (0, 0)
        lines.append(f"# N = {best['needed']} lies outside the curve's points, {low} to {high}")
    few = [row for i, row in enumerate(rows) if _is_shown(i, at, len(rows))]
    marked = [row | {"best": "<- best" if row["best"] else ""} for row in few]
    keys = [key for key in SHOWN if curve.known or key != "converge_s"]
    lines += [render([Column(key) for key in keys], marked, "table"), _command(best)]
    return "\n".join(lines)


def _others(rows: list[Row], at: int) -> list[tuple[str, Row]]:
    """The neighbours of the best split, and no backups at all."""
    found = []
    if at > 0:
        found.append(("fewer:", rows[at - 1]))
    if at < len(rows) - 1:
        found.append(("more:", rows[at + 1]))
    if at < len(rows) - 2:
        found.append(("no backups:", rows[-1]))
    return found


def _is_shown(i: int, at: int, count: int) -> bool:
    regular = i % max(1, count // 10) == max(1, count // 10) - 1
    return count <= FEW or abs(i - at) <= AROUND or regular or i == count - 1


def _spans(values: list[int]) -> str:
    """As in 3, 5 to 9."""
    spans: list[list[int]] = []
    for value in values:
        if spans and spans[-1][1] == value - 1:
            spans[-1][1] = value
        else:
            spans.append([value, value])
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in spans)


def _command(best: Row) -> str:
    """The `mpisgd train` line; your own --model and --data go behind it."""
    words = ["mpiexec", "-n", str(best["machines"] + 1), "mpisgd", "train", "--algorithm", "backup"]
    words += ["--servers", "1", "--backups", str(best["backups"]), "--stale", best["stale"]]
    return shlex.join(words)


def _drawn(row: Row, relative: bool) -> tuple[float, ...]:
    """N, the time and its interval."""
    if relative:
        return row["needed"], *(1 + row[f"over_best{end}"] for end in ("", "_low", "_high"))
    return row["needed"], *(row[key] for key in SECONDS)


@own_style("--figure")
def draw(path: str, found: list[list[Row]]) -> None:
    """Draw N against the expected time to converge, the minimum marked. Raises UsageError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    relative = found[0][0]["converge_s"] is None
    for rows in found:
        drawn = [_drawn(row, relative) for row in rows if row["over_best"] < float("inf")]
        needed, seconds, low, high = zip(*drawn, strict=True)
        best = next(row for row in rows if row["best"])
        label = f"{best['machines']} machines, best {best['needed']} + {best['backups']}"
        (line,) = axes.plot(needed, seconds, "-", label=label)
        axes.fill_between(needed, low, high, color=line.get_color(), alpha=0.25, linewidth=0)
        axes.plot(*_drawn(best, relative)[:2], "o", color=line.get_color())
    axes.set_yscale("log")
    axes.set_xlabel("N, gradients that an update waits for")
    axes.set_ylabel(
        "expected time to converge, of the best" if relative else "expected seconds to converge"
    )
    axes.grid(True, which="both", alpha=0.25)
    axes.legend(fontsize=8)
    write(figure, path)
