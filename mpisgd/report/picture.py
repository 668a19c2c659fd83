"""A picture of a few runs in characters: where seconds went, and accuracy as they went by."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpisgd.report.collection import Collection

NARROWEST = 12  # characters of a bar
BLOCKS, ASCII = ("█", "▒", "▁▂▃▄▅▆▇█"), ("#", "-", "_.-=+*%#")


class Shown(NamedTuple):
    """One run. seconds: of training; waited: the share of them in which ranks waited for averages;
    times_s, accuracies: of its evaluations, as arrays of equal length."""

    name: str
    seconds: float
    waited: float
    times_s: np.ndarray
    accuracies: np.ndarray


def shown(runs: Collection) -> list[Shown]:
    """What is shown of complete runs with an accuracy."""
    found = []
    for run, row in zip(runs, runs.tables["runs"], strict=True):
        evaluation = run.evaluation
        found.append(
            Shown(
                row["algorithm"], row["time_s"], row["wait_share"] or 0.0,
                np.asarray(evaluation["time_s"]), np.asarray(evaluation["accuracy"]),
            )
        )  # fmt: skip
    return found


def picture(runs: Sequence[Shown], width: int, characters: tuple[str, str, str] = BLOCKS) -> str:
    """Lines of at most `width` characters (but for NARROWEST)."""
    full, light, levels = characters
    names = max(len(run.name) for run in runs)
    room = max(NARROWEST, width - names - 12)
    longest = max(run.seconds for run in runs)
    lowest = min(float(run.accuracies.min()) for run in runs)
    highest = max(float(run.accuracies.max()) for run in runs)
    lines = [f"seconds of training: {full} at work {light} waiting for averages"]
    for run in runs:
        whole = max(1, round(room * run.seconds / longest))
        wait = min(whole, round(whole * run.waited))
        bar = full * (whole - wait) + light * wait
        lines.append(f"{run.name:<{names}}  {bar:<{room}} {run.seconds:.3g} s")
    lines.append(f"test accuracy from {lowest:.2f} {levels[0]} to {highest:.2f} {levels[-1]}")
    for run in runs:
        times = np.linspace(0, longest, room)
        # The last evaluation before each moment; after the run has ended, nothing.
        at = np.searchsorted(run.times_s, times, side="right") - 1
        share = (run.accuracies - lowest) / max(highest - lowest, 1e-9)
        marks = [levels[round(x)] for x in share * (len(levels) - 1)]
        ended = times > run.seconds
        curve = "".join(
            " " if late or i < 0 else marks[i] for i, late in zip(at, ended, strict=True)
        )
        lines.append(f"{run.name:<{names}}  {curve:<{room}} {run.accuracies[-1]:.3f}")
    return "\n".join(line[: max(width, names + NARROWEST + 12)].rstrip() for line in lines)
