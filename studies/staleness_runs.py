"""What the staleness study runs: MNIST with gradients that are s updates old, one rank, no servers.

The serial emulation of Chen et al. 2016 (arXiv 1604.00981), Section 2: staleness rises to s over
the first three epochs and stays there.
"""

from collections.abc import Mapping
from typing import Any

from virtual_run import Run, made_with, significant

from mpisgd.data import Dataset

Cell = Mapping[str, Any]

SEEDS = (1, 2, 3, 4, 5)  # of starting point and order of samples; the same for all s: pairs
STALENESS = (0, 5, 10, 15, 20, 50)  # updates
RATES = {0.0: (0.01, 0.02, 0.03, 0.1, 0.3), 0.9: (0.001, 0.003, 0.01, 0.03)}  # by momentum
FEWER_SEEDS = (1, 2)  # at each momentum's highest rate, where most of the row does not train
ORDER = [
    (0.0, 0.02),
    (0.0, 0.1),
    (0.9, 0.01),
    (0.9, 0.001),
    (0.0, 0.03),
    (0.9, 0.003),
    (0.0, 0.01),
]  # all but each momentum's highest rate
OUTER_FIRST = (0, 50, 20, 10, 5, 15)
EPOCHS, BATCH, HIDDEN = 8, 32, (64,)


def cells() -> list[Cell]:
    """All runs, in the order in which they tell most, should the study be cut short."""
    highest = [(momentum, max(rates)) for momentum, rates in RATES.items()]
    order = [(row, s, seed) for row in ORDER for s in OUTER_FIRST for seed in SEEDS]
    order += [(row, s, seed) for row in highest for s in STALENESS for seed in FEWER_SEEDS]
    return [
        {"momentum": momentum, "rate": rate, "staleness": staleness, "seed": seed}
        for (momentum, rate), staleness, seed in order
    ]


def values(cell: Cell) -> dict[str, Any]:
    """The fields of the cell's Experiment."""
    fixed = {
        "algorithm": "stale", "model": "mlp", "hidden": HIDDEN, "data": "mnist",
        "epochs": EPOCHS, "batch": BATCH,
    }  # fmt: skip
    return fixed | dict(cell)


def run_cell(cell: Cell, datasets: tuple[Dataset, Dataset]) -> dict[str, Any]:
    """What the ledger keeps of one run. The test set is used here, once, at the last step."""
    validation, final = datasets
    run = Run(values(cell), 1, validation)
    failure = run.finish()
    columns = run.evaluations
    result: dict[str, Any] = {"steps": run.experiment.steps, "ramp": run.experiment.ramp}
    result |= {name: columns[name] for name in ("step", "accuracy", "loss", "train_loss")}
    if failure:
        result["failure"] = failure
    else:
        loss, accuracy = run.final_test(final)
        result |= {"test_loss": loss, "test_error": significant(1 - accuracy)}
    return result | {"cpu_s": round(run.cpu_s, 2)} | made_with()
