"""The study of old gradients in the MNIST CNN: `python studies/cnn_stale.py run` trains, `figures`
makes the page.

`run` takes MNIST's IDX files from --data (or the variable MPISGD_DATA, a folder with `mnist` in
it), keeps one line for each finished run in results/study-cnn-stale/runs.jsonl, and skips those.

The recipe of Chen et al. 2016 (arXiv 1604.00981), A.1, on fewer images and channels: 25 epochs of
SGD without momentum, the rate linear to zero over the last ten, a moving average of the parameters,
small rotations and zooms; one worker with gradients that are s updates old.
"""

if __name__ == "__main__":
    import one_thread  # noqa: F401 - before anything imports NumPy

import argparse
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from command import Ledger, add_mnist, study
from mnist_cnn import TEST_SHARE
from runs import Run, made_with, parts, significant
from settling import judged, run_wanted

from mpisgd import data
from mpisgd.data import Dataset

Cell = Mapping[str, Any]

VALIDATION, SAMPLES = 4_944, 5_120
EPOCHS, BATCH = 25, 32
UPDATES = EPOCHS * SAMPLES // BATCH  # of one worker
# The paper's average looks back 10,000 updates of 25 epochs of 60,000 images: of 46,875 with
# batches of 32. Here too it looks back 0.21 of the run, whatever the number of updates.
MEMORY = 10_000 / (25 * 60_000 / 32)
TUNING, SEEDS, FEW = (101,), (1, 2, 3, 4, 5), (1, 2, 3)
ENDS = (0, 50)  # the ages that have all seeds
# Where the search for each age's rate begins: at the paper's, and lower for older gradients.
STARTS = {0: 0.1, 5: 0.05, 10: 0.025, 20: 0.0125, 50: 0.025}
FIXED = {
    "model": "mnist-cnn", "hidden": (8, 8, 16, 16), "data": "mnist", "augment": "rotate-zoom",
    "batch": BATCH, "momentum": 0.0, "rate_schedule": "linear-tail", "evaluate_every": 0,
    "algorithm": "stale",
}  # fmt: skip


def load(path: str) -> tuple[Dataset, Dataset]:
    """(training samples with the validation samples as test set, the same with the true one)."""
    return parts(data.load("mnist", path, held_back=TEST_SHARE), VALIDATION, SAMPLES)


def cell(s: int, rate: float, seed: int) -> Cell:
    return {"name": f"s = {s}", "rate": rate, "seed": seed}


def rate_of(ledger: Ledger, s: int) -> tuple[list[float], float | None]:
    """(rates that are judged, the best once it is no edge), by the validation loss of the averaged
    parameters at the end."""
    return judged(ledger, STARTS[s], partial(cell, s), TUNING, "ema_loss")


def wanted(ledger: Ledger, s: int) -> list[Cell]:
    """The runs that can be made now: those that judge rates, then results."""
    rates, rate = rate_of(ledger, s)
    if rate is None:
        return [cell(s, one, seed) for one in rates for seed in TUNING]
    return [cell(s, rate, seed) for seed in (SEEDS if s in ENDS else FEW)]


def crossed(ledger: Ledger) -> list[Cell]:
    """No age at the rate of the highest, and all others at the rate of none."""
    none, most = ENDS
    pairs = [(none, most), *((s, none) for s in (most, *STARTS) if s != none)]
    found = [(s, rate_of(ledger, of)[1]) for s, of in dict.fromkeys(pairs)]
    return [cell(s, rate, seed) for s, rate in found if rate is not None for seed in FEW]


def values(of: Cell) -> dict[str, Any]:
    """The fields of the cell's Experiment; its one evaluation is at the end."""
    staleness = int(of["name"].removeprefix("s = "))
    varied = {"staleness": staleness, "rate": of["rate"], "seed": of["seed"], "steps": UPDATES}
    return FIXED | varied | {"ema": significant(1 - 1 / (MEMORY * UPDATES))}


COLUMNS = ("samples_computed", "loss", "accuracy", "ema_loss", "ema_accuracy")


def run_cell(of: Cell, datasets: tuple[Dataset, Dataset]) -> dict[str, Any]:
    """What the ledger keeps of one run, at its end: of tuning seeds by the validation samples, of
    the others by the test samples, which are used here alone."""
    judges = of["seed"] in TUNING
    run = Run(values(of), 1, datasets[0 if judges else 1])
    failure = run.finish()
    result: dict[str, Any] = {"ema": run.experiment.ema}
    if failure:
        result["failure"] = failure
    else:
        columns = run.columns(*COLUMNS)
        result |= {name: columns[name][-1:] for name in COLUMNS}
    return result | {"cpu_s": round(run.cpu_s, 2)} | made_with()


CROSSED = "crossed"
NAMES = [*map(str, ENDS), CROSSED, *(str(s) for s in STARTS if s not in ENDS)]


def run(arguments: argparse.Namespace, ledger: Ledger) -> None:
    datasets = load(arguments.data)

    def asked(name: str) -> list[Cell]:
        return crossed(ledger) if name == CROSSED else wanted(ledger, int(name))

    run_wanted(arguments.only or NAMES, asked, ledger, lambda of: run_cell(of, datasets))


def add(options: argparse.ArgumentParser) -> None:
    add_mnist(options)
    options.add_argument("--only", nargs="*", choices=NAMES, help="ages, and ages at others' rates")


def main() -> int:
    from cnn_stale_pages import write

    return study(__doc__, "study-cnn-stale", run, write, add)


if __name__ == "__main__":
    sys.exit(main())
