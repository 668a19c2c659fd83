"""The training runs of lab_overlap.py and lab_steps.py: their command lines, seconds per step."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mpisgd.store.reader import Run, read

ALONE = "compute alone"
TAU, DELAY, XI = 4, 3, 0.25
RUNS = {
    ALONE: "--algorithm local --tau 1000000",
    "minibatch": "--algorithm minibatch",
    "minibatch-overlap": "--algorithm minibatch-overlap",
    "local": f"--algorithm local --tau {TAU}",
    "dasgd": f"--algorithm dasgd --tau {TAU} --delay {DELAY} --xi {XI}",
    "dasgd delta": f"--algorithm dasgd --tau {TAU} --delay {DELAY} --merge delta",
}
# How often each averages, in a round of TAU steps.
AVERAGES = {ALONE: 0, "minibatch": TAU, "minibatch-overlap": TAU}
MODEL = "--model mlp --hidden 512,448 --data synthetic"  # 251,402 parameters: 1.006 MB
STEPS_PER_EPOCH = 4  # whole batches only
FIRST = 2 * TAU  # steps left out: the first two rounds warm up


def words(name: str, options: argparse.Namespace, output: str | Path) -> list[str]:
    """The words of `mpisgd train` for one of RUNS; `options` are lab_overlap.py's."""
    line = [
        "train", *RUNS[name].split(), *MODEL.split(), "--batch", str(options.batch),
        "--data-samples", str(STEPS_PER_EPOCH * options.batch * options.hosts),
        "--steps", str(options.steps), "--evaluate-every", "0", "--lr", "0.01",
        "--allreduce", options.allreduce, "--chunks", str(options.chunks), "--output", str(output),
    ]  # fmt: skip
    return line + (["--step-time", options.step_time] if options.step_time else [])


@contextmanager
def finished(output: str | Path) -> Iterator[tuple[Run, float]]:
    """The run in a result file, and its seconds per step from step FIRST on."""
    with read(str(output)) as run:
        ends = run.steps["start_s"][-1] + run.steps["step_s"][-1]
        spent = float((ends - run.steps["start_s"][FIRST]).max())
        yield run, spent / (len(run.steps["start_s"]) - FIRST)


def command_python(mpiexec: str | None) -> str:
    """The Python that goes with an MPI."""
    return sys.executable if mpiexec is None else str(Path(mpiexec).parent / "python")
