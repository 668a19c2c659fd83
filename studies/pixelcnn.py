"""The study of PixelCNN: `python studies/pixelcnn.py run` trains, `figures` makes the page.

`run` needs PyTorch; it takes CIFAR-10's binary files from --data (or the variable MPISGD_DATA, a
folder with `cifar10` in it), keeps one line for each finished run in
results/study-pixelcnn/runs.jsonl, and skips those.

The set-up of Chen et al. 2016 (arXiv 1604.00981) at small size: RMSProp, four images a worker, one
worker alone, 8 and 16 of which one is a backup, and as many asynchronous ones, with 10 servers.
After equally many gradients, whoever computes them: bits per dimension over updates and time.
"""

if __name__ == "__main__":
    import one_thread  # noqa: F401 - before anything imports NumPy

import argparse
import math
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from command import Ledger, add_data, study
from full_length import halved
from hours import judged_by
from pages import band, banded, cost, difference, fill_all, last, legend, panels, publish, summary
from runs import Run, made_with, spread
from settling import judged, mean_loss, run_wanted, table
from stragglers import TAIL
from table_one import load

from mpisgd.data import Dataset

Cell = Mapping[str, Any]
Row = dict[str, Any]

MODEL = f"{Path(__file__).with_name('small_pixelcnn.py')}:build"
JUDGED = 256  # images that a run is evaluated on
GRADIENTS = 2_240  # of four images: 1.17 times through the 7,680 images
EVALUATIONS = 10
SERVERS, BATCH, STEP_S = 10, 4, 0.1
TUNING, SEEDS = (101,), (1, 2, 3, 4, 5)
TARGETS = (7.0, 6.5)  # bits per dimension; chosen when the runs of three seeds were there
FIXED = {
    "model": MODEL, "data": "cifar10", "batch": BATCH, "optimiser": "rmsprop",
    "rmsprop_decay": 0.9, "momentum": 0.9, "epsilon": 1e-10, "rate_schedule": "geometric",
    "network": "eth20-pcie3", "step_time_s": STEP_S, "straggler": TAIL,
}  # fmt: skip
# Fields of each algorithm, its workers, and where the search for its rate begins.
ALGORITHMS: dict[str, tuple[dict[str, Any], int, float]] = {
    "serial": ({"algorithm": "minibatch"}, 1, 3.2e-3),
    "sync, 7 + 1": ({"algorithm": "backup", "backups": 1}, 8, 1.28e-2),
    "sync, 15 + 1": ({"algorithm": "backup", "backups": 1}, 16, 2.56e-2),
    "async, 8": ({"algorithm": "async"}, 8, 8e-4),
    "async, 16": ({"algorithm": "async"}, 16, 4e-4),
}
COLUMNS = ("loss", "time_s", "samples_used")  # of a run's end, in summary.csv
PAIRS = (
    *((name, "serial") for name in list(ALGORITHMS)[1:]),
    ("async, 8", "sync, 7 + 1"), ("async, 16", "sync, 15 + 1"),
    ("sync, 15 + 1", "sync, 7 + 1"), ("async, 16", "async, 8"),
)  # fmt: skip
COLOURS = {
    "serial": "#888888", "sync, 7 + 1": "#228833", "sync, 15 + 1": "#4477aa",
    "async, 8": "#ccbb44", "async, 16": "#ee6677",
}  # fmt: skip


def reduced(path: str) -> tuple[Dataset, Dataset]:
    """`table_one`'s split, at a quarter of the side, with the first images of its two test sets."""
    validation, final = (judged_by(halved(halved(whole)), JUDGED) for whole in load(path))
    return validation, final


def cell(name: str, rate: float, seed: int) -> Cell:
    return {"name": name, "rate": rate, "seed": seed}


def rate_of(ledger: Ledger, name: str) -> tuple[list[float], float | None]:
    """(rates that are judged, the best once it is no edge), by the validation loss at the end."""
    return judged(ledger, ALGORITHMS[name][2], partial(cell, name), TUNING, "loss")


def wanted(ledger: Ledger, name: str) -> list[Cell]:
    """The runs that can be made now: those that judge rates, then results."""
    rates, rate = rate_of(ledger, name)
    if rate is None:
        return [cell(name, one, seed) for one in rates for seed in TUNING]
    return [cell(name, rate, seed) for seed in SEEDS]


def updates_of(name: str) -> int:
    """Of a whole run."""
    fields, workers, _ = ALGORITHMS[name]
    return GRADIENTS // (workers - 1) if "backups" in fields else GRADIENTS


def values(of: Cell) -> dict[str, Any]:
    """The fields of the cell's Experiment."""
    fields, workers, _ = ALGORITHMS[of["name"]]
    steps = GRADIENTS // (workers - fields.get("backups", 0))
    served = {"servers": SERVERS} if workers > 1 else {}
    varied = {"rate": of["rate"], "seed": of["seed"], "steps": steps}
    return FIXED | fields | served | varied | {"evaluate_every": steps // EVALUATIONS}


def run_cell(of: Cell, datasets: tuple[Dataset, Dataset]) -> dict[str, Any]:
    """What the ledger keeps of one run: of tuning seeds evaluations on validation images, of the
    others on test images, which choose nothing."""
    workers = ALGORITHMS[of["name"]][1]
    ranks = workers + SERVERS if workers > 1 else 1
    run = Run(values(of), ranks, datasets[0 if of["seed"] in TUNING else 1])
    failure = run.finish()
    result: dict[str, Any] = run.columns("step", "time_s", "samples_used", "loss", "train_loss")
    if failure:
        result["failure"] = failure
    return result | {"cpu_s": round(run.cpu_s, 2)} | made_with()


def results(ledger: Ledger, name: str) -> list[Row]:
    """The lines of all seeds at the settled rate; none while one is missing."""
    cells = [of for of in wanted(ledger, name) if of["seed"] in SEEDS]
    there = [ledger[of] for of in cells if of in ledger]
    return there if len(there) == len(SEEDS) else []


def until(line: Row, target: float, column: str) -> float:
    """A column at which the loss is down to a target, on the line between evaluations."""
    below = np.flatnonzero(np.array(line["loss"]) <= target)
    if not len(below):
        return math.nan
    at = slice(max(0, below[0] - 1), below[0] + 1)
    return float(np.interp(-target, -np.array(line["loss"][at]), line[column][at]))


def outcomes(ledger: Ledger) -> list[Row]:
    """Each algorithm at its rate: bits at the end, seconds to each target."""
    rows = []
    for name in ALGORITHMS:
        if not (lines := results(ledger, name)):
            continue
        row: Row = {"algorithm": name, "rate": f"{lines[0]['cell']['rate']:g}"}
        row |= {"updates": updates_of(name), "seeds": len(lines)}
        row["bits per dimension"] = banded([last(line, "loss") for line in lines], 3)
        row["virtual s"] = banded([last(line, "time_s") for line in lines], 1)
        for target in TARGETS:
            seconds = [until(line, target, "time_s") for line in lines]
            there = sum(not math.isnan(value) for value in seconds)
            few = f"not reached ({there} of {len(lines)} seeds did)"
            row[f"s to {target:g} bits"] = banded(seconds, 1) if there == len(lines) else few
        rows.append(row)
    return rows


def differences(ledger: Ledger) -> list[Row]:
    """Bits at the end, seed by seed."""
    found = [(one, other, results(ledger, one), results(ledger, other)) for one, other in PAIRS]
    return [
        {"bits per dimension": f"{one} less {other}"} | difference(here, there, "loss", 1, 3)
        for one, other, here, there in found
        if here and there
    ]


def rates(ledger: Ledger) -> list[Row]:
    """Validation loss at every rate that was judged."""

    def loss(name: str, rate: float) -> float | None:
        return mean_loss(ledger, [cell(name, rate, seed) for seed in TUNING])

    return table({name: rate_of(ledger, name) for name in ALGORITHMS}, loss, "algorithm", 3)


def figure(ledger: Ledger) -> Any:
    """Bits per dimension over updates, images and virtual time."""
    drawn, axes = panels(3, f"a small PixelCNN on 8x8 images, {GRADIENTS} gradients of {BATCH}")
    for name, colour in COLOURS.items():
        if not (lines := results(ledger, name)):
            continue
        rows = [line["loss"] for line in lines]
        shares = np.array(lines[0]["step"]) / lines[0]["step"][-1]
        seconds = shares * spread([last(line, "time_s") for line in lines])[0]
        images = np.array(lines[0]["samples_used"]) / 1e3
        for one, places in zip(axes, (shares * updates_of(name), images, seconds), strict=True):
            band(one, places, rows, colour, name)
    for one, text in zip(axes, ("updates", "thousand images used", "virtual s"), strict=True):
        one.set_xlabel(text)
    for one in (axes[0], axes[2]):
        one.set_xscale("log")
    axes[0].set_ylabel("bits per dimension, test images")
    legend(drawn, axes, 5)
    return drawn


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its tables from the ledger."""
    from pixelcnn_real import rows

    tables = {
        "outcomes": outcomes(ledger), "differences": differences(ledger), "rates": rates(ledger),
        "real": rows(ledger), "made": cost(ledger),
    }  # fmt: skip
    return fill_all(text, tables)


def write(folder: Path) -> None:
    """summary.csv, the figure, and the page's tables."""
    publish(folder, page, lambda ledger: summary(ledger, COLUMNS), {"bits": figure})


def run(arguments: argparse.Namespace, ledger: Ledger) -> None:
    datasets = reduced(arguments.data)
    if arguments.real:
        import pixelcnn_real

        pixelcnn_real.run(ledger, arguments.mpiexec, datasets[1])
        return
    run_wanted(
        ALGORITHMS, lambda name: wanted(ledger, name), ledger, lambda of: run_cell(of, datasets)
    )


def add(options: argparse.ArgumentParser) -> None:
    add_data(options, "cifar10", "CIFAR-10's files")
    options.add_argument("--real", action="store_true", help="the few runs on real ranks instead")
    options.add_argument("--mpiexec", help="which mpiexec [the one beside this Python]")


def main() -> int:
    return study(__doc__, "study-pixelcnn", run, write, add)


if __name__ == "__main__":
    sys.exit(main())
