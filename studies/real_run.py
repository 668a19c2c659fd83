"""One launch of `mpisgd train` under mpiexec, as the studies on real ranks make it."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from mpisgd.experiment.experiment import Experiment, flag
from mpisgd.mpi.mpiexec import Launcher
from mpisgd.store.environment import environment
from mpisgd.store.reader import read

TIMEOUT_S = 120.0


def flags(options: Mapping[str, Any]) -> list[str]:
    """`--name value` for each field of an Experiment, as `mpisgd train` takes them."""
    names = {option.name: flag(option) for option in fields(Experiment) if option.metadata}
    words = []
    for name, value in options.items():
        shown = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
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
