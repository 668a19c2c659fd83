"""What the reduced Table I runs: a small residual network, 32 virtual workers, three algorithms.

After Zhou et al. 2020 (arXiv 2006.00441), Table I: tau = 4, d = 1, one-cycle rate, momentum 0.9,
weight decay 0.01. Smaller in everything else: network, data, samples a step, steps.
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

TEST, VALIDATION, SAMPLES = 1_310, 1_000, 7_680
RANKS, BATCH = 32, 16
EPOCHS, SWEEP_EPOCHS = 20, 8
SEEDS = (1, 2, 3)
RATES = (0.01, 0.04, 0.16)  # peaks; the first is the paper's
COMMON_RATE = 0.04
# The butterfly of 32 ranks takes 0.674 ms for this network. In the paper's model ResNet-50 with 32
# samples takes 155.5 ms a step and 100.7 ms an average (TITAN X, 20 Gbps, one message a server):
# the step here has that ratio, t_c = 0.65 t_p.
NETWORK, STEP_S = "titanx-20g", 1.04e-3
FIXED = {
    "model": "resnet8", "hidden": (8,), "data": "cifar10", "augment": "crop-flip", "batch": BATCH,
    "momentum": 0.9, "weight_decay": 0.01, "rate_schedule": "one-cycle",
    "network": NETWORK, "step_time_s": STEP_S, "progress": "perfect",
}  # fmt: skip
ALGORITHMS: dict[str, dict[str, Any]] = {
    "mini-batch": {"algorithm": "minibatch"},
    "Local": {"algorithm": "local", "tau": 4},
    "DaSGD": {"algorithm": "dasgd", "tau": 4, "delay": 1, "xi": 0.25, "merge": "convex"},
}


def load(path: str) -> tuple[Dataset, Dataset]:
    """(training samples with the validation samples as test set, the same with the true one)."""
    share = TEST / (TEST + VALIDATION + SAMPLES)
    return parts(data.load("cifar10", path, held_back=share), VALIDATION, SAMPLES)


def sweep() -> list[Cell]:
    """Every algorithm at every rate of the grid: short, one seed."""
    return [cell for cells in zip(*map(sweep_of, ALGORITHMS), strict=True) for cell in cells]


def tuned(ledger: Ledger) -> list[Cell]:
    """Every algorithm at its best rate of the sweep, seed by seed; once the sweep is done."""
    rates = {name: best_rate(ledger, sweep_of(name)) for name in ALGORITHMS}
    found = [(name, rate) for name, rate in rates.items() if rate is not None]
    return [_cell(name, rate, seed, EPOCHS) for seed in SEEDS for name, rate in found]


def common() -> list[Cell]:
    """Every algorithm at one rate, seed by seed."""
    return [_cell(name, COMMON_RATE, seed, EPOCHS) for seed in SEEDS for name in ALGORITHMS]


def sweep_of(name: str) -> list[Cell]:
    """The runs that choose an algorithm's rate."""
    return [_cell(name, rate, SEEDS[0], SWEEP_EPOCHS) for rate in RATES]


def values(cell: Cell) -> dict[str, Any]:
    """The fields of the cell's Experiment; an evaluation an epoch."""
    varied = {"rate": cell["rate"], "seed": cell["seed"], "epochs": cell["epochs"]}
    return FIXED | ALGORITHMS[cell["name"]] | varied


def run_cell(cell: Cell, datasets: tuple[Dataset, Dataset]) -> dict[str, Any]:
    """What the ledger keeps of one run. The test set is used here, once, at the last step."""
    validation, final = datasets
    run = Run(values(cell), RANKS, validation)
    failure = run.finish()
    result: dict[str, Any] = {"steps": run.experiment.steps, "share": run.share, **run.evaluations}
    if failure:
        result["failure"] = failure
    else:
        result["test_loss"], result["test_accuracy"] = run.final_test(final)
    return result | {"cpu_s": round(run.cpu_s, 2)} | made_with()


def samples(line: Mapping[str, Any]) -> list[float]:
    """Computed samples at each evaluation of a run."""
    return [significant(step * RANKS * BATCH) for step in line["step"]]


def _cell(name: str, rate: float, seed: int, epochs: int) -> Cell:
    return {"name": name, "rate": rate, "seed": seed, "epochs": epochs}
