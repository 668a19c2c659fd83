"""Table I at full length: `python studies/full_length.py run` trains, `figures` makes the page.

`run` takes CIFAR-10's binary files from --data (or the variable MPISGD_DATA, a folder with
`cifar10` in it), keeps one line for each finished run in results/study-full-length/runs.jsonl, and
skips those: any number of processes, each with other --only, may share it.

The 2,450 steps, one-cycle rate, momentum, weight decay, tau and d of Zhou et al. 2020 (arXiv
2006.00441), Table I, with 8 virtual workers of 16 samples, a small residual network and images of
half the side. Rates by one rule (`wanted`), on seeds that no result uses. And mini-batch and Local
laid out for the virtual time that DaSGD takes; all three with the other kind of weight decay, and
with the paper's 32 workers.
"""

if __name__ == "__main__":
    import one_thread  # noqa: F401 - before anything imports NumPy

import argparse
import sys
from collections.abc import Mapping, Sequence
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
LOW = (0.0025, 0.005, 0.01, 0.02, 0.04)  # peaks for DiLoCo, whose outer momentum lengthens steps
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
DILOCO = {
    f"DiLoCo, outer rate {rate:g}": {
        "algorithm": "diloco", "tau": 4, "outer_rate": rate, "outer_momentum": 0.9,
    }
    for rate in (0.5, 0.7, 1.0)
}  # fmt: skip
"""Of these the one goes on that does best at the screening, at its best peak."""
MAIN = ("mini-batch", "Local", "DaSGD, xi 0.25")
FURTHER = ("DaSGD, xi 0.5", "delta", "overwrite")
"""Not tuned: at the rate of Local, which is that of all three that are."""
CORRECTED = "DaSGD, xi 0.25, Local's rate corrected"
"""Not tuned: the rate at which, to first order, it behaves as Local at Local's best."""
IN_TIME = {"mini-batch, in DaSGD's time": 1486, "Local, in DaSGD's time": 2108}
"""Steps that take the 402 virtual ms of DaSGD's 2,450, with a one-cycle of their own; at the rate
tuned at 1,225 steps."""
NAMES = [*ALGORITHMS, *DILOCO, CORRECTED, *IN_TIME]
DECOUPLED = {f"{name}, decoupled decay": name for name in MAIN}
"""Weight decay beside the update, not in the gradient; the rate tuned without that."""
WIDE_RANKS, WIDE_STEPS = 32, 612  # as many samples as STEPS of RANKS, less 256
WIDE_STEP_S = 1.04e-3  # the butterfly of 32 ranks takes 0.674 ms: t_c = 0.65 t_p again
WIDE = {f"{name}, 32 workers": name for name in MAIN}
SCALED = {f"{name}, 32 workers, 4 times the rate": name for name in MAIN}
"""The rates of 8 workers, and those times the samples of a step: linear scaling, with the rise of
the one-cycle for a warm-up."""
LONG = {f"{name}, 32 workers, {STEPS} steps": name for name in MAIN}
"""The paper's workers and steps. Rates by the same rule at half the length, with one seed, from
LONG_START, which lies between what 8 workers came to and what 32 did in `table_one`."""
LONG_START = 0.08
LONG_IN_TIME = {"mini-batch, 32 workers, 1486 steps": MAIN[0]}
"""In the virtual time of DaSGD in LONG, at the rate tuned for that of full length."""
MANY = WIDE | SCALED | LONG | LONG_IN_TIME
VARIANTS = DECOUPLED | MANY


def plain(name: str) -> str:
    """The row of ALGORITHMS or DILOCO that a name stands for."""
    if name == CORRECTED:
        return "DaSGD, xi 0.25"
    return VARIANTS.get(name) or name.removesuffix(", in DaSGD's time")


def options(name: str) -> dict[str, Any]:
    """The algorithm's options."""
    return (ALGORITHMS | DILOCO)[plain(name)]


def ranks(name: str) -> int:
    """How many workers."""
    return WIDE_RANKS if name in MANY else RANKS


def length(name: str) -> int:
    """Steps of a result."""
    if name in LONG_IN_TIME:
        return IN_TIME["mini-batch, in DaSGD's time"]
    return WIDE_STEPS if name in WIDE | SCALED else IN_TIME.get(name, STEPS)


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


def best(ledger: Ledger, name: str, steps: int) -> float | None:
    """The one of the screened peaks of the least tuning loss; None while a run is missing."""
    losses = {rate: tuning_loss(ledger, name, rate, steps) for rate in peaks(name)}
    if None in losses.values():
        return None
    return min(losses, key=lambda rate: losses[rate])  # type: ignore[arg-type, return-value]


def peaks(name: str) -> tuple[float, ...]:
    """What is screened."""
    return LOW if name in DILOCO else RATES


def screening(name: str) -> list[Cell]:
    """The shortest runs."""
    return [one for rate in peaks(name) for one in choosing(name, rate, SCREEN)]


def best_outer(ledger: Ledger) -> str | None:
    """The one of DILOCO that goes on; None while a run of their screening is missing."""
    losses = {}
    for name in DILOCO:
        if (rate := best(ledger, name, SCREEN)) is None:
            return None
        losses[name] = tuning_loss(ledger, name, rate, SCREEN)
    return min(losses, key=lambda name: losses[name])  # type: ignore[arg-type, return-value]


def choosing(name: str, rate: float, steps: int) -> list[Cell]:
    """The runs that judge one rate: one at the screening, one for each tuning seed after it."""
    seeds = TUNING[:1] if steps == SCREEN or name in LONG else TUNING
    return [cell(name, rate, seed, steps) for seed in seeds]


def settled(ledger: Ledger, name: str) -> tuple[list[float], float | None]:
    """(rates that are judged at half the length, the best of them once its neighbours are worse).

    From the best of the screening and its neighbours; in LONG, which is not screened, from
    LONG_START.
    """
    start = LONG_START if name in LONG else best(ledger, name, SCREEN)
    if start is None:
        return [], None
    return settling.settled(start, lambda rate: tuning_loss(ledger, name, rate, SETTLE))


def tuned_as(name: str) -> str:
    """The name under which its rate was judged: its own, or that of what lends it a rate."""
    if name == CORRECTED or name in FURTHER:
        return "Local"
    if name in LONG_IN_TIME:
        return next(iter(LONG))
    return name if name in LONG else plain(name)


def wanted(ledger: Ledger, name: str, seeds: Sequence[int] = SEEDS) -> list[Cell]:
    """The runs that can be made now: screening, then settling, then results."""
    if name in DILOCO and (outer := best_outer(ledger)) != name:
        return [] if outer else [one for several in DILOCO for one in screening(several)]
    tuned = tuned_as(name)
    rates, rate = settled(ledger, tuned)
    if name == tuned:
        if not rates:
            return screening(name)
        if rate is None:
            return [c for one in rates for c in choosing(name, one, SETTLE)]
    if rate is None:
        return []
    if name == CORRECTED:
        rate = float(f"{rate * STEPS / effective_steps(options(name), STEPS):.4g}")
    if name in SCALED:
        rate *= WIDE_RANKS // RANKS
    return [cell(name, rate, seed, length(name)) for seed in seeds]


def halves(ledger: Ledger) -> list[Cell]:
    """All algorithms at half the length, on the tuning seeds, at the rate that Local settled at."""
    _, rate = settled(ledger, "Local")
    names = [] if rate is None else ALGORITHMS
    return [cell(name, rate, seed, SETTLE) for name in names for seed in TUNING]


def values(of: Cell) -> dict[str, Any]:
    """The fields of the cell's Experiment; ten evaluations."""
    name, steps = of["name"], of["steps"]
    varied = {"rate": of["rate"], "seed": of["seed"], "steps": steps, "evaluate_every": steps // 10}
    if name in DECOUPLED:
        varied["decoupled"] = True
    if name in MANY:
        varied["step_time_s"] = WIDE_STEP_S
    return FIXED | options(name) | varied


def finished(values: Cell, ranks: int, datasets: tuple[Dataset, Dataset]) -> dict[str, Any]:
    """What a ledger keeps of one run. The test set is used here, once, at the last step."""
    validation, final = datasets
    run = Run(values, ranks, validation)
    failure = run.finish()
    result: dict[str, Any] = {"share": run.share, **run.evaluations}
    if failure:
        result["failure"] = failure
    else:
        result["test_loss"], result["test_accuracy"] = run.final_test(final)
    return result | {"cpu_s": round(run.cpu_s, 2)} | made_with()


def small_images(path: str) -> tuple[Dataset, Dataset]:
    """(training and validation images, training and test images), of half the side."""
    validation, final = map(halved, load(path))
    return validation, final


def run(arguments: argparse.Namespace, ledger: Ledger) -> None:
    datasets = small_images(arguments.data)
    seeds, names = SEEDS[: arguments.seeds], arguments.only or [*NAMES, *VARIANTS]

    def asked(name: str) -> list[Cell]:
        short = [one for one in halves(ledger) if one["name"] == name]
        return short if arguments.half else [*wanted(ledger, name, seeds), *short]

    run_wanted(
        names, asked, ledger, lambda one: finished(values(one), ranks(one["name"]), datasets)
    )


def add(options: argparse.ArgumentParser) -> None:
    add_data(options, "cifar10", "CIFAR-10's files")
    options.add_argument("--half", action="store_true", help="half the length only, at one rate")
    options.add_argument("--only", nargs="*", choices=[*NAMES, *VARIANTS], help="algorithms")
    options.add_argument("--seeds", type=int, default=len(SEEDS), help="of results, the first few")


def main() -> int:
    from full_length_figures import write

    return study(__doc__, "study-full-length", run, write, add)


if __name__ == "__main__":
    sys.exit(main())
