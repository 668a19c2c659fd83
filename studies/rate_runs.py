"""Running the rate study: error of the averaged iterate against the number of steps."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from convex import Objective, problem
from ledger import Ledger
from virtual_run import made_with, significant

from mpisgd.drivers.job import Job
from mpisgd.drivers.rows import Recording
from mpisgd.drivers.virtual import Averaging
from mpisgd.experiment.building import resolve_for
from mpisgd.experiment.experiment import Experiment
from mpisgd.training.effective import effective_steps
from mpisgd.training.gradient import NotFinite

Cell = dict[str, Any]

SEEDS = (1, 2, 3)
STEPS = {2: (32, 128, 512, 2048), 8: (32, 128, 512, 2048), 32: (32, 128, 512)}  # by ranks
CONSTANT = 1.0  # c of the theorem's rate c sqrt(M / K), the same for all algorithms
ALGORITHMS: dict[str, Cell] = {
    "mini-batch": {"algorithm": "minibatch"},
    "Local, tau 4": {"algorithm": "local", "tau": 4},
    "DaSGD, tau 4, d 2, xi 0.25": {
        "algorithm": "dasgd", "tau": 4, "delay": 2, "xi": 0.25, "merge": "convex",
    },
    "DaSGD, the same, rate / 0.625": {
        "algorithm": "dasgd", "tau": 4, "delay": 2, "xi": 0.25, "merge": "convex", "factor": 1.6,
    },
    "delta, tau 4, d 2": {"algorithm": "dasgd", "tau": 4, "delay": 2, "merge": "delta"},
}  # fmt: skip
GRADIENTS = 64  # of F along a run, evenly spaced


def cells() -> list[Cell]:
    """All runs, seed by seed."""
    return [
        algorithm | {"ranks": ranks, "steps": count, "seed": seed}
        for seed in SEEDS
        for ranks, counts in STEPS.items()
        for count in counts
        for algorithm in ALGORITHMS.values()
    ]


def rate(cell: Cell) -> float:
    """c sqrt(M / K), times the cell's own factor: what makes up for discarded work."""
    return cell.get("factor", 1.0) * CONSTANT * (cell["ranks"] / cell["steps"]) ** 0.5


class Iterates(Recording):
    """`means`: the mean over ranks of the parameters after each step, [step, parameter]."""

    def __init__(self, values: Cell, ranks: int, size: int):
        super().__init__(None, None, ranks)
        self.experiment = resolve_for(Experiment.read(values), problem(), ranks)
        self.means = np.zeros((self.experiment.steps or 1, size))
        self.run = Averaging(Job(self.experiment, problem()), self)

    def step(self, rank: int, step: int, columns: dict[str, float]) -> None:
        self.means[step - 1] += self.run.workers[rank].parameters.flat

    def finish(self) -> str:
        """Run to the end; why it ended early, or an empty text."""
        try:
            self.run.run()
        except NotFinite as failure:
            return str(failure)
        self.means /= len(self.reported)
        return ""


def run_cell(cell: Cell, objective: Objective, least: float) -> dict[str, Any]:
    """error: F(mean over steps and ranks of x_k^j) - F*; last_error: of the last step's mean over
    ranks; slope: mean over steps of |grad F|^2 at the mean over ranks, what the theorem bounds."""
    varied = {name: value for name, value in cell.items() if name not in ("ranks", "factor")}
    fixed = {
        "model": "softmax", "data": "synthetic", "batch": 1, "momentum": 0.0, "dtype": "float64",
        "rate": rate(cell), "evaluate_every": 0,
    }  # fmt: skip
    run = Iterates(fixed | varied, cell["ranks"], objective.shape[0] * objective.shape[1])
    began = time.process_time()
    failure = run.finish()
    means = run.means
    stride = max(1, cell["steps"] // GRADIENTS)
    slopes = [np.sum(objective.gradient(flat) ** 2) for flat in means[::stride]]
    result: dict[str, Any] = {
        "share": effective_steps(run.experiment.config(), cell["steps"]) / cell["steps"],
        "error": significant(objective.value(means.mean(axis=0)) - least),
        "last_error": significant(objective.value(means[-1]) - least),
        "slope": significant(float(np.mean(slopes))),
    }
    if failure:
        result = {"failure": failure}
    return result | {"cpu_s": round(time.process_time() - began, 2)} | made_with()


def run_all(ledger: Ledger, tell: Callable[[str], object]) -> None:
    """Run what the ledger lacks."""
    objective = Objective(problem())
    least = objective.value(objective.least())
    for cell in cells():
        if cell not in ledger:
            result = run_cell(cell, objective, least)
            ledger.add(cell, result)
            tell(f"{cell} {result.get('error', 'failed')} ({result['cpu_s']} s)")
