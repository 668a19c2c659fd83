"""The study of old gradients in the MNIST CNN: `python studies/cnn_stale.py run` trains, `figures`
makes the page.

`run` takes MNIST's IDX files from --data (or the variable MPISGD_DATA, a folder with `mnist` in
it), keeps one line for each finished run in results/study-cnn-stale/runs.jsonl, and skips those.

The recipe of Chen et al. 2016 (arXiv 1604.00981), A.1, on fewer images and channels: 25 epochs of
SGD without momentum, the rate linear to zero over the last ten, a moving average of the parameters,
small rotations and zooms; one worker with gradients that are s updates old, and workers with a
parameter server that does not wait (`async`: real staleness) or waits for all (`sync`).
"""

if __name__ == "__main__":
    import one_thread  # noqa: F401 - before anything imports NumPy

import argparse
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
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
ENDS = ("s = 0", "s = 50")  # each of the two is run at the other's rate
# Where the search for each one's rate begins: at the paper's, lower for older gradients, higher for
# larger batches. With N asynchronous workers gradients are N - 1 updates old, in the mean.
STARTS = {
    "s = 0": 0.1, "s = 50": 0.025, "s = 20": 0.0125, "s = 10": 0.025, "s = 5": 0.05,
    "async, 8": 0.05, "s = 7": 0.05, "async, 16": 0.025, "s = 15": 0.025,
    "sync, 16": 0.4, "sync, 8": 0.4, "async, 4": 0.1, "sync, 4": 0.2,
    "s = 3": 0.1, "s = 1": 0.1, "async, 2": 0.1, "sync, 2": 0.1,
}  # fmt: skip
WORKERS = (2, 4, 8, 16)
KINDS: dict[str, dict[str, Any]] = {
    "s": {"algorithm": "stale"}, "async": {"algorithm": "async"},
    "sync": {"algorithm": "backup", "backups": 0},
}  # fmt: skip
CLUSTER = {"network": "titanx-20g", "step_time_s": 0.02, "straggler": "lognormal:0.3"}
FIXED = {
    "model": "mnist-cnn", "hidden": (8, 8, 16, 16), "data": "mnist", "augment": "rotate-zoom",
    "batch": BATCH, "momentum": 0.0, "rate_schedule": "linear-tail", "evaluate_every": 0,
}  # fmt: skip


def load(path: str) -> tuple[Dataset, Dataset]:
    """(training samples with the validation samples as test set, the same with the true one)."""
    return parts(data.load("mnist", path, held_back=TEST_SHARE), VALIDATION, SAMPLES)


def age(s: int) -> str:
    """The name of one worker whose gradients are s updates old."""
    return f"s = {s}"


AGES = tuple(sorted(int(name.split()[-1]) for name in STARTS if name.startswith("s =")))


def split(name: str) -> tuple[str, int]:
    """(kind, age or number of workers)."""
    kind, *_, count = name.split()
    return kind.rstrip(","), int(count)


def ranks(name: str) -> int:
    """Workers, and their server."""
    kind, count = split(name)
    return 1 if kind == "s" else count + 1


def updates(name: str) -> int:
    """Of the parameters; all computes as many gradients."""
    kind, count = split(name)
    return UPDATES // count if kind == "sync" else UPDATES


def cell(name: str, rate: float, seed: int) -> Cell:
    return {"name": name, "rate": rate, "seed": seed}


def rate_of(ledger: Ledger, name: str) -> tuple[list[float], float | None]:
    """(rates that are judged, the best once it is no edge), by the validation loss of the averaged
    parameters at the end."""
    return judged(ledger, STARTS[name], partial(cell, name), TUNING, "ema_loss")


def wanted(ledger: Ledger, name: str) -> list[Cell]:
    """The runs that can be made now: those that judge rates, then results."""
    rates, rate = rate_of(ledger, name)
    if rate is None:
        return [cell(name, one, seed) for one in rates for seed in TUNING]
    return [cell(name, rate, seed) for seed in SEEDS]


def crossed(ledger: Ledger) -> list[Cell]:
    """No age at the rate of the highest, and the ages of the paper's range at that of none."""
    none, most = ENDS
    pairs = [(none, most), *((age(s), none) for s in (50, 5, 10, 20))]
    found = [(name, rate_of(ledger, of)[1]) for name, of in pairs]
    return [cell(name, rate, seed) for name, rate in found if rate is not None for seed in FEW]


def values(of: Cell) -> dict[str, Any]:
    """The fields of the cell's Experiment; its one evaluation is at the end."""
    name = of["name"]
    kind, count = split(name)
    varied = {"rate": of["rate"], "seed": of["seed"]} | KINDS[kind]
    if kind == "s":
        varied |= {"staleness": count, "steps": UPDATES}
    else:
        varied |= {"steps": UPDATES // count} | CLUSTER
    return FIXED | varied | {"ema": significant(1 - 1 / (MEMORY * updates(name)))}


COLUMNS = ("samples_computed", "time_s", "loss", "accuracy", "ema_loss", "ema_accuracy")


def run_cell(of: Cell, datasets: tuple[Dataset, Dataset]) -> dict[str, Any]:
    """What the ledger keeps of one run, at its end: of tuning seeds by the validation samples, of
    the others by the test samples, which are used here alone."""
    judges = of["seed"] in TUNING
    run = Run(values(of), ranks(of["name"]), datasets[0 if judges else 1])
    failure = run.finish()
    result: dict[str, Any] = {"ema": run.experiment.ema}
    if failure:
        result["failure"] = failure
    else:
        columns = run.columns(*COLUMNS)
        result |= {name: columns[name][-1:] for name in COLUMNS}
    if ranks(of["name"]) > 1:
        result |= staleness(run)
    return result | {"cpu_s": round(run.cpu_s, 2)} | made_with()


def staleness(run: Run) -> dict[str, float]:
    """Of the gradients that were used, in updates: mean, deviation, percentiles and most."""
    table = run.result.updates
    ages = np.asarray(table["staleness"])[np.asarray(table["used"]) == 1]
    low, high = np.percentile(ages, (5, 95))
    told = {"mean": ages.mean(), "sd": ages.std(), "p5": low, "p95": high, "most": ages.max()}
    return {f"staleness_{name}": significant(float(value)) for name, value in told.items()}


CROSSED = "crossed"
NAMES = [*STARTS, CROSSED]


def run(arguments: argparse.Namespace, ledger: Ledger) -> None:
    datasets = load(arguments.data)

    def asked(name: str) -> list[Cell]:
        return crossed(ledger) if name == CROSSED else wanted(ledger, name)

    run_wanted(arguments.only or NAMES, asked, ledger, lambda of: run_cell(of, datasets))


def add(options: argparse.ArgumentParser) -> None:
    add_mnist(options)
    options.add_argument("--only", nargs="*", choices=NAMES, help="which, and at others' rates")


def main() -> int:
    from cnn_stale_pages import write

    return study(__doc__, "study-cnn-stale", run, write, add)


if __name__ == "__main__":
    sys.exit(main())
