"""What runs have learnt over time and steps, a curve an experiment: the mean over its seeds, in a
band that holds the true mean with a probability of 95 % (Student)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mpisgd.report.panels import legend, panels
from mpisgd.report.settings import Group, label, varying
from mpisgd.values.drawing import style
from mpisgd.values.statistics import student

TOGETHER = 6  # curves in a panel
LINES = ("-", "--", ":", "-.")  # of several curves of one algorithm

Split = dict[str, list[tuple[str, Group]]]  # panel -> its curves, by name


def over_time(groups: Sequence[Group], time: str) -> Any:
    """Test accuracy over training time."""
    return _figure(groups, "time_s", f"training time ({time} seconds)", "over time")


def over_steps(groups: Sequence[Group], time: str) -> Any:
    """Test accuracy over effective steps: what is left when speed is taken away."""
    return _figure(groups, "steps_effective", f"effective steps ({time} runs)", "by steps")


def split(groups: Sequence[Group]) -> Split:
    """Small multiples: by the settings that vary slowest, as many of them as leave few curves in a
    panel. Algorithms stay together, to be compared."""
    names = varying([_seedless(group) for group in groups])
    slow = [name for name in names if name != "algorithm"]
    for count in range(len(slow) + 1):
        found: Split = {}
        for group in groups:
            rest = [name for name in names if name not in slow[:count]]
            title = label(group.settings, slow[:count]) if count else ""
            name = label(group.settings, ["algorithm", *(n for n in rest if n != "algorithm")])
            found.setdefault(title, []).append((name, group))
        if max(map(len, found.values()), default=0) <= TOGETHER:
            break
    return found


def curve(group: Group, x: str, y: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean of x and of y over the runs, evaluation by evaluation as far as all have them, and the
    half-width of y's interval, which is 0 of one run."""
    told = [run.run.evaluation for run in group.runs]
    length = min(min(len(each[x]), len(each[y])) for each in told)
    xs = np.array([each[x][:length] for each in told], float)
    ys = np.array([each[y][:length] for each in told], float)
    half = np.zeros(length)
    if len(told) > 1:
        half = student(len(told) - 1) * ys.std(axis=0, ddof=1) / np.sqrt(len(told))
    return xs.mean(axis=0), ys.mean(axis=0), half


def _figure(groups: Sequence[Group], x: str, below: str, what: str) -> Any:
    measure = next((y for y in ("accuracy", "loss") if any(_has(g, x, y) for g in groups)), None)
    if measure is None:
        return None
    groups = [group for group in groups if _has(group, x, measure)]
    parts = split(groups)
    figure, made = panels(list(parts), _title(groups, f"Test {measure} {what}"), share=True)
    for axes, curves in zip(made, parts.values(), strict=False):
        count: dict[str, int] = {}
        for name, group in curves:
            algorithm = str(group.settings.get("algorithm"))
            number = count.setdefault(algorithm, 0)
            look = style(algorithm, number) | {"linestyle": LINES[number % len(LINES)]}
            count[algorithm] += 1
            xs, ys, half = curve(group, x, measure)
            axes.plot(xs, ys, label=name, **look)
            if len(group.runs) > 1:
                # What cannot be is no part of a band, and would squeeze the curves.
                low, high = np.clip([ys - half, ys + half], 0, 1 if measure == "accuracy" else None)
                axes.fill_between(xs, low, high, color=look["color"], alpha=0.2, lw=0)
    figure.supxlabel(below, fontsize="small")
    figure.supylabel(f"test {measure}, averaged model", fontsize="small")
    return legend(figure)


def _title(groups: Sequence[Group], what: str) -> str:
    counts = sorted({len(group.runs) for group in groups})
    if counts == [1]:
        return what
    n = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{what}: means of {n} runs, 95 % bands"


def _has(group: Group, x: str, y: str) -> bool:
    return all({x, y} <= set(named.run.evaluation) for named in group.runs)


def _seedless(group: Group) -> Mapping[str, Any]:
    return {key: value for key, value in group.settings.items() if key != "seed"}
