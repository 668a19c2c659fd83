"""Runs of a grid, here, one after another."""

import os
import subprocess
from pathlib import Path

from mpisgd.mpi.mpiexec import Job, Launcher, own
from mpisgd.submit.folder import finished_in
from mpisgd.submit.runs import GridRun
from mpisgd.values import files


def execute(run: GridRun, folder: Path, mpiexec: Launcher | None) -> str | None:
    """Run it to its end; why it has no result, or None when it has. What it prints is logged.

    `mpiexec` may be None for a virtual run. Ctrl-C and signals end it first.
    """
    words = ["mpisgd", *run.words(str(folder / f"{run.name}.h5"))]
    if run.virtual:
        job = Job(own(words), os.environ)
    else:
        assert mpiexec is not None
        job = mpiexec.start(run.tasks, words)
    with job:
        done = job.wait()
    files.write(folder / f"{run.name}.log", (done.stdout + done.stderr).encode())
    return _reason(done) if done.returncode or not finished_in(run, folder) else None


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return f"exit code {done.returncode}" + (f": {said[-1][:300]}" if said else "")
