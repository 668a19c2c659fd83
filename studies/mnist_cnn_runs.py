"""What the study of the MNIST CNN runs: one serial worker, and eight in five ways.

The recipe of Chen et al. 2016 (arXiv 1604.00981), A.1, shortened: SGD without momentum, the rate
linear to zero over the last 40 % of the steps, small rotations and zooms.
"""

from collections.abc import Mapping
from typing import Any

from compared import best_rate
from ledger import Ledger
from parts import parts
from virtual_run import Run, made_with, significant

from mpisgd import data
from mpisgd.data import Dataset

Cell = Mapping[str, Any]
Line = Mapping[str, Any]

TEST_SHARE, VALIDATION, SAMPLES = 1 / 6, 4_944, 45_056  # 10,000 of 60,000 are the test set
EPOCHS, BATCH, WORKERS = 5, 32, 8
STEPS = EPOCHS * SAMPLES // (BATCH * WORKERS)  # of eight workers: 880
EVALUATIONS = 10
SEEDS = (1, 2, 3)
COMMON_RATE = 0.1  # the paper's
RATES = (0.03, 0.1, 0.3)  # the one grid, for every algorithm, on seed 1
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


def common() -> list[Cell]:
    """Every algorithm at the paper's rate, seed by seed."""
    return [_cell(name, COMMON_RATE, seed) for seed in SEEDS for name in ALGORITHMS]


def sweep() -> list[Cell]:
    """Every algorithm at every rate of the grid, one seed."""
    return [cell for cells in zip(*map(sweep_of, ALGORITHMS), strict=True) for cell in cells]


def tuned(ledger: Ledger) -> list[Cell]:
    """Every algorithm at its best rate of the sweep, all seeds; of those whose sweep is done."""
    rates = {name: best_rate(ledger, sweep_of(name)) for name in ALGORITHMS}
    found = [(name, rate) for name, rate in rates.items() if rate is not None]
    return [_cell(name, rate, seed) for seed in SEEDS for name, rate in found]


def sweep_of(name: str) -> list[Cell]:
    """The runs that choose an algorithm's rate."""
    return [_cell(name, rate, SEEDS[0]) for rate in RATES]


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
