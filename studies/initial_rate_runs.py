"""What the study of initial rates runs: MNIST with virtual servers, updates of N gradients.

Two parts after Chen et al. 2016 (arXiv 1604.00981), Sections 3 and 4: `initial`, one N, a rate that
decays from gamma0; `iterations`, many N and no backups, a constant rate tuned for each N.
"""

from collections.abc import Mapping
from typing import Any

from virtual_run import Run, made_with

from mpisgd.data import Dataset

Cell = Mapping[str, Any]

SEEDS = (1, 2, 3)
BATCH, HIDDEN, MOMENTUM = 32, (64,), 0.9

# Fixed from pilots of three and ten runs with another seed, before the study began.
INITIAL_RATES = (0.02, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56)  # gamma0
INITIAL_TARGETS = (0.75, 0.85, 0.90, 0.92, 0.94, 0.95, 0.955)  # validation accuracy
INITIAL: dict[str, Any] = {
    "algorithm": "backup", "backups": 1, "servers": 4, "rate_schedule": "exponential",
    "epochs": 8, "evaluate_every": 8, "network": "titanx-20g", "step_time_s": 0.02,
    "straggler": "lognormal:0.3",
}  # fmt: skip
INITIAL_WORKERS = 17

ITERATION_RATES = {
    1: (0.02, 0.04, 0.08),
    2: (0.04, 0.08, 0.16),
    4: (0.08, 0.16, 0.32),
    8: (0.08, 0.16, 0.32),
    16: (0.16, 0.32, 0.64),
    32: (0.16, 0.32, 0.64, 1.28),
    64: (0.32, 0.64, 1.28),
}  # by N
ITERATION_TARGETS = (0.90, 0.92, 0.94, 0.95)
ITERATIONS: dict[str, Any] = {"algorithm": "backup", "backups": 0}
EPOCHS, MORE_EPOCHS = 5, 8  # the latter for the large N, who need more samples
GRADIENTS_PER_EVALUATION = 64


def cells() -> list[Cell]:
    """All runs, seed by seed."""
    return [cell for seed in SEEDS for cell in (*initial(seed), *iterations(seed))]


def initial(seed: int) -> list[Cell]:
    """One run for each gamma0."""
    return [{"part": "initial", "rate": rate, "seed": seed} for rate in INITIAL_RATES]


def iterations(seed: int) -> list[Cell]:
    """One run for each N and rate."""
    return [
        {"part": "iterations", "gradients": gradients, "rate": rate, "seed": seed}
        for gradients, rates in ITERATION_RATES.items()
        for rate in rates
    ]


def values(cell: Cell) -> tuple[dict[str, Any], int]:
    """(fields of the cell's Experiment, ranks: workers and servers)."""
    shared = {
        "model": "mlp", "hidden": HIDDEN, "data": "mnist", "batch": BATCH, "momentum": MOMENTUM,
        "rate": cell["rate"], "seed": cell["seed"],
    }  # fmt: skip
    if cell["part"] == "initial":
        return shared | INITIAL, INITIAL_WORKERS + INITIAL["servers"]
    gradients = cell["gradients"]
    every = max(1, GRADIENTS_PER_EVALUATION // gradients)
    epochs = EPOCHS if gradients <= 16 else MORE_EPOCHS
    return shared | ITERATIONS | {"evaluate_every": every, "epochs": epochs}, gradients + 1


def run_cell(cell: Cell, datasets: tuple[Dataset, Dataset]) -> dict[str, Any]:
    """What the ledger keeps of one run; one of `iterations` ends at its last target. The test set
    is used by `initial` alone, once, at the last step."""
    validation, final = datasets
    given, ranks = values(cell)
    enough = ITERATION_TARGETS[-1] if cell["part"] == "iterations" else 2.0
    run = Run(given, ranks, validation, enough)
    failure = run.finish()
    result: dict[str, Any] = {"steps": run.experiment.steps}
    result |= run.columns("step", "time_s", "accuracy", "loss")
    if failure:
        result["failure"] = failure
    elif cell["part"] == "initial":
        result["test_loss"], result["test_accuracy"] = run.final_test(final)
    return result | {"cpu_s": round(run.cpu_s, 2)} | made_with()
