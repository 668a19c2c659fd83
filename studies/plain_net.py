"""Table I and Fig. 6 of DaSGD on a network that looks at no batch:
`python studies/plain_net.py run` trains, `figures` makes the page.

`run` takes CIFAR-10's binary files from --data (or the variable MPISGD_DATA, a folder with
`cifar10` in it), keeps one line for each finished run in results/study-plain-net/runs.jsonl, and
skips those.

Images, recipe and sizes of `full_length`; the network is that of Chen et al. 2016, A.1, with weight
normalisation: what a sample's slope is depends on no other sample. All runs compute equally many
samples. A *setting* is the fields of an Experiment that vary but rate and seed; a cell has all.
"""

if __name__ == "__main__":
    import one_thread  # noqa: F401 - before anything imports NumPy

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from command import Ledger, add_data, study
from full_length import BATCH, FIXED, RANKS, SETTLE, STEP_S, finished, small_images
from mnist import LOCAL, MINIBATCH, convex, delta
from settling import mean_loss, run_wanted, settled

Setting = dict[str, Any]

SAMPLES = 40_960  # computed in each run: 320 steps of 128, 5.3 epochs
TUNING, SEEDS = 101, (1, 2, 3, 4, 5)
NETWORK = FIXED | {"model": "mnist-cnn", "hidden": (16, 16, 32, 32)}


def at(setting: Setting, ranks: int = RANKS, batch: int = BATCH, **more: Any) -> Setting:
    """The setting at a size."""
    return {"ranks": ranks, "batch": batch, **setting, **more}


BASE = at(convex(2, 0.25))  # the paper's base point of Fig. 6, but for ranks and batch
TABLE = [at(one) for one in (MINIBATCH, LOCAL, convex(1, 0.25), convex(2, 0.25), delta(1))]
ABLATED: dict[str, list[Setting]] = {
    "workers": [at(convex(2, 0.25), ranks=ranks) for ranks in (4, 8, 16)],
    "batch": [at(convex(2, 0.25), batch=batch) for batch in (8, 16, 32)],
    "tau": [at(convex(2, 0.25, tau)) for tau in (2, 4, 8)],
    "xi": [at(convex(2, xi)) for xi in (0.0, 0.25, 0.5, 0.75)],
    "delay": [at(convex(delay, 0.25)) for delay in (0, 1, 2, 3)],
}
"""One at a time around BASE. Of the first two the samples of a step vary, the samples do not."""

HALF = [
    at(one, steps=SETTLE)
    for one in (MINIBATCH, LOCAL, convex(1, 0.25), delta(1), convex(1, 0.0), convex(1, 0.5))
]
"""As long as `full_length.halves`, on the same seeds, at the same rate, 0.04."""
HALF_RATE, HALF_SEEDS = 0.04, (101, 102)


def steps(setting: Mapping[str, Any]) -> int:
    """That compute SAMPLES, but for HALF."""
    return setting.get("steps") or SAMPLES // (setting["ranks"] * setting["batch"])


def judged(ledger: Ledger, setting: Setting) -> tuple[list[float], float | None]:
    """(rates that are judged by their loss on the tuning seed, the best once it is no edge)."""
    return settled(0.04, lambda rate: mean_loss(ledger, [tuning(setting, rate)]))


def tuning(setting: Setting, rate: float) -> Setting:
    """The run that judges a rate."""
    return setting | {"rate": rate, "seed": TUNING}


def common_rate(ledger: Ledger) -> float | None:
    """That of BASE."""
    return judged(ledger, BASE)[1]


def result(setting: Setting, rate: float | None, seeds: Iterable[int]) -> list[Setting]:
    """The runs that are shown; none before there is a rate."""
    return [] if rate is None else [setting | {"rate": rate, "seed": seed} for seed in seeds]


def own(ledger: Ledger, settings: Iterable[Setting], seeds: Sequence[int] = SEEDS) -> list[Setting]:
    """What can be run of settings at their own rate: what judges rates, then results."""
    cells = []
    for one in settings:
        rates, rate = judged(ledger, one)
        cells += [tuning(one, r) for r in rates if rate is None] + result(one, rate, seeds)
    return cells


def common(ledger: Ledger, seeds: Sequence[int] = SEEDS) -> list[Setting]:
    """The ablations at the base point's rate, seed by seed."""
    rate = common_rate(ledger)
    settings = list(chain(*ABLATED.values()))
    return [cell for seed in seeds for one in settings for cell in result(one, rate, [seed])]


def halves() -> list[Setting]:
    """HALF, seed by seed."""
    return [cell for seed in HALF_SEEDS for one in HALF for cell in result(one, HALF_RATE, [seed])]


PARTS: dict[str, Callable[[Ledger, Sequence[int]], list[Setting]]] = {
    "base": lambda ledger, seeds: own(ledger, [BASE], seeds),
    "table": lambda ledger, seeds: own(ledger, TABLE, seeds),
    "common": common,
    "half": lambda ledger, seeds: halves(),
}


def values(cell: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the cell's Experiment; four evaluations."""
    varied = {name: value for name, value in cell.items() if name != "ranks"}
    step_s = STEP_S * cell["batch"] / BATCH
    told = {"steps": steps(cell), "evaluate_every": steps(cell) // 4, "step_time_s": step_s}
    return NETWORK | varied | told


def run(arguments: argparse.Namespace, ledger: Ledger) -> None:
    datasets, seeds = small_images(arguments.data), SEEDS[: arguments.seeds]
    run_wanted(
        arguments.parts or PARTS,
        lambda part: PARTS[part](ledger, seeds),
        ledger,
        lambda cell: finished(values(cell), cell["ranks"], datasets),
    )


def add(options: argparse.ArgumentParser) -> None:
    add_data(options, "cifar10", "CIFAR-10's files")
    options.add_argument("--parts", nargs="*", choices=PARTS, help="what to run")
    options.add_argument("--seeds", type=int, default=len(SEEDS), help="of results, the first few")


def main() -> int:
    from plain_net_figures import write

    return study(__doc__, "study-plain-net", run, write, add)


if __name__ == "__main__":
    sys.exit(main())
