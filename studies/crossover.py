"""From which t_c / t_p on which algorithm wins: `python studies/crossover.py` writes the page.

It trains nothing. Steps to an accuracy are those of the study of MNIST, whose models do not depend
on what a step or an average takes; times follow from the closed form of a step.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from command import RESULTS, Ledger, groups
from mnist import RANKS, TARGETS, label, part
from pages import fill_all, legend, panels, plus_minus, save, write_csv
from runs import spread

from mpisgd.predict.epoch import averaging_cost
from mpisgd.values.statistics import half_width

Row = dict[str, Any]

RATIOS = np.round(np.geomspace(0.02, 8.0, 241), 4)  # t_c / t_p
SHOWN = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
LOOKS = {
    "mini-batch": "#222222", "Local": "#ee6677", "delta d=2": "#228833",
    "DaSGD d=1 xi=0.25": "#66ccee", "DaSGD d=2 xi=0.25": "#4477aa",
}  # fmt: skip


class Way(NamedTuple):
    """An algorithm on its way to a target: `steps` of each seed, at the rate that needs fewest."""

    cell: Mapping[str, Any]
    steps: list[float]

    def times(self, ratio: float) -> np.ndarray:
        """What each seed takes, in steps' compute times t_p, with the final average."""
        tau, delay = self.cell.get("tau", 1), self.cell.get("delay", 0)
        final = ratio if self.cell["algorithm"] != "minibatch" else 0.0
        return np.array(self.steps) * averaging_cost(1.0, ratio, RANKS, tau, delay).step_s + final


def steps_to(line: Mapping[str, Any], target: float) -> float:
    """Steps until a validation accuracy, on the line between the evaluations around it; NaN."""
    seen = line["evaluations"]
    before, below = 0.0, 0.1
    for step, accuracy in zip(seen["step"], seen["accuracy"], strict=True):
        if accuracy >= target:
            return before + (step - before) * (target - below) / (accuracy - below)
        before, below = step, accuracy
    return math.nan


def ways(ledger: Ledger, target: float) -> dict[str, Way]:
    """Of each algorithm that reaches the target with every seed at some rate of the grid."""
    found: dict[str, Way] = {}
    for cell, lines in groups(ledger, part("rates")):
        way = Way(cell, [steps_to(line, target) for line in lines if "failure" not in line])
        whole = len(way.steps) == len(lines) and not any(map(math.isnan, way.steps))
        name = label(cell)
        if whole and (name not in found or np.mean(way.steps) < np.mean(found[name].steps)):
            found[name] = way
    return {name: found[name] for name in LOOKS if name in found}


def winner(ways: Mapping[str, Way], ratio: float) -> tuple[str, bool]:
    """(the quickest in the mean, whether it is so beyond Student's 95 % interval of each pair)."""
    return quickest({name: way.times(ratio) for name, way in ways.items()})


def quickest(times: Mapping[str, np.ndarray]) -> tuple[str, bool]:
    """As `winner`, by each one's times."""
    first = min(times, key=lambda name: times[name].mean())
    gaps = [times[name] - times[first] for name in times if name != first]
    return first, all(gap.mean() > half_width(list(gap)) for gap in gaps)


def spans(ways: Mapping[str, Way]) -> list[Row]:
    """Who is quickest from which t_c / t_p to which, and where within that it is beyond doubt."""
    rows: list[Row] = []
    told = [(float(ratio), *winner(ways, float(ratio))) for ratio in RATIOS]
    for name, members in groupby(told, key=lambda one: one[1]):
        found = list(members)
        sure = [ratio for ratio, _, beyond in found if beyond]
        rows.append(
            {
                "quickest": name,
                "t_c / t_p": f"{found[0][0]:.2g} to {found[-1][0]:.2g}",
                "beyond the seeds' interval": f"{sure[0]:.2g} to {sure[-1]:.2g}" if sure else "-",
            }
        )
    return rows


def over_minibatch(ways: Mapping[str, Way]) -> list[Row]:
    """Time to the target over mini-batch's of the same seed."""
    rows: list[Row] = []
    for name, way in ways.items():
        row: Row = {"algorithm": name, "rate": f"{way.cell['rate']:g}"}
        row["steps"] = plus_minus(*spread(way.steps), 1)
        for ratio in SHOWN:
            shares = way.times(ratio) / ways["mini-batch"].times(ratio)
            row[f"{ratio:g}"] = plus_minus(*spread(list(shares)), 2)
        rows.append(row)
    return rows


def figure(found: Mapping[float, Mapping[str, Way]]) -> Any:
    """Time to each target over mini-batch's, by t_c / t_p."""
    title = f"MNIST, mlp, {RANKS} workers: time to an accuracy, mini-batch SGD = 1"
    drawn, axes = panels(len(found), title, 3.4, 4.2)
    for axis, (target, ways) in zip(axes, found.items(), strict=True):
        for name, way in ways.items():
            shares = np.array([way.times(r) / ways["mini-batch"].times(r) for r in RATIOS])
            middle, width = shares.mean(axis=1), shares.std(axis=1, ddof=1)
            axis.plot(RATIOS, middle, color=LOOKS[name], label=name)
            axis.fill_between(RATIOS, middle - width, middle + width, color=LOOKS[name], alpha=0.15)
        axis.set(xscale="log", xlabel="t_c / t_p", title=f"to {target:.2f}")
    axes[0].set_ylabel("time over mini-batch SGD's")
    legend(drawn, axes, 3)
    return drawn


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its tables."""
    tables: dict[str, Sequence[Row]] = {}
    for target in TARGETS:
        found, name = ways(ledger, target), f"{100 * target:.0f}"
        tables |= {f"spans-{name}": spans(found), f"times-{name}": over_minibatch(found)}
    return fill_all(text, tables)


def main() -> int:
    folder, ledger = RESULTS / "study-crossover", Ledger(RESULTS / "study-mnist" / "runs.jsonl")
    found = {target: ways(ledger, target) for target in TARGETS}
    rows = [
        {"target": target, **row} for target, reached in found.items()
        for row in over_minibatch(reached)
    ]  # fmt: skip
    write_csv(folder / "summary.csv", rows)
    save(figure(found), folder / "crossover.png")
    readme = folder / "README.md"
    readme.write_text(page(readme.read_text(encoding="utf-8"), ledger), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
