"""The rate study: `python studies/rate.py run` trains, `figures` draws and tabulates.

Keeps one line for each finished run in results/study-rate/runs.jsonl, and skips those.

The problem is convex and noisy: softmax regression on labels drawn from a softmax; what is measured
is the error of the averaged iterate against the number of steps.

F(x) = mean over the training samples of the cross-entropy; x holds weights (features, classes),
then biases (classes). No classifier separates the labels, so that a least F exists and gradients
of single samples stay noisy there.
"""

if __name__ == "__main__":
    import one_thread  # noqa: F401 - before anything imports NumPy

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from command import Ledger, run_missing, study
from pages import (
    BLUES,
    COLOURS,
    MARKERS,
    family,
    fill,
    legend,
    markdown,
    panels,
    plus_minus,
    save,
    write_csv,
    write_page,
)
from runs import made_with, significant, spread

from mpisgd.data import Dataset
from mpisgd.drivers.job import Job
from mpisgd.drivers.rows import Recording
from mpisgd.drivers.virtual import Averaging
from mpisgd.experiment.building import resolve_for
from mpisgd.experiment.experiment import Experiment
from mpisgd.training.effective import effective_steps
from mpisgd.values.errors import NotFinite

SAMPLES, FEATURES, CLASSES = 4096, 16, 4
SMALLEST_SCALE = 0.1  # of an input's standard deviation; the largest is 1: directions of all slopes
SEED = 7  # of the problem: runs differ in starting point and order of samples, not in it
NEWTON_STEPS, TOLERANCE = 50, 1e-12


def problem() -> Dataset:
    """The same samples in every run; the test set is one sample that nobody looks at."""
    generator = np.random.default_rng(SEED)
    scales = np.geomspace(1, SMALLEST_SCALE, FEATURES)
    inputs = generator.standard_normal((SAMPLES, FEATURES)) * scales
    logits = inputs @ generator.standard_normal((FEATURES, CLASSES))
    noise = generator.gumbel(size=logits.shape)  # argmax of logits + Gumbel noise ~ their softmax
    targets = np.argmax(logits + noise, axis=1)
    return Dataset(
        name="softmax labels", train_inputs=inputs.astype(np.float32), train_targets=targets,
        test_inputs=inputs[:1].astype(np.float32), test_targets=targets[:1], classes=CLASSES,
        attribution="made up, drawn from a seed", split="one sample, not used",
    )  # fmt: skip


class Objective:
    """F, its gradient and its least value, in float64."""

    def __init__(self, dataset: Dataset):
        ones = np.ones((dataset.samples, 1))
        self.inputs = np.hstack([dataset.train_inputs.astype(np.float64), ones])
        self.hot = np.eye(dataset.classes)[dataset.train_targets]
        self.shape = self.inputs.shape[1], dataset.classes

    def value(self, flat: np.ndarray) -> float:
        """F(flat)."""
        logits = self.inputs @ flat.reshape(self.shape)
        return float((_log_sum(logits) - (logits * self.hot).sum(axis=1)).mean())

    def gradient(self, flat: np.ndarray) -> np.ndarray:
        """(features + 1) * classes derivatives."""
        return (self.inputs.T @ (self._shares(flat) - self.hot)).ravel() / len(self.inputs)

    def least(self) -> np.ndarray:
        """Where F is least, by Newton's method; of the many (F ignores a shift of all logits of a
        sample) the one of least norm."""
        flat = np.zeros(self.shape[0] * self.shape[1])
        for _ in range(NEWTON_STEPS):
            slope = self.gradient(flat)
            if np.abs(slope).max() < TOLERANCE:
                return flat
            flat = flat - np.linalg.pinv(self._hessian(flat), rcond=1e-10) @ slope
        raise ArithmeticError(f"Newton's method did not converge in {NEWTON_STEPS} steps")

    def _shares(self, flat: np.ndarray) -> np.ndarray:
        logits = self.inputs @ flat.reshape(self.shape)
        return np.exp(logits - _log_sum(logits)[:, None])

    def _hessian(self, flat: np.ndarray) -> np.ndarray:
        shares = self._shares(flat)
        curvature = np.einsum("ni,ij->nij", shares, np.eye(self.shape[1]))
        curvature -= shares[:, :, None] * shares[:, None, :]
        blocks = np.einsum("na,nb,nij->aibj", self.inputs, self.inputs, curvature, optimize=True)
        size = self.shape[0] * self.shape[1]
        return blocks.reshape(size, size) / len(self.inputs)


def _log_sum(logits: np.ndarray) -> np.ndarray:
    """log of the sum of exp over the last axis, stable."""
    top = logits.max(axis=1)
    return top + np.log(np.exp(logits - top[:, None]).sum(axis=1))


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


QUANTITIES = {
    "error": "error of the averaged iterate, F(mean x) - F*",
    "slope": "mean over steps of |grad F|$^2$ at the ranks' mean",
}
SIZES = {"mini-batch": 9, "Local": 6, "DaSGD": 5, "delta": 3}  # equal values stay visible


def rows(ledger: Ledger) -> list[dict[str, Any]]:
    """One row for each algorithm, number of ranks and number of steps."""
    found = []
    for name, algorithm in ALGORITHMS.items():
        for ranks, counts in STEPS.items():
            for steps in counts:
                cell = algorithm | {"ranks": ranks, "steps": steps}
                cells = [cell | {"seed": seed} for seed in SEEDS]
                lines = [ledger[c] for c in cells if c in ledger]
                if lines:
                    row = {"algorithm": name, "ranks": ranks, "steps": steps, "rate": rate(cell)}
                    row |= {"share": effective_steps(cell, steps) / steps, "seeds": len(lines)}
                    for quantity in ("error", "last_error", "slope"):
                        mean, deviation = spread([line[quantity] for line in lines])
                        row |= {quantity: mean, f"{quantity}_sd": deviation}
                    found.append(row)
    return found


def exponents(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The exponent of K between the two longest K of each curve, and what is left there."""
    result = []
    for name in ALGORITHMS:
        for ranks in STEPS:
            chosen = [r for r in table if r["algorithm"] == name and r["ranks"] == ranks]
            if len(chosen) < 2:
                continue
            before, final = chosen[-2:]
            row: dict[str, Any] = {"algorithm": name, "ranks": ranks}
            row["K"] = f"{before['steps']} to {final['steps']}"
            for quantity in ("error", "last_error", "slope"):
                ratio = np.log(final[quantity] / before[quantity])
                exponent = ratio / np.log(final["steps"] / before["steps"])
                row[f"exponent of {quantity}"] = f"{exponent:.2f}"
            row["error at the longest K"] = plus_minus(final["error"], final["error_sd"], 4)
            base = next(
                r for r in table
                if r["algorithm"] == "mini-batch" and r["ranks"] == ranks
                and r["steps"] == final["steps"]
            )  # fmt: skip
            row["of mini-batch's"] = f"{final['error'] / base['error']:.2f}"
            result.append(row)
    return result


def draw(table: list[dict[str, Any]], quantity: str) -> Any:
    """`quantity` over K, a panel for each number of ranks, beside a line c / sqrt(M K) that goes
    through mini-batch at the most steps of 8 ranks."""
    from matplotlib.ticker import LogLocator, NullLocator

    title = "Noisy convex problem, rate sqrt(M/K), batch 1 a rank, 3 seeds"
    figure, axes = panels(len(STEPS), title, 3.4, 4.2)
    anchor = [r for r in table if r["algorithm"] == "mini-batch" and r["ranks"] == 8][-1]
    for one, ranks in zip(axes, STEPS, strict=True):
        steps = np.array([min(STEPS[2]), max(STEPS[2])], np.float64)
        line = anchor[quantity] * np.sqrt(8 * anchor["steps"] / (ranks * steps))
        one.plot(steps, line, color="#bbbbbb", linewidth=5, alpha=0.6, label="c / sqrt(M K)")
        for name in ALGORITHMS:
            chosen = [r for r in table if r["algorithm"] == name and r["ranks"] == ranks]
            kind = family(name)
            corrected = "rate /" in name
            one.errorbar(
                [r["steps"] for r in chosen], [r[quantity] for r in chosen],
                [r[f"{quantity}_sd"] for r in chosen], label=name, linewidth=1, capsize=2,
                color=BLUES[1] if corrected else COLOURS[kind], markersize=SIZES[kind],
                marker="v" if corrected else MARKERS[kind],
            )  # fmt: skip
        one.set_xscale("log", base=2)
        one.set_yscale("log")
        one.set_xticks(STEPS[2], [str(count) for count in STEPS[2]])
        one.set_xlabel("steps K")
        one.set_title(f"M = {ranks} ranks", fontsize="small")
    axes[0].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes[0].yaxis.set_major_formatter("{x:g}")
    axes[0].yaxis.set_minor_locator(NullLocator())
    axes[0].set_ylabel(QUANTITIES[quantity])
    legend(figure, axes, 3)
    return figure


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its table from the ledger."""
    return fill(text, "exponents", markdown(exponents(rows(ledger))))


def write(folder: Path) -> None:
    """summary.csv, a figure for each quantity, and the page's table."""
    ledger = Ledger(folder / "runs.jsonl")
    table = rows(ledger)
    write_csv(folder / "summary.csv", table)
    for quantity in QUANTITIES:
        save(draw(table, quantity), folder / f"{quantity}.png")
    write_page(folder, page, ledger)


def run(arguments: argparse.Namespace, ledger: Ledger) -> None:
    objective = Objective(problem())
    least = objective.value(objective.least())
    run_missing(cells(), ledger, lambda cell: run_cell(cell, objective, least))


def main() -> int:
    return study(__doc__, "study-rate", run, write)


if __name__ == "__main__":
    sys.exit(main())
