"""Table I at full length: `python studies/full_length.py run` trains, `figures` makes the page.

`run` takes CIFAR-10's binary files from --data (or the variable MPISGD_DATA, a folder with
`cifar10` in it), keeps one line for each finished run in results/study-full-length/runs.jsonl, and
skips those: any number of processes, each with other --only, may share it.

The 2,450 steps, one-cycle rate, momentum, weight decay, tau and d of Zhou et al. 2020 (arXiv
2006.00441), Table I, with 8 virtual workers of 16 samples, a small residual network and images of
half the side. Rates by one rule (`wanted`), on seeds that no result uses.
"""

if __name__ == "__main__":
    import one_thread  # noqa: F401 - before anything imports NumPy

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import settling
from command import Ledger, add_data, study
from runs import Run, made_with
from settling import mean_loss, run_wanted
from table_one import load

from mpisgd.data import Dataset
from mpisgd.training.effective import effective_steps

Cell = Mapping[str, Any]
Row = dict[str, Any]

RANKS, BATCH, STEPS = 8, 16, 2450
SCREEN, SETTLE = 306, 1225  # steps of the runs that choose a rate: an eighth, a half
RATES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64)  # peaks; the first is the paper's
TUNING, SEEDS = (101, 102), (1, 2, 3, 4, 5)
# The butterfly of 8 ranks takes 0.1065 ms for this network; t_c = 0.65 t_p as in `table_one`.
NETWORK, STEP_S = "titanx-20g", 1.64e-4
FIXED = {
    "model": "resnet8", "hidden": (8,), "data": "cifar10", "augment": "crop-flip", "batch": BATCH,
    "momentum": 0.9, "weight_decay": 0.01, "rate_schedule": "one-cycle",
    "network": NETWORK, "step_time_s": STEP_S, "progress": "perfect",
}  # fmt: skip
DASGD = {"algorithm": "dasgd", "tau": 4, "delay": 1}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "mini-batch": {"algorithm": "minibatch"},
    "Local": {"algorithm": "local", "tau": 4},
    "DaSGD, xi 0.25": DASGD | {"xi": 0.25, "merge": "convex"},
    "DaSGD, xi 0.5": DASGD | {"xi": 0.5, "merge": "convex"},
    "delta": DASGD | {"merge": "delta"},
    "overwrite": DASGD | {"merge": "overwrite"},
}
CORRECTED = "DaSGD, xi 0.25, Local's rate corrected"
"""Not tuned: the rate at which, to first order, it behaves as Local at Local's best."""


def halved(dataset: Dataset) -> Dataset:
    """The images with half the side: means of four pixels."""

    def small(images: np.ndarray) -> np.ndarray:
        side = images.shape[-1] // 2
        cut = images.reshape(len(images), 3, side, 2, side, 2)
        return np.ascontiguousarray(cut.mean(axis=(3, 5), dtype=np.float32).astype(images.dtype))

    train, test = small(dataset.train_inputs), small(dataset.test_inputs)
    return replace(dataset, train_inputs=train, test_inputs=test)


def cell(name: str, rate: float, seed: int, steps: int) -> Cell:
    return {"name": name, "rate": rate, "seed": seed, "steps": steps}


def tuning_loss(ledger: Ledger, name: str, rate: float, steps: int) -> float | None:
    """Mean validation loss at the end over the tuning seeds of so many steps; None while one is
    missing, infinite if one was not finite."""
    return mean_loss(ledger, choosing(name, rate, steps))


def choosing(name: str, rate: float, steps: int) -> list[Cell]:
    """The runs that judge one rate: one at the screening, one for each tuning seed after it."""
    seeds = TUNING[:1] if steps == SCREEN else TUNING
    return [cell(name, rate, seed, steps) for seed in seeds]


def best(ledger: Ledger, name: str, rates: list[float], steps: int) -> float | None:
    """The rate of the least tuning loss; None while a run is missing."""
    losses = {rate: tuning_loss(ledger, name, rate, steps) for rate in rates}
    if None in losses.values():
        return None
    return min(rates, key=lambda rate: losses[rate])  # type: ignore[arg-type, return-value]


def settled(ledger: Ledger, name: str) -> tuple[list[float], float | None]:
    """(rates that are judged at half the length, the best of them once its neighbours are worse).

    From the best of the screening and its neighbours, on by factors of 2 while the best is an edge.
    """
    start = best(ledger, name, list(RATES), SCREEN)
    if start is None:
        return [], None
    return settling.settled(start, lambda rate: tuning_loss(ledger, name, rate, SETTLE))


def wanted(ledger: Ledger, name: str) -> list[Cell]:
    """The runs that can be made now: screening, then settling, then results."""
    if name == CORRECTED:
        _, rate = settled(ledger, "Local")
        share = effective_steps(ALGORITHMS["DaSGD, xi 0.25"], STEPS) / STEPS
        rate = None if rate is None else float(f"{rate / share:.4g}")
    else:
        rates, rate = settled(ledger, name)
        if not rates:
            return [c for one in RATES for c in choosing(name, one, SCREEN)]
        if rate is None:
            return [c for one in rates for c in choosing(name, one, SETTLE)]
    return [] if rate is None else [cell(name, rate, seed, STEPS) for seed in SEEDS]


def values(of: Cell) -> dict[str, Any]:
    """The fields of the cell's Experiment; ten evaluations."""
    options = ALGORITHMS["DaSGD, xi 0.25" if of["name"] == CORRECTED else of["name"]]
    varied = {"rate": of["rate"], "seed": of["seed"], "steps": of["steps"]}
    return FIXED | options | varied | {"evaluate_every": of["steps"] // 10}


def run_cell(of: Cell, datasets: tuple[Dataset, Dataset]) -> dict[str, Any]:
    """What the ledger keeps of one run. The test set is used here, once, at the last step."""
    validation, final = datasets
    run = Run(values(of), RANKS, validation)
    failure = run.finish()
    result: dict[str, Any] = {"share": run.share, **run.evaluations}
    if failure:
        result["failure"] = failure
    else:
        result["test_loss"], result["test_accuracy"] = run.final_test(final)
    return result | {"cpu_s": round(run.cpu_s, 2)} | made_with()


def run(arguments: argparse.Namespace, ledger: Ledger) -> None:
    datasets = tuple(map(halved, load(arguments.data)))
    names = arguments.only or [*ALGORITHMS, CORRECTED]
    run_wanted(
        names,
        lambda name: wanted(ledger, name),
        ledger,
        lambda c: run_cell(c, datasets),  # type: ignore[arg-type]
    )


def add(options: argparse.ArgumentParser) -> None:
    add_data(options, "cifar10", "CIFAR-10's files")
    options.add_argument("--only", nargs="*", choices=[*ALGORITHMS, CORRECTED], help="algorithms")


def main() -> int:
    from full_length_figures import write

    return study(__doc__, "study-full-length", run, write, add)


if __name__ == "__main__":
    sys.exit(main())
