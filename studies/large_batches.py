"""Large batches against local algorithms of equal samples: `python studies/large_batches.py run`
trains, `figures` makes the page.

`run` takes MNIST's IDX files from --data (or the variable MPISGD_DATA, a folder with `mnist` in
it), keeps one line for each finished run in results/study-large-batches/runs.jsonl, and skips
those. All runs compute equally many samples, so a larger batch makes fewer steps. *Scaled* rates
are the tuned one of mini-batch SGD at the least batch, times what the batch is larger (Goyal et al.
2017, arXiv 1706.02677), with a warm-up over a tenth of the steps or without.
"""

if __name__ == "__main__":
    import one_thread  # noqa: F401 - before anything imports NumPy

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import settling
from command import Cell, Ledger, add_mnist, groups, study
from full_length import finished
from pages import banded, cost, difference, fill_all, last, panels, publish, summary

from mpisgd import data
from mpisgd.values.statistics import half_width

RANKS = 16
LEAST, BATCHES = 512, (2048, 4096, 8192, 16384)  # samples of all workers' step together
SAMPLES = 524_288  # computed in each run: 11.7 epochs
WARM_UP = 0.1  # share of the steps
TUNED: dict[str, dict[str, Any]] = {
    "mini-batch": {"algorithm": "minibatch"},
    "Local": {"algorithm": "local", "tau": 4},
    "DaSGD": {"algorithm": "dasgd", "tau": 4, "delay": 1, "xi": 0.25},
    "delta": {"algorithm": "dasgd", "tau": 4, "delay": 1, "merge": "delta"},
    "gossip": {"algorithm": "gossip", "tau": 4, "delay": 1},
}
SCALED = {"mini-batch, scaled rate": 0.0, "mini-batch, scaled rate, warm-up": WARM_UP}
NAMES = (*TUNED, *SCALED)
TUNING, SEEDS = 101, (1, 2, 3, 4, 5)
TRAINING, VALIDATION, TEST_SHARE = 45_000, 5_000, 1 / 6
FIXED = {
    "model": "mlp", "hidden": (64,), "data": "mnist", "momentum": 0.9,
    "rate_schedule": "step-decay", "network": "titanx-20g", "step_time_s": 1.44e-3,
    "progress": "perfect",
}  # fmt: skip
COLUMNS = ("loss", "accuracy", "test_loss", "test_accuracy")  # of a run's end, in summary.csv
COLOURS = {
    "mini-batch": "#222222", "Local": "#ee6677", "DaSGD": "#4477aa", "delta": "#228833",
    "gossip": "#661100", "mini-batch, scaled rate": "#bbbbbb",
    "mini-batch, scaled rate, warm-up": "#ccbb44",
}  # fmt: skip


def cell(name: str, total: int, rate: float, seed: int) -> Cell:
    """A run; total: samples of all workers' step."""
    return {"name": name, "samples": total, "rate": rate, "seed": seed}


def steps(total: int) -> int:
    return SAMPLES // total


def settled(ledger: Ledger, name: str, total: int) -> tuple[list[float], float | None]:
    """The rates that are judged on the tuning seed, by validation loss, and the best if known."""
    start = 0.05 * (total / LEAST) ** 0.5
    return settling.judged(
        ledger, start, lambda rate, seed: cell(name, total, rate, seed), (TUNING,), "loss"
    )


def rate_of(ledger: Ledger, name: str, total: int) -> float | None:
    """Tuned at this batch; or of the least one, scaled."""
    if name in TUNED:
        return settled(ledger, name, total)[1]
    least = settled(ledger, "mini-batch", LEAST)[1]
    return None if least is None else least * total / LEAST


def results(ledger: Ledger, name: str, total: int, seeds: Sequence[int] = SEEDS) -> list[Cell]:
    """The runs that are shown; none before there is a rate."""
    rate = rate_of(ledger, name, total)
    return [] if rate is None else [cell(name, total, rate, seed) for seed in seeds]


def tuned(total: int) -> tuple[str, ...]:
    """The algorithms with a rate of their own at a batch; the least is for scaled rates alone."""
    return tuple(TUNED) if total > LEAST else ("mini-batch",)


def wanted(ledger: Ledger, total: int, seeds: Sequence[int]) -> list[Cell]:
    """What can be run at a batch: what judges rates, then results."""
    cells: list[Cell] = []
    for name in tuned(total):
        judged, chosen = settled(ledger, name, total)
        cells += [cell(name, total, rate, TUNING) for rate in judged if chosen is None]
    for name in NAMES if total > LEAST else ("mini-batch",):
        cells += results(ledger, name, total, seeds)
    return cells


def values(of: Cell) -> dict[str, Any]:
    """The fields of the cell's Experiment: evaluated at its end."""
    count, name = steps(of["samples"]), of["name"]
    told = FIXED | TUNED.get(name, TUNED["mini-batch"])
    told |= {"rate": of["rate"], "seed": of["seed"], "batch": of["samples"] // RANKS}
    warm_up = round(SCALED.get(name, 0.0) * count)
    return told | {"steps": count, "evaluate_every": count, "warm_up": warm_up}


def run(arguments: argparse.Namespace, ledger: Ledger) -> None:
    from runs import parts

    whole = data.load("mnist", arguments.data, held_back=TEST_SHARE)
    datasets = parts(whole, VALIDATION, TRAINING)
    seeds = SEEDS[: arguments.seeds]
    settling.run_wanted(
        (LEAST, *BATCHES),
        lambda total: wanted(ledger, total, seeds),
        ledger,
        lambda of: finished(values(of), RANKS, datasets),
    )


def lines(ledger: Ledger, name: str, total: int) -> list[dict[str, Any]]:
    """Finished results."""
    found = groups(ledger, results(ledger, name, total))
    return found[0][1] if found else []


def errors(of: Sequence[Mapping[str, Any]]) -> list[float]:
    """Test errors, per cent."""
    return [100 * (1 - last(dict(line), "test_accuracy")) for line in of]


def outcomes(ledger: Ledger) -> list[dict[str, Any]]:
    """Test error by batch, each with its rate."""
    rows: list[dict[str, Any]] = []
    for name in NAMES:
        row: dict[str, Any] = {"algorithm": name}
        for total in BATCHES:
            if found := lines(ledger, name, total):
                rate = found[0]["cell"]["rate"]
                row[f"{total}, {steps(total)} steps"] = f"{banded(errors(found), 2)} at {rate:.3g}"
        rows.append(row)
    return rows


def differences(ledger: Ledger) -> list[dict[str, Any]]:
    """Seed by seed: each less tuned mini-batch of the same batch; and less mini-batch of the batch
    four times as large, which averages as often."""
    rows: list[dict[str, Any]] = []
    for total in BATCHES:
        pairs = [(one, total, "mini-batch", total) for one in NAMES[1:]]
        if 4 * total in BATCHES:
            several = ("Local", "DaSGD", "delta", "gossip")
            pairs += [(one, total, "mini-batch", 4 * total) for one in several]
        for one, size, other, larger in pairs:
            first, second = lines(ledger, one, size), lines(ledger, other, larger)
            if first and len(first) == len(second):
                told = f"{one} of {size} less {other} of {larger}"
                less = difference(first, second, "test_accuracy", -100, 2)
                rows.append({"test error, points": told} | less)
    return rows


def rates(ledger: Ledger) -> list[dict[str, str]]:
    """Validation loss at each rate that was judged."""
    found = {
        f"{name}, {total}": settled(ledger, name, total)
        for total in (LEAST, *BATCHES)
        for name in tuned(total)
    }

    def loss(what: str, rate: float) -> float | None:
        name, total = what.rsplit(", ", 1)
        return settling.mean_loss(ledger, [cell(name, int(total), rate, TUNING)])

    return settling.table(found, loss, "algorithm, samples a step", 4)


def figure(ledger: Ledger) -> Any:
    """Test error over the samples of a step: means, and Student's 95 % intervals."""
    drawn, (axes,) = panels(1, f"MNIST, {RANKS} workers, {SAMPLES:,} samples computed", 7.0)
    for name in NAMES:
        several = {total: errors(lines(ledger, name, total)) for total in BATCHES}
        several = {total: found for total, found in several.items() if found}
        means = [sum(found) / len(found) for found in several.values()]
        halves = [half_width(found) for found in several.values()]
        axes.errorbar(
            list(several), means, halves, color=COLOURS[name], label=name, marker="o", capsize=3
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(BATCHES, [f"{total:,}" for total in BATCHES])
    axes.set_yscale("log")
    axes.set_xlabel("samples a step, all workers together")
    axes.set_ylabel("test error (%)")
    axes.legend(frameon=False, loc="center right")
    return drawn


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its tables from the ledger."""
    tables: dict[str, Sequence[dict[str, Any]]] = {
        "outcomes": outcomes(ledger), "differences": differences(ledger),
        "rates": rates(ledger), "made": cost(ledger),
    }  # fmt: skip
    return fill_all(text, tables)


def write(folder: Path) -> None:
    """summary.csv, the figure, and the page's tables."""
    publish(folder, page, lambda ledger: summary(ledger, COLUMNS), {"errors": figure})


def main() -> int:
    def add(options: argparse.ArgumentParser) -> None:
        add_mnist(options)
        options.add_argument("--seeds", type=int, default=len(SEEDS), help="the first few")

    return study(__doc__, "study-large-batches", run, write, add)


if __name__ == "__main__":
    sys.exit(main())
