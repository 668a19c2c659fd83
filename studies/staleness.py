"""The staleness study: `python studies/staleness.py run` trains, `figures` draws and tabulates.

`run` takes MNIST's IDX files from --data (or the variable MPISGD_DATA, a folder with `mnist` in
it), keeps one line for each finished run in results/study-staleness/runs.jsonl, and skips those.

MNIST with gradients that are s updates old, one rank, no servers. The serial emulation of Chen et
al. 2016 (arXiv 1604.00981), Section 2: staleness rises to s over the first three epochs and stays
there.

Test errors are per cent at the last step. Runs that were not finite stay in the tables and are
shown so.
"""

if __name__ == "__main__":
    import one_thread  # noqa: F401 - before anything imports NumPy

import argparse
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from command import Ledger, add_mnist, groups, run_missing, study
from mnist import load
from pages import fill_all, legend, marked, panels, plus_minus, publish
from runs import Run, made_with, significant, spread

from mpisgd.data import Dataset
from mpisgd.values.statistics import student

Cell = Mapping[str, Any]
Row = dict[str, Any]

SEEDS = (1, 2, 3, 4, 5)  # of starting point and order of samples; the same for all s: pairs
STALENESS = (0, 5, 10, 15, 20, 50)  # updates
RATES = {0.0: (0.01, 0.02, 0.03, 0.1, 0.3), 0.9: (0.001, 0.003, 0.01, 0.03)}  # by momentum
FEWER_SEEDS = (1, 2)  # at each momentum's highest rate, where most of the row does not train
ORDER = [
    (0.0, 0.02),
    (0.0, 0.1),
    (0.9, 0.01),
    (0.9, 0.001),
    (0.0, 0.03),
    (0.9, 0.003),
    (0.0, 0.01),
]  # all but each momentum's highest rate
OUTER_FIRST = (0, 50, 20, 10, 5, 15)
EPOCHS, BATCH, HIDDEN = 8, 32, (64,)


def cells() -> list[Cell]:
    """All runs, in the order in which they tell most, should the study be cut short."""
    highest = [(momentum, max(rates)) for momentum, rates in RATES.items()]
    order = [(row, s, seed) for row in ORDER for s in OUTER_FIRST for seed in SEEDS]
    order += [(row, s, seed) for row in highest for s in STALENESS for seed in FEWER_SEEDS]
    return [
        {"momentum": momentum, "rate": rate, "staleness": staleness, "seed": seed}
        for (momentum, rate), staleness, seed in order
    ]


def values(cell: Cell) -> dict[str, Any]:
    """The fields of the cell's Experiment."""
    fixed = {
        "algorithm": "stale", "model": "mlp", "hidden": HIDDEN, "data": "mnist",
        "epochs": EPOCHS, "batch": BATCH,
    }  # fmt: skip
    return fixed | dict(cell)


def run_cell(cell: Cell, datasets: tuple[Dataset, Dataset]) -> dict[str, Any]:
    """What the ledger keeps of one run. The test set is used here, once, at the last step."""
    validation, final = datasets
    run = Run(values(cell), 1, validation)
    failure = run.finish()
    columns = run.evaluations
    result: dict[str, Any] = {"steps": run.experiment.steps, "ramp": run.experiment.ramp}
    result |= {name: columns[name] for name in ("step", "accuracy", "loss", "train_loss")}
    if failure:
        result["failure"] = failure
    else:
        loss, accuracy = run.final_test(final)
        result |= {"test_loss": loss, "test_error": significant(1 - accuracy)}
    return result | {"cpu_s": round(run.cpu_s, 2)} | made_with()


COLOURS = ("#1a3a6b", "#08519c", "#3182bd", "#ee6677", "#aa3377")  # by place in the grid
CHANCE = 90.2  # per cent of MNIST's test images that are not of the class met most often, digit 1


def error(line: Row) -> float:
    """Per cent of the test images; NaN for a run that was not finite."""
    return math.nan if "failure" in line else 100 * line["test_error"]


def found(ledger: Ledger) -> dict[tuple[float, float, int], list[Row]]:
    """Finished lines of all seeds by (momentum, rate, staleness)."""
    return {
        (cell["momentum"], cell["rate"], cell["staleness"]): lines
        for cell, lines in groups(ledger, [dict(cell) for cell in cells()])
    }


def shown(lines: list[Row]) -> str:
    """Mean and deviation of the finite runs, and how many were not."""
    errors = [error(line) for line in lines]
    finite = [value for value in errors if not math.isnan(value)]
    if len(finite) == len(errors):
        few = f" ({len(errors)} seeds)" if len(errors) < len(SEEDS) else ""
        return plus_minus(*spread(finite), 2) + few
    lost = f"{len(errors) - len(finite)} of {len(errors)} not finite"
    return f"{lost}; {plus_minus(*spread(finite), 1)}" if finite else lost


def grid(ledger: Ledger, momentum: float) -> list[Row]:
    """Test error: a row for each rate, a column for each staleness."""
    lines = found(ledger)
    return [
        {"rate": f"{rate:g}"}
        | {
            f"s = {s}": shown(lines[momentum, rate, s])
            for s in STALENESS
            if (momentum, rate, s) in lines
        }
        for rate in RATES[momentum]
    ]


def paired(here: list[Row], there: list[Row]) -> tuple[float, float, float, int]:
    """(mean, deviation, t) of the differences `here` - `there` by seed, and how many are above 0.
    Of the seeds that are finite in both; NaN where there are fewer than two."""
    base = {line["cell"]["seed"]: error(line) for line in there}
    differences = [error(line) - base[line["cell"]["seed"]] for line in here]
    differences = [value for value in differences if not math.isnan(value)]
    if len(differences) < 2:
        return math.nan, math.nan, math.nan, sum(value > 0 for value in differences)
    mean, deviation = spread(differences)
    scale = deviation / math.sqrt(len(differences))
    return mean, deviation, mean / scale if scale else math.inf, sum(v > 0 for v in differences)


def pairs(ledger: Ledger, momentum: float) -> list[Row]:
    """Error at s minus error at 0 with the same seed; bold beyond Student's 5 % limit."""
    lines, rows = found(ledger), []
    for rate in RATES[momentum]:
        row: Row = {"rate": f"{rate:g}"}
        for s in STALENESS[1:]:
            if (momentum, rate, s) not in lines:
                continue
            here = lines[momentum, rate, s]
            mean, deviation, t, _ = paired(here, lines[momentum, rate, 0])
            text = "-" if math.isnan(mean) else f"{mean:+.2f} ± {deviation:.2f}"
            if len(here) < len(SEEDS):
                text += f" ({len(here)} seeds)"
            whole = len(here) == len(SEEDS) and not any("failure" in line for line in here)
            row[f"s = {s}"] = f"**{text}**" if whole and abs(t) > student(len(SEEDS) - 1) else text
        rows.append(row)
    return rows


def best(ledger: Ledger) -> list[Row]:
    """Of each momentum and staleness, the rate of the grid with the least mean validation loss."""
    lines, rows = found(ledger), []
    for momentum in RATES:
        row: Row = {"momentum": f"{momentum:g}"}
        for s in STALENESS:
            chosen = []
            for rate in RATES[momentum]:
                runs = lines.get((momentum, rate, s), [])
                if runs and not any("failure" in run for run in runs):
                    chosen.append((spread([run["loss"][-1] for run in runs])[0], rate, runs))
            if chosen:
                _, rate, runs = min(chosen, key=lambda entry: entry[0])
                row[f"s = {s}"] = f"{shown(runs)} at {marked(rate, RATES[momentum])}"
        rows.append(row)
    return rows


def summary(ledger: Ledger) -> list[Row]:
    """One row for each momentum, rate and staleness."""
    lines, rows = found(ledger), []
    for (momentum, rate, s), runs in lines.items():
        errors = [error(run) for run in runs]
        finite = [value for value in errors if not math.isnan(value)]
        mean, deviation = spread(finite) if finite else (math.nan, math.nan)
        row: Row = {"momentum": momentum, "rate": rate, "staleness": s, "seeds": len(runs)}
        row |= {"not_finite": len(runs) - len(finite), "test_error_percent": mean}
        row |= {"test_error_percent_sd": deviation}
        if (momentum, rate, 0) in lines:
            names = ("difference", "difference_sd", "t", "worse")
            row |= dict(zip(names, paired(runs, lines[momentum, rate, 0]), strict=True))
        rows.append(row)
    return rows


def figure(ledger: Ledger) -> Any:
    """Test error over staleness, a line for each rate, a dot for each run."""
    lines = found(ledger)
    drawn, axes = panels(2, "MNIST, gradients s updates old, 8 epochs of 32,768 samples", 4.6)
    for one, momentum in zip(axes, RATES, strict=True):
        places = range(len(STALENESS))
        for colour, rate in zip(COLOURS[-len(RATES[momentum]) :], RATES[momentum], strict=True):
            means = []
            for place, s in zip(places, STALENESS, strict=True):
                errors = [error(run) for run in lines.get((momentum, rate, s), [])]
                reached = [CHANCE if math.isnan(value) else value for value in errors]
                one.plot([place] * len(reached), reached, ".", color=colour, markersize=4)
                means.append(spread(reached)[0] if reached else math.nan)
            one.plot(places, means, color=colour, label=f"rate {rate:g}, momentum {momentum:g}")
        one.axhline(CHANCE, color="#999999", linewidth=0.8, linestyle=":", zorder=0)
        one.set_xticks(list(places), [str(s) for s in STALENESS])
        one.set_xlabel("staleness s (updates)")
        one.set_yscale("log")
        one.set_yticks([2, 5, 10, 20, 50, 90], ["2", "5", "10", "20", "50", "90"])
    axes[0].set_ylabel("test error (%), last step")
    legend(drawn, axes, 3)
    return drawn


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its tables from the ledger."""
    tables = {f"grid-{m:g}": grid(ledger, m) for m in RATES}
    tables |= {f"pairs-{m:g}": pairs(ledger, m) for m in RATES}
    tables |= {"best": best(ledger)}
    return fill_all(text, tables)


def write(folder: Path) -> None:
    """summary.csv, the figure, and the page's tables."""
    publish(folder, page, summary, {"staleness": figure})


def run(arguments: argparse.Namespace, ledger: Ledger) -> None:
    datasets = load(arguments.data)
    run_missing(cells(), ledger, lambda cell: run_cell(cell, datasets))


def main() -> int:
    return study(__doc__, "study-staleness", run, write, add_mnist)


if __name__ == "__main__":
    sys.exit(main())
