"""Running the rate study: error of the averaged iterate against the number of steps."""

from collections.abc import Callable
from typing import Any

import numpy as np
from convex import Objective, problem
from ledger import Ledger
from virtual_run import Run, made_with, significant

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


def run_cell(cell: Cell, objective: Objective, least: float) -> dict[str, Any]:
    """error: F(mean over steps and ranks of x_k^j) - F*; last_error: of the last step's mean over
    ranks; slope: mean over steps of |grad F|^2 at the mean over ranks, what the theorem bounds."""
    varied = {name: value for name, value in cell.items() if name not in ("ranks", "factor")}
    fixed = {
        "model": "softmax", "data": "synthetic", "batch": 1, "momentum": 0.0, "dtype": "float64",
        "rate": rate(cell), "evaluate_every": 0,
    }  # fmt: skip
    means = np.zeros((cell["steps"], objective.shape[0] * objective.shape[1]))

    def watch(rank: int, step: int) -> None:
        means[step - 1] += run.workers[rank].parameters.flat

    run = Run(fixed | varied, cell["ranks"], problem(), watch)
    failure = run.finish()
    means /= cell["ranks"]
    stride = max(1, cell["steps"] // GRADIENTS)
    slopes = [np.sum(objective.gradient(flat) ** 2) for flat in means[::stride]]
    result: dict[str, Any] = {
        "share": run.share,
        "error": significant(objective.value(means.mean(axis=0)) - least),
        "last_error": significant(objective.value(means[-1]) - least),
        "slope": significant(float(np.mean(slopes))),
    }
    if failure:
        result = {"failure": failure}
    return result | {"cpu_s": round(run.cpu_s, 2)} | made_with()


def run_all(ledger: Ledger, tell: Callable[[str], object]) -> None:
    """Run what the ledger lacks."""
    objective = Objective(problem())
    least = objective.value(objective.least())
    for cell in cells():
        if cell not in ledger:
            result = run_cell(cell, objective, least)
            ledger.add(cell, result)
            tell(f"{cell} {result.get('error', 'failed')} ({result['cpu_s']} s)")
