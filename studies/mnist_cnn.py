"""The study of the MNIST CNN: `python studies/mnist_cnn.py run` trains, `figures` draws.

`run` takes MNIST's IDX files from --data (or the variable MPISGD_DATA, a folder with `mnist` in
it), keeps one line for each finished run in results/study-mnist-cnn/runs.jsonl, and skips those.

One serial worker, and eight in five ways: the recipe of Chen et al. 2016 (arXiv 1604.00981), A.1,
shortened: SGD without momentum, the rate linear to zero over the last 40 % of the steps, small
rotations and zooms.
"""

if __name__ == "__main__":
    import one_thread  # noqa: F401 - before anything imports NumPy

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from command import Ledger, add_mnist, groups, run_missing, study
from pages import banded, difference, fill_all, last, legend, panels, publish, summary
from runs import Run, made_with, parts, significant

from mpisgd import data
from mpisgd.data import Dataset

Cell = Mapping[str, Any]
Line = Mapping[str, Any]
Row = dict[str, Any]

TEST_SHARE, VALIDATION, SAMPLES = 1 / 6, 4_944, 45_056  # 10,000 of 60,000 are the test set
EPOCHS, BATCH, WORKERS = 5, 32, 8
STEPS = EPOCHS * SAMPLES // (BATCH * WORKERS)  # of eight workers: 880
EVALUATIONS = 10
SEEDS = (1, 2, 3)
COMMON_RATE = 0.1  # the paper's
FIXED = {
    "model": "mnist-cnn", "hidden": (16, 16, 32, 32), "data": "mnist", "augment": "rotate-zoom",
    "batch": BATCH, "momentum": 0.0, "rate_schedule": "linear-tail",
    "network": "titanx-20g", "step_time_s": 0.02, "straggler": "lognormal:0.3",
}  # fmt: skip
# Fields of each algorithm, and its ranks: servers have one of their own.
ALGORITHMS: dict[str, tuple[dict[str, Any], int]] = {
    "serial": ({"algorithm": "minibatch"}, 1),
    "mini-batch": ({"algorithm": "minibatch"}, WORKERS),
    "Local": ({"algorithm": "local", "tau": 4}, WORKERS),
    "DaSGD": ({"algorithm": "dasgd", "tau": 4, "delay": 1, "xi": 0.25}, WORKERS),
    "backup": ({"algorithm": "backup", "backups": 1}, WORKERS + 1),
    "async": ({"algorithm": "async"}, WORKERS + 1),
}


def load(path: str) -> tuple[Dataset, Dataset]:
    """(training samples with the validation samples as test set, the same with the true one)."""
    return parts(data.load("mnist", path, held_back=TEST_SHARE), VALIDATION, SAMPLES)


def cells() -> list[Cell]:
    """Every algorithm at the paper's rate, seed by seed."""
    return [_cell(name, COMMON_RATE, seed) for seed in SEEDS for name in ALGORITHMS]


def run_cell(cell: Cell, datasets: tuple[Dataset, Dataset]) -> dict[str, Any]:
    """What the ledger keeps of one run. The test set is used here, once, at the last step."""
    validation, final = datasets
    varied, ranks = ALGORITHMS[cell["name"]]
    steps = STEPS * (WORKERS if ranks == 1 else 1)
    values = FIXED | varied | {"rate": cell["rate"], "seed": cell["seed"]}
    values |= {"steps": steps, "evaluate_every": steps // EVALUATIONS}
    run = Run(values, ranks, validation)
    failure = run.finish()
    names = ("step", "time_s", "samples_computed", "loss", "accuracy", "train_loss")
    result: dict[str, Any] = run.columns(*names)
    if failure:
        result["failure"] = failure
    else:
        loss, accuracy = run.final_test(final)
        result |= {"test_loss": loss, "test_error": significant(1 - accuracy)}
    return result | {"cpu_s": round(run.cpu_s, 2)} | made_with()


def _cell(name: str, rate: float, seed: int) -> Cell:
    return {"name": name, "rate": rate, "seed": seed}


COLUMNS = ("test_error", "test_loss", "train_loss", "samples_computed", "time_s")
ENDS = {
    "test error (%)": ("test_error", 100, 2), "test loss": ("test_loss", 1, 4),
    "train loss": ("train_loss", 1, 4),
}  # fmt: skip
COLOURS = {
    "serial": "#888888", "mini-batch": "#222222", "Local": "#ee6677", "DaSGD": "#4477aa",
    "backup": "#228833", "async": "#ccbb44",
}  # fmt: skip


def outcomes(ledger: Ledger) -> list[Row]:
    """Final results: means over seeds, and half-widths of Student's 95 % intervals."""
    return [
        {"algorithm": cell["name"], "rate": f"{cell['rate']:g}", "seeds": len(lines)}
        | {
            heading: banded([factor * last(line, name) for line in lines], digits)
            for heading, (name, factor, digits) in ENDS.items()
        }
        | {"samples computed": f"{last(lines[0], 'samples_computed'):.0f}"}
        | {"virtual s": banded([last(line, "time_s") for line in lines], 1)}
        for cell, lines in groups(ledger, cells())
    ]


def differences(ledger: Ledger) -> list[Row]:
    """Test errors less those of the same seeds, in images of 10,000: of all less serial, and of
    eight workers less mini-batch."""
    found = {cell["name"]: lines for cell, lines in groups(ledger, cells())}
    pairs = [(name, base) for base in ("serial", "mini-batch") for name in found]
    order = list(found)
    return [
        {"images of 10,000": f"{name} less {base}"}
        | difference(found[name], found[base], "test_error", 1e4, 0)
        for name, base in pairs
        if base in found and order.index(name) > order.index(base)
    ]


def figure(ledger: Ledger) -> Any:
    """Training and validation loss over computed samples: mean over seeds, band least to most."""
    title = f"MNIST CNN 16-16-32-32, 8 virtual workers, the paper's rate {COMMON_RATE:g}"
    drawn, axes = panels(2, title, 4.6)
    for cell, lines in groups(ledger, cells()):
        finished = [line for line in lines if "failure" not in line]
        if not finished:
            continue
        samples = np.array(finished[0]["samples_computed"]) / 1e3
        for one, name in zip(axes, ("train_loss", "loss"), strict=True):
            values = np.array([line[name] for line in finished])
            colour = COLOURS[cell["name"]]
            one.plot(samples, values.mean(axis=0), color=colour, label=cell["name"])
            one.fill_between(
                samples, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.2
            )
    for one, text in zip(axes, ("training loss since the last point", "validation loss"),
                         strict=True):  # fmt: skip
        one.set_yscale("log")
        one.set_xlabel("thousand samples computed, by all workers")
        one.set_title(text, fontsize="small")
    axes[0].set_ylabel("cross-entropy")
    legend(drawn, axes, 6)
    return drawn


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its tables from the ledger."""
    return fill_all(text, {"common": outcomes(ledger), "differences": differences(ledger)})


def write(folder: Path) -> None:
    """summary.csv, the figure, and the page's tables."""
    publish(folder, page, lambda ledger: summary(ledger, COLUMNS), {"common": figure})


def run(arguments: argparse.Namespace, ledger: Ledger) -> None:
    datasets = load(arguments.data)
    run_missing(cells(), ledger, lambda cell: run_cell(cell, datasets))


def main() -> int:
    return study(__doc__, "study-mnist-cnn", run, write, add_mnist)


if __name__ == "__main__":
    sys.exit(main())
