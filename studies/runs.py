"""One training run, of virtual ranks or under mpiexec, with what studies keep of it; and a study's
training, validation and test samples, the same in every run, whatever its seed.
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

import mpisgd
from mpisgd.data import Dataset
from mpisgd.experiment.building import resolve_for
from mpisgd.experiment.experiment import Experiment, flag
from mpisgd.mpi.mpiexec import Launcher
from mpisgd.store.environment import environment
from mpisgd.store.reader import read
from mpisgd.training.effective import effective_steps

DIGITS = 6  # significant ones, in the ledger


class Run:
    """A run that has not begun. `values`: an Experiment's fields; `enough`: an accuracy at which it
    stops, before its steps are over."""

    def __init__(
        self,
        values: Mapping[str, Any],
        ranks: int,
        dataset: Dataset,
        enough: float | None = None,
    ):
        self.experiment = resolve_for(Experiment.read(values), dataset, ranks)
        steps = self.experiment.steps or 1
        self.share = effective_steps(self.experiment.config(), steps) / steps
        self._told = {**values, "ranks": ranks, "dataset": dataset}
        if enough is not None:
            self._told["until"] = lambda row: row["accuracy"] >= enough

    def finish(self) -> str:
        """Run to the end; why it ended early, or an empty text. SystemExit after a signal: what was
        stopped is no result."""
        began = time.process_time()
        self.result = mpisgd.run(**self._told)
        self.cpu_s = time.process_time() - began
        reason = self.result.reason or ""
        if reason.startswith("stopped by signal"):
            raise SystemExit(reason)
        return reason

    @property
    def evaluations(self) -> dict[str, list[float]]:
        """Columns of the evaluations: steps, virtual seconds, loss, accuracy, training loss."""
        return self.columns("step", "time_s", "loss", "accuracy", "train_loss")

    def columns(self, *names: str) -> dict[str, list[float]]:
        """Columns of the evaluations, rounded."""
        table = self.result.evaluation
        return {name: [significant(value) for value in table.get(name, ())] for name in names}

    def final_test(self, dataset: Dataset) -> tuple[float, float]:
        """(loss, accuracy) of the last evaluation's parameters on the test samples of `dataset`."""
        loss, accuracy = self.result.evaluate(dataset)
        return significant(loss), significant(accuracy)


def significant(value: float) -> float:
    """`value` with DIGITS significant digits."""
    return float(f"{value:.{DIGITS}g}")


def made_with() -> dict[str, Any]:
    """Commit and versions, for a line of the ledger."""
    found = environment()
    numpy_version = found["packages"].get("numpy")
    return {
        "commit": found["git_commit"],
        "python": found["python"],
        "numpy": numpy_version,
        "blas": found["blas"],
    }


def spread(values: Sequence[float]) -> tuple[float, float]:
    """(mean, sample standard deviation over seeds); the latter NaN for one value."""
    array = np.asarray(values, np.float64)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else float("nan")


TIMEOUT_S = 120.0


def flags(options: Mapping[str, Any]) -> list[str]:
    """`--name value` for each field of an Experiment, as `mpisgd train` takes them."""
    names = {option.name: flag(option) for option in fields(Experiment) if option.metadata}
    words = []
    for name, value in options.items():
        shown = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        shown += "s" if name.endswith("_s") else ""
        words += [f"--{names[name]}", shown]
    return words


def train(
    mpiexec: Launcher,
    ranks: int,
    options: Mapping[str, Any],
    output: Path,
    program: Sequence[str] = ("mpisgd",),
) -> None:
    """Train on real ranks into `output`. RuntimeError with what the ranks said if that failed."""
    words = [*program, "train", *flags(options), "--output", str(output), "--overwrite"]
    done = mpiexec.run(ranks, words, timeout=TIMEOUT_S)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: exit code {done.returncode}\n{done.stderr}")


def last_evaluation(path: Path) -> dict[str, float]:
    """The last row of /evaluation."""
    with read(path) as run:
        return {name: float(column[-1]) for name, column in run.evaluation.items() if len(column)}


def machine(mpiexec: Launcher) -> dict[str, Any]:
    """What ran: for a line of the ledger."""
    return {
        "commit": environment()["git_commit"],
        "mpi": f"{mpiexec.kind} {mpiexec.version}",
        "cores": len(os.sched_getaffinity(0)),
        "python": sys.version.split()[0],
    }


SPLIT_SEED = 1


def parts(whole: Dataset, validation: int, samples: int) -> tuple[Dataset, Dataset]:
    """(`samples` training samples of `whole` with `validation` others as their test set, the same
    training samples with the test set of `whole`)."""
    order = np.random.default_rng(SPLIT_SEED).permutation(whole.samples)
    valid, train = order[:validation], order[validation : validation + samples]
    inputs, targets = whole.train_inputs, whole.train_targets
    final = replace(whole, train_inputs=inputs[train], train_targets=targets[train])
    return replace(final, test_inputs=inputs[valid], test_targets=targets[valid]), final
