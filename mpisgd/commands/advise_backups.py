"""`mpisgd advise --backups`: which of M machines' gradients to wait for, and how sure that is.

The expected time of an update for every N of M, from a distribution (--step-time, --straggler) or
from the gradients of a measured run (--from), times the iterations to converge (--iterations).
"""

import argparse
import shlex
import sys
from typing import TYPE_CHECKING, Any

from mpisgd.predict.figures import check, write
from mpisgd.store.target import check_not_read, check_target
from mpisgd.values import quantities
from mpisgd.values.drawing import own_style
from mpisgd.values.errors import UsageError
from mpisgd.values.tables import Column, render

if TYPE_CHECKING:
    from mpisgd.predict.backups import Times
    from mpisgd.predict.curves import Curve

STALE = ("finish", "abandon")
DEFAULT_CURVE = "power:1"
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
OWN = ("straggler", "iterations", "stale", "draws", "seed", "figure", "overwrite")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `--backups`."""
    add = parser.add_argument_group("backups of parameter servers").add_argument
    add("--backups", action="store_true", help="how many of --ranks machines should be backups")
    add("--straggler", metavar="SPEC", help="who is slow, and how, as mpisgd train has it")
    add("--iterations", metavar="CURVE", help="to converge: points as in 50:137500,100:76200, "
        f"chen (these), a .json file, power:X or critical:N0 ({DEFAULT_CURVE}: used gradients "
        "alone)")  # fmt: skip
    add("--stale", choices=STALE, help="what becomes of out-of-date work (finish)")
    add("--draws", metavar="N", help="gradients of each machine, where they are drawn (4096)")
    add("--seed", metavar="N", help="of what is drawn (0)")
    add("--figure", metavar="FILE", help="draw N against the time: .png, .svg or .pdf (needs "
        "matplotlib)")  # fmt: skip
    add("--overwrite", action="store_true", help="replace an existing --figure")
    defaults = {action.dest: action.default for action in parser._actions}
    parser.set_defaults(backups_defaults=defaults)


def chosen(arguments: argparse.Namespace) -> bool:
    """Whether `--backups` was given. UsageError for options that go only with, or never with it."""
    with_it = ("backups", "format", "ranks", "step_time", "source", *OWN)
    for name, default in arguments.backups_defaults.items():
        given = getattr(arguments, name, default) != default
        option = "--" + name.replace("_", "-")
        if given and arguments.backups and name not in with_it:
            raise UsageError(option, None, "has no part in advice on backups")
        if given and not arguments.backups and name in OWN:
            raise UsageError(option, None, "goes with --backups")
    return bool(arguments.backups)


def run(arguments: argparse.Namespace) -> int:
    """Print the advice. Raises UsageError."""
    from mpisgd.predict import backups, curves

    if arguments.figure is not None:
        check(arguments.figure)
        read = filter(None, (arguments.source, arguments.iterations))
        check_not_read(arguments.figure, read, "--figure")
        check_target(arguments.figure, arguments.overwrite, option="--figure")
    stale, found, texts = arguments.stale or STALE[0], [], []
    for times in _times(arguments, stale):
        machines = int(times.needed[-1])
        curve = curves.curve(arguments.iterations or DEFAULT_CURVE, machines)
        rows = backups.rows(times, curve.iterations)
        _check_finite(rows)
        known: Row = {"machines": machines, "stale": stale}
        # Iterations relative to those at N = M times seconds are no seconds.
        relative: Row = {} if curve.known else dict.fromkeys(SECONDS)
        found.append(
            [
                known | row | relative | {"extrapolated": curve.extrapolated(row["needed"])}
                for row in rows
            ]
        )
        texts.append(_text(found[-1], curve, arguments))
    cautions = _cautions(arguments, [rows[-1]["machines"] for rows in found])
    if arguments.format == "table":
        print("\n".join([*cautions, "\n\n".join(texts)]))
    else:
        for line in cautions:
            print(f"mpisgd: {line.removeprefix('# ')}", file=sys.stderr)
        rows = [row for rows in found for row in rows]
        print(render(tuple(TERMS), rows, arguments.format))
    if arguments.figure is not None:
        draw(arguments.figure, found)
    return 0


def _times(arguments: argparse.Namespace, stale: str) -> "list[Times]":
    from mpisgd.predict import backups, measured

    draws = quantities.whole("--draws", arguments.draws or 4096, low=64, high=10**6)
    seed = quantities.whole("--seed", arguments.seed or 0, low=0)
    counts = []
    if arguments.ranks is not None:
        counts = quantities.ranks("--ranks", arguments.ranks, backups.MOST_MACHINES)
    if arguments.source is not None:
        for name in ("step_time", "straggler"):
            if getattr(arguments, name) is not None:
                option = f"--{name.replace('_', '-')}"
                raise UsageError(option, None, "not together with --from")
        if arguments.source.endswith(".toml"):
            allowed = "a result file of a run with parameter servers"
            raise UsageError("--from", arguments.source, allowed)
        pools = measured.gradient_seconds(arguments.source)
        return [
            backups.of_measured(pools, count, stale, seed, draws)
            for count in counts or [len(pools)]
        ]
    if arguments.step_time is None:
        raise UsageError("--step-time", None, "needed unless --from names a measured run")
    step_s = quantities.duration("--step-time", arguments.step_time, open_low=True)
    return [
        backups.of_distribution(arguments.straggler, step_s, count, stale, seed, draws)
        for count in counts or [8]
    ]


def _cautions(arguments: argparse.Namespace, machines: list[int]) -> list[str]:
    """What makes the advice weaker than its intervals say."""
    from mpisgd.predict import measured

    if arguments.source is None:
        return []
    return [f"# caution: {line}" for line in measured.cautions(arguments.source, machines)]


def _check_finite(rows: list[Row]) -> None:
    if not any(row["converge_s"] < float("inf") for row in rows):
        raise UsageError("--straggler", None, "no split has a finite expected time")


def _text(rows: list[Row], curve: "Curve", arguments: argparse.Namespace) -> str:
    """The best split, its margins, how sure; the splits around it and some others."""
    at = next(i for i, row in enumerate(rows) if row["best"])
    best, machines = rows[at], rows[-1]["machines"]
    equal = [row["needed"] for row in rows if row["over_best_low"] <= 0 and not row["best"]]
    model = "" if curve.known else ", relative to those at N = M"
    what = arguments.source or f"{arguments.straggler or 'equal machines'}, {arguments.step_time}"
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
