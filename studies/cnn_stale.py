"""The study of old gradients in the MNIST CNN: `python studies/cnn_stale.py run` trains, `figures`
makes the page.

`run` takes MNIST's IDX files from --data (or the variable MPISGD_DATA, a folder with `mnist` in
it), keeps one line for each finished run in results/study-cnn-stale/runs.jsonl, and skips those.

The recipe of Chen et al. 2016 (arXiv 1604.00981), A.1, on fewer images and channels: 25 epochs of
SGD without momentum, the rate linear to zero over the last ten, a moving average of the parameters,
small rotations and zooms; gradients that are s updates old, by one worker, and by 51.
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
START = 0.1  # the paper's rate
FIXED = {
    "model": "mnist-cnn", "hidden": (8, 8, 16, 16), "data": "mnist", "augment": "rotate-zoom",
    "batch": BATCH, "momentum": 0.0, "rate_schedule": "linear-tail", "evaluate_every": 0,
    "network": "titanx-20g", "step_time_s": 0.02, "straggler": "lognormal:0.3",
}  # fmt: skip
STALENESS = (0, 5, 10, 20, 50)
REAL = "async, 51"  # 51 workers and a server: gradients are 50 updates old on average
ALGORITHMS: dict[str, tuple[dict[str, Any], int]] = {
    **{f"s = {s}": ({"algorithm": "stale", "staleness": s}, 1) for s in STALENESS},
    REAL: ({"algorithm": "async"}, 52),
}
OWN = ("s = 0", "s = 50")  # the ages with a rate of their own; all are run at both


def load(path: str) -> tuple[Dataset, Dataset]:
    """(training samples with the validation samples as test set, the same with the true one)."""
    return parts(data.load("mnist", path, held_back=TEST_SHARE), VALIDATION, SAMPLES)


def cell(name: str, rate: float, seed: int) -> Cell:
    return {"name": name, "rate": rate, "seed": seed}


def rate_of(ledger: Ledger, name: str) -> tuple[list[float], float | None]:
    """(rates that are judged, the best once it is no edge), by the validation loss of the averaged
    parameters at the end. The search begins at the paper's rate, at a quarter for s = 50."""
    start = START if name == OWN[0] else START / 4
    return judged(ledger, start, partial(cell, name), TUNING, "ema_loss")


def wanted(ledger: Ledger, name: str) -> list[Cell]:
    """The runs that can be made now: those that judge rates, then results. Of ages without a rate
    of their own results at both of the others', of real servers at that of s = 50."""
    none, most = OWN
    if name not in OWN:
        found = at_rate_of(ledger, most, name, FEW)
        return found if name == REAL else found + at_rate_of(ledger, none, name, FEW)
    rates, rate = rate_of(ledger, name)
    if rate is None:
        return [cell(name, one, seed) for one in rates for seed in TUNING]
    return [cell(name, rate, seed) for seed in SEEDS]


def at_rate_of(ledger: Ledger, other: str, name: str, seeds: tuple[int, ...]) -> list[Cell]:
    """Results of `name` at another's rate, once that has settled."""
    rate = rate_of(ledger, other)[1]
    return [] if rate is None else [cell(name, rate, seed) for seed in seeds]


def crossed(ledger: Ledger) -> list[Cell]:
    """Each of OWN at the other's rate; fewer seeds at that of s = 0, where old ones may fail."""
    none, most = OWN
    return at_rate_of(ledger, most, none, SEEDS) + at_rate_of(ledger, none, most, FEW)


def workers_of(name: str) -> int:
    return 51 if name == REAL else 1


def values(of: Cell) -> dict[str, Any]:
    """The fields of the cell's Experiment; its one evaluation is at the end."""
    steps = UPDATES // workers_of(of["name"])
    ema = significant(1 - 1 / (MEMORY * steps * workers_of(of["name"])))
    varied = {"rate": of["rate"], "seed": of["seed"], "steps": steps, "ema": ema}
    return FIXED | ALGORITHMS[of["name"]][0] | varied


COLUMNS = ("samples_computed", "time_s", "loss", "accuracy", "ema_loss", "ema_accuracy")


def run_cell(of: Cell, datasets: tuple[Dataset, Dataset]) -> dict[str, Any]:
    """What the ledger keeps of one run, at its end: of tuning seeds by the validation samples, of
    the others by the test samples, which are used here alone."""
    judges = of["seed"] in TUNING
    run = Run(values(of), ALGORITHMS[of["name"]][1], datasets[0 if judges else 1])
    failure = run.finish()
    result: dict[str, Any] = {"ema": run.experiment.ema}
    if failure:
        result["failure"] = failure
    else:
        columns = run.columns(*COLUMNS)
        result |= {name: columns[name][-1:] for name in COLUMNS}
        if of["name"] == REAL:
            used = run.result.updates["used"] == 1
            ages = run.result.updates["staleness"][used]
            result["staleness"] = significant(float(ages.mean()))
    return result | {"cpu_s": round(run.cpu_s, 2)} | made_with()


def run(arguments: argparse.Namespace, ledger: Ledger) -> None:
    datasets = load(arguments.data)

    def asked(name: str) -> list[Cell]:
        return crossed(ledger) if name == "crossed" else wanted(ledger, name)

    names = arguments.only or [*OWN, "crossed", *(n for n in ALGORITHMS if n not in OWN)]
    run_wanted(names, asked, ledger, lambda of: run_cell(of, datasets))


def add(options: argparse.ArgumentParser) -> None:
    add_mnist(options)
    options.add_argument("--only", nargs="*", choices=["crossed", *ALGORITHMS], help="of these")


def main() -> int:
    from cnn_stale_pages import write

    return study(__doc__, "study-cnn-stale", run, write, add)


if __name__ == "__main__":
    sys.exit(main())
