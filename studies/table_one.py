"""The reduced Table I: `python studies/table_one.py run` trains, `figures` draws and tabulates.

`run` takes CIFAR-10's binary files from --data (or the variable MPISGD_DATA, a folder with
`cifar10` in it), keeps one line for each finished run in results/study-table-one/runs.jsonl, and
skips those.

A small residual network, 32 virtual workers, three algorithms. After Zhou et al. 2020 (arXiv
2006.00441), Table I: tau = 4, d = 1, one-cycle rate, momentum 0.9, weight decay 0.01. Smaller in
everything else: network, data, samples a step, steps.
"""

if __name__ == "__main__":
    import one_thread  # noqa: F401 - before anything imports NumPy

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from command import Ledger, add_data, groups, run_missing, study
from pages import (
    COLOURS,
    MARKERS,
    best_rate,
    difference,
    ends,
    fill_all,
    if_all,
    legend,
    panels,
    publish,
    rates,
    reached,
    summary,
)
from runs import Run, made_with, parts, significant

from mpisgd import data
from mpisgd.data import Dataset
from mpisgd.training.effective import effective_steps

Cell = Mapping[str, Any]
Row = dict[str, Any]

TEST, VALIDATION, SAMPLES = 1_310, 1_000, 7_680
RANKS, BATCH = 32, 16
EPOCHS, SWEEP_EPOCHS = 20, 8
SEEDS = (1, 2, 3)
RATES = (0.01, 0.04, 0.16)  # peaks; the first is the paper's
# The butterfly of 32 ranks takes 0.674 ms for this network. In the paper's model ResNet-50 with 32
# samples takes 155.5 ms a step and 100.7 ms an average (TITAN X, 20 Gbps, one message a server):
# the step here has that ratio, t_c = 0.65 t_p.
NETWORK, STEP_S = "titanx-20g", 1.04e-3
FIXED = {
    "model": "resnet8", "hidden": (8,), "data": "cifar10", "augment": "crop-flip", "batch": BATCH,
    "momentum": 0.9, "weight_decay": 0.01, "rate_schedule": "one-cycle",
    "network": NETWORK, "step_time_s": STEP_S, "progress": "perfect",
}  # fmt: skip
ALGORITHMS: dict[str, dict[str, Any]] = {
    "mini-batch": {"algorithm": "minibatch"},
    "Local": {"algorithm": "local", "tau": 4},
    "DaSGD": {"algorithm": "dasgd", "tau": 4, "delay": 1, "xi": 0.25, "merge": "convex"},
}


def load(path: str) -> tuple[Dataset, Dataset]:
    """(training samples with the validation samples as test set, the same with the true one)."""
    share = TEST / (TEST + VALIDATION + SAMPLES)
    return parts(data.load("cifar10", path, held_back=share), VALIDATION, SAMPLES)


def sweep() -> list[Cell]:
    """Every algorithm at every rate of the grid: short, one seed."""
    return [cell for cells in zip(*map(sweep_of, ALGORITHMS), strict=True) for cell in cells]


def tuned(ledger: Ledger) -> list[Cell]:
    """Every algorithm at its best rate of the sweep, seed by seed; once the sweep is done."""
    rates = {name: best_rate(ledger, sweep_of(name)) for name in ALGORITHMS}
    found = [(name, rate) for name, rate in rates.items() if rate is not None]
    return [_cell(name, rate, seed, EPOCHS) for seed in SEEDS for name, rate in found]


def sweep_of(name: str) -> list[Cell]:
    """The runs that choose an algorithm's rate."""
    return [_cell(name, rate, SEEDS[0], SWEEP_EPOCHS) for rate in RATES]


def values(cell: Cell) -> dict[str, Any]:
    """The fields of the cell's Experiment; an evaluation an epoch."""
    varied = {"rate": cell["rate"], "seed": cell["seed"], "epochs": cell["epochs"]}
    return FIXED | ALGORITHMS[cell["name"]] | varied


def run_cell(cell: Cell, datasets: tuple[Dataset, Dataset]) -> dict[str, Any]:
    """What the ledger keeps of one run. The test set is used here, once, at the last step."""
    validation, final = datasets
    run = Run(values(cell), RANKS, validation)
    failure = run.finish()
    result: dict[str, Any] = {"steps": run.experiment.steps, "share": run.share, **run.evaluations}
    if failure:
        result["failure"] = failure
    else:
        result["test_loss"], result["test_accuracy"] = run.final_test(final)
    return result | {"cpu_s": round(run.cpu_s, 2)} | made_with()


def samples(line: Mapping[str, Any]) -> list[float]:
    """Computed samples at each evaluation of a run."""
    return [significant(step * RANKS * BATCH) for step in line["step"]]


def _cell(name: str, rate: float, seed: int, epochs: int) -> Cell:
    return {"name": name, "rate": rate, "seed": seed, "epochs": epochs}


COLUMNS = ("test_accuracy", "test_loss", "accuracy", "loss", "train_loss", "time_s")
ENDS = {
    "test accuracy (%)": ("test_accuracy", 100, 1), "validation accuracy (%)": ("accuracy", 100, 1),
    "training loss": ("train_loss", 1, 3), "virtual ms": ("time_s", 1e3, 0),
}  # fmt: skip
TARGETS = (0.3, 0.4, 0.5)  # validation accuracy, fixed before the runs of full length


def outcomes(ledger: Ledger) -> list[Row]:
    """Final results: mean and deviation over seeds."""
    rows = []
    for cell, lines in groups(ledger, tuned(ledger)):
        row: Row = {"algorithm": cell["name"], "peak rate": f"{cell['rate']:g}"}
        row |= {"seeds": len(lines), "steps": lines[0]["steps"]}
        row["effective steps"] = f"{effective_steps(ALGORITHMS[cell['name']], lines[0]['steps']):g}"
        rows.append(row | ends(lines, ENDS))
    return rows


def differences(ledger: Ledger) -> list[Row]:
    """Test accuracy of each pair of algorithms, seed by seed, in points."""
    found = {cell["name"]: lines for cell, lines in groups(ledger, tuned(ledger))}
    names = [name for name in ALGORITHMS if name in found]
    return [
        {"test accuracy, points": f"{one} less {other}"}
        | difference(found[one], found[other], "test_accuracy", 100, 1)
        for place, one in enumerate(names)
        for other in names[:place]
        if len(found[one]) == len(found[other])
    ]


def targets(ledger: Ledger) -> list[Row]:
    """Virtual milliseconds to each validation accuracy, if all seeds reached it."""
    rows = []
    for cell, lines in groups(ledger, tuned(ledger)):
        row: Row = {"algorithm": cell["name"], "peak rate": f"{cell['rate']:g}"}
        for target in TARGETS:
            times = [1e3 * reached(line, target) for line in lines]
            row[f"ms to {100 * target:.0f} %"] = if_all(times, 0)
        rows.append(row)
    return rows


def figure(ledger: Ledger) -> Any:
    """Validation accuracy over samples and over virtual time: mean over seeds and one deviation."""
    drawn, axes = panels(2, "resnet8 of width 8, 32 virtual workers, each at its best rate", 4.6)
    for cell, lines in groups(ledger, tuned(ledger)):
        finished = [line for line in lines if "failure" not in line]
        if not finished:
            continue
        values = 100 * np.array([line["accuracy"] for line in finished])
        middle, width = values.mean(axis=0), values.std(axis=0, ddof=min(1, len(values) - 1))
        places = (np.array(samples(finished[0])) / 1e3, 1e3 * np.array(finished[0]["time_s"]))
        for one, place in zip(axes, places, strict=True):
            name = cell["name"]
            one.plot(place, middle, color=COLOURS[name], marker=MARKERS[name], markersize=3,
                     label=f"{name}, rate {cell['rate']:g}")  # fmt: skip
            one.fill_between(place, middle - width, middle + width, color=COLOURS[name], alpha=0.2)
    axes[0].set_xlabel("thousand samples computed")
    axes[1].set_xlabel("virtual milliseconds, t_c = 0.65 t_p")
    axes[0].set_ylabel("validation accuracy (%), averaged model")
    legend(drawn, axes, 3)
    return drawn


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its tables from the ledger."""
    tables = {
        "rates": rates(ledger, ALGORITHMS, sweep_of, 3), "best": outcomes(ledger),
        "differences": differences(ledger), "targets": targets(ledger),
    }  # fmt: skip
    return fill_all(text, tables)


def write(folder: Path) -> None:
    """summary.csv, the figures, and the page's tables."""
    best = {"best": lambda ledger: figure(ledger) if tuned(ledger) else None}
    publish(folder, page, lambda ledger: summary(ledger, COLUMNS), best)


def run(arguments: argparse.Namespace, ledger: Ledger) -> None:
    datasets = load(arguments.data)
    for cells in (sweep, lambda: tuned(ledger)):
        run_missing(cells(), ledger, lambda cell: run_cell(cell, datasets))


def main() -> int:
    return study(
        __doc__, "study-table-one", run, write,
        lambda options: add_data(options, "cifar10", "CIFAR-10's files"),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
