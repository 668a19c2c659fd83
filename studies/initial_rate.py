"""Initial rates, and iterations(N): `python studies/initial_rate.py run` trains, `figures` draws,
tabulates and writes iterations.json, which `mpisgd advise --backups` reads.

`run` takes MNIST's IDX files from --data (or the variable MPISGD_DATA, a folder with `mnist` in
it), keeps one line for each finished run in results/study-initial-rate/runs.jsonl, and skips those.

MNIST with virtual servers, updates of N gradients. Two parts after Chen et al. 2016 (arXiv
1604.00981), Sections 3 and 4: `initial`, one N, a rate that decays from gamma0; `iterations`, many
N and no backups, a constant rate tuned for each N.
"""

if __name__ == "__main__":
    import one_thread  # noqa: F401 - before anything imports NumPy

import argparse
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from command import Ledger, add_mnist, groups, run_missing, study
from mnist import load
from pages import fill_all, if_all, legend, panels, plus_minus, publish, reached
from runs import Run, made_with, spread

from mpisgd.data import Dataset

Cell = Mapping[str, Any]
Row = dict[str, Any]

SEEDS = (1, 2, 3)
BATCH, HIDDEN, MOMENTUM = 32, (64,), 0.9

# Fixed from pilots of three and ten runs with another seed, before the study began.
INITIAL_RATES = (0.02, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56)  # gamma0
INITIAL_TARGETS = (0.75, 0.85, 0.90, 0.92, 0.94, 0.95, 0.955)  # validation accuracy
INITIAL: dict[str, Any] = {
    "algorithm": "backup", "backups": 1, "servers": 4, "rate_schedule": "exponential",
    "epochs": 8, "evaluate_every": 8, "network": "titanx-20g", "step_time_s": 0.02,
    "straggler": "lognormal:0.3",
}  # fmt: skip
INITIAL_WORKERS = 17

ITERATION_RATES = {
    1: (0.02, 0.04, 0.08),
    2: (0.04, 0.08, 0.16),
    4: (0.08, 0.16, 0.32),
    8: (0.08, 0.16, 0.32),
    16: (0.16, 0.32, 0.64),
    32: (0.16, 0.32, 0.64, 1.28),
    64: (0.32, 0.64, 1.28),
}  # by N
ITERATION_TARGETS = (0.90, 0.92, 0.94, 0.95)
ITERATIONS: dict[str, Any] = {"algorithm": "backup", "backups": 0}
EPOCHS, MORE_EPOCHS = 5, 8  # the latter for the large N, who need more samples
GRADIENTS_PER_EVALUATION = 64


def cells() -> list[Cell]:
    """All runs, seed by seed."""
    return [cell for seed in SEEDS for cell in (*initial(seed), *iterations(seed))]


def initial(seed: int) -> list[Cell]:
    """One run for each gamma0."""
    return [{"part": "initial", "rate": rate, "seed": seed} for rate in INITIAL_RATES]


def iterations(seed: int) -> list[Cell]:
    """One run for each N and rate."""
    return [
        {"part": "iterations", "gradients": gradients, "rate": rate, "seed": seed}
        for gradients, rates in ITERATION_RATES.items()
        for rate in rates
    ]


def values(cell: Cell) -> tuple[dict[str, Any], int]:
    """(fields of the cell's Experiment, ranks: workers and servers)."""
    shared = {
        "model": "mlp", "hidden": HIDDEN, "data": "mnist", "batch": BATCH, "momentum": MOMENTUM,
        "rate": cell["rate"], "seed": cell["seed"],
    }  # fmt: skip
    if cell["part"] == "initial":
        return shared | INITIAL, INITIAL_WORKERS + INITIAL["servers"]
    gradients = cell["gradients"]
    every = max(1, GRADIENTS_PER_EVALUATION // gradients)
    epochs = EPOCHS if gradients <= 16 else MORE_EPOCHS
    return shared | ITERATIONS | {"evaluate_every": every, "epochs": epochs}, gradients + 1


def run_cell(cell: Cell, datasets: tuple[Dataset, Dataset]) -> dict[str, Any]:
    """What the ledger keeps of one run; one of `iterations` ends at its last target. The test set
    is used by `initial` alone, once, at the last step."""
    validation, final = datasets
    given, ranks = values(cell)
    enough = ITERATION_TARGETS[-1] if cell["part"] == "iterations" else 2.0
    run = Run(given, ranks, validation, enough)
    failure = run.finish()
    result: dict[str, Any] = {"steps": run.experiment.steps}
    result |= run.columns("step", "time_s", "accuracy", "loss")
    if failure:
        result["failure"] = failure
    elif cell["part"] == "initial":
        result["test_loss"], result["test_accuracy"] = run.final_test(final)
    return result | {"cpu_s": round(run.cpu_s, 2)} | made_with()


CURVE_TARGET = 0.94  # of iterations.json: the highest that every N reaches
COLOURS = ("#9ecae1", "#6baed6", "#3182bd", "#08519c", "#fdae6b", "#e6550d", "#a63303")


def part(ledger: Ledger, cells: Any) -> list[tuple[Row, list[Row]]]:
    """(cell without its seed, finished lines) of one part."""
    return groups(ledger, [dict(cell) for seed in SEEDS for cell in cells(seed)])


def initial_table(ledger: Ledger) -> list[Row]:
    """Virtual seconds to each target, and where the run ends."""
    rows = []
    for cell, lines in part(ledger, initial):
        row: Row = {"gamma0": f"{cell['rate']:g}"}
        for target in INITIAL_TARGETS:
            times = [reached(line, target, "time_s") for line in lines]
            row[f"s to {target:g}"] = if_all(times, 2, "")
        stopped = sum("failure" in line for line in lines)
        ends = [line["accuracy"][-1] for line in lines if "failure" not in line]
        row["at the end"] = (
            f"{stopped} of {len(lines)} not finite" if stopped else plus_minus(*spread(ends), 3)
        )
        rows.append(row)
    return rows


def fastest(ledger: Ledger) -> list[Row]:
    """Of each target, the gamma0 that all seeds reach it with earliest."""
    rows = []
    for target in INITIAL_TARGETS:
        times = [
            (spread([reached(line, target, "time_s") for line in lines]), cell["rate"])
            for cell, lines in part(ledger, initial)
        ]
        there = sorted(entry for entry in times if not math.isnan(entry[0][0]))
        if there:
            (mean, deviation), rate = there[0]
            rows.append({"target": f"{target:g}", "fastest gamma0": f"{rate:g}",
                         "virtual s": plus_minus(mean, deviation, 2)})  # fmt: skip
    return rows


def counts(ledger: Ledger, target: float) -> dict[int, tuple[float, list[float]]]:
    """N -> (rate with the least mean, iterations to the target of each seed), if all got there."""
    best: dict[int, tuple[float, list[float]]] = {}
    for cell, lines in part(ledger, iterations):
        values = [reached(line, target, "step") for line in lines]
        mean = float(np.mean(values))
        n = cell["gradients"]
        if not math.isnan(mean) and (n not in best or mean < np.mean(best[n][1])):
            best[n] = cell["rate"], values
    return best


def exponent(points: dict[int, tuple[float, list[float]]]) -> tuple[float, float]:
    """(p, factor) of the least-squares line iterations = factor * N^p in logarithms."""
    x = np.log(list(points))
    y = np.log([np.mean(values) for _, values in points.values()])
    slope, offset = np.polyfit(x, y, 1)
    return float(slope), float(np.exp(offset))


def iterations_table(ledger: Ledger) -> list[Row]:
    """Iterations to each target at each N's best rate, the last target's samples too."""
    found = {target: counts(ledger, target) for target in ITERATION_TARGETS}
    rows = []
    for n, rates in ITERATION_RATES.items():
        row: Row = {"N": n}
        for target, best in found.items():
            if n not in best:
                row[f"to {target:g}"] = "not reached"
                continue
            rate, values = best[n]
            edge = "*" if rate in (rates[0], rates[-1]) else ""
            row[f"to {target:g}"] = f"{plus_minus(*spread(values), 0)} at {rate:g}{edge}"
        last = found[ITERATION_TARGETS[-1]]
        if n in last:
            row["gradients to the last"] = f"{n * np.mean(last[n][1]):.0f}"
        rows.append(row)
    return rows


def curve(ledger: Ledger, target: float) -> list[Row]:
    """What `mpisgd advise --backups --iterations` reads: a row for each N and seed."""
    return [
        {"needed": n, "iterations": value, "rate": rate, "target": target}
        for n, (rate, values) in counts(ledger, target).items()
        for value in values
    ]


def initial_figure(ledger: Ledger) -> Any:
    """Accuracy over virtual time, a line for each gamma0: the mean over seeds."""
    figure, (left, right) = panels(2, "16 of 17 gradients an update; the rate decays to 0.084 "
                                   "gamma0", 4.6)  # fmt: skip
    for colour, (cell, lines) in zip(COLOURS, part(ledger, initial), strict=False):
        if any("failure" in line for line in lines):
            continue
        times = np.mean([line["time_s"] for line in lines], axis=0)
        values = np.array([line["accuracy"] for line in lines])
        for one in (left, right):
            one.plot(times, values.mean(axis=0), color=colour, label=f"gamma0 {cell['rate']:g}")
            one.fill_between(times, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.2)
    for one in (left, right):
        one.set_xlabel("virtual seconds")
        one.set_ylim(0.6, 0.97)
    left.set_xlim(0, 5)
    left.set_ylabel("validation accuracy")
    legend(figure, (left, right), 4)
    return figure


def iterations_figure(ledger: Ledger) -> Any:
    """Iterations over N for each target, with the paper's slope."""
    figure, (one,) = panels(1, "iterations to a validation accuracy, best rate of each N")
    for colour, target in zip(COLOURS[1:], ITERATION_TARGETS, strict=False):
        points = counts(ledger, target)
        if len(points) < 2:
            continue
        spreads = [spread(values) for _, values in points.values()]
        means, deviations = zip(*spreads, strict=True)
        one.errorbar(list(points), means, deviations, marker="o", capsize=2, color=colour,
                     label=f"to {target:g}: N^{exponent(points)[0]:.2f}")  # fmt: skip
    places = np.array(list(ITERATION_RATES))
    points = counts(ledger, ITERATION_TARGETS[-1])
    if points:
        first = float(np.mean(points[min(points)][1]))
        for power, style, text in ((-0.852, "--", "N^-0.852, the paper's two points"),
                                   (-1, ":", "1/N: no sample is wasted")):  # fmt: skip
            one.plot(places, first * (places / min(points)) ** power, style, color="#999999",
                     label=text)  # fmt: skip
    one.set_xscale("log", base=2)
    one.set_yscale("log")
    one.set_xticks(places, [str(n) for n in places])
    one.set_xlabel("N, gradients of 32 samples in an update")
    one.set_ylabel("iterations")
    legend(figure, [one], 2)
    return figure


def exponents(ledger: Ledger) -> list[Row]:
    """The slope of each target's curve, over all N and over the upper half."""
    rows = []
    for target in ITERATION_TARGETS:
        points = counts(ledger, target)
        upper = {n: value for n, value in points.items() if n >= 8}
        if len(upper) > 1:
            rows.append({"target": f"{target:g}", "N": f"{min(points)} to {max(points)}",
                         "exponent": f"{exponent(points)[0]:.2f}",
                         "exponent, N >= 8": f"{exponent(upper)[0]:.2f}"})  # fmt: skip
    return rows


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its tables from the ledger."""
    tables = {
        "initial": initial_table(ledger), "fastest": fastest(ledger),
        "iterations": iterations_table(ledger), "exponents": exponents(ledger),
    }  # fmt: skip
    return fill_all(text, tables)


def summary(ledger: Ledger) -> list[Row]:
    """One row for each rate of each part: steps and virtual seconds to each target."""
    rows = []
    for cells, targets in ((initial, INITIAL_TARGETS), (iterations, ITERATION_TARGETS)):
        for cell, lines in part(ledger, cells):
            row: Row = {**cell, "seeds": len(lines)}
            row["stopped_early"] = sum("failure" in line for line in lines)
            for target in targets:
                for name in ("step", "time_s"):
                    mean, deviation = spread([reached(line, target, name) for line in lines])
                    row |= {f"{name}_to_{target:g}": mean, f"{name}_to_{target:g}_sd": deviation}
            rows.append(row)
    return rows


def write(folder: Path) -> None:
    """summary.csv, iterations.json, the figures, and the page's tables."""
    ledger = Ledger(folder / "runs.jsonl")
    text = ",\n".join(json.dumps(row) for row in curve(ledger, CURVE_TARGET))
    (folder / "iterations.json").write_text(f"[{text}]\n", encoding="utf-8")
    publish(
        folder, page, summary, {"initial-rate": initial_figure, "iterations": iterations_figure}
    )


def run(arguments: argparse.Namespace, ledger: Ledger) -> None:
    datasets = load(arguments.data)
    run_missing(cells(), ledger, lambda cell: run_cell(cell, datasets))


def main() -> int:
    return study(__doc__, "study-initial-rate", run, write, add_mnist)


if __name__ == "__main__":
    sys.exit(main())
