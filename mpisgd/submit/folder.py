"""The folder of a grid: which of its runs are finished, in the queue, begun or new."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from allreduce import files
from mpisgd.store.lock import flocked
from mpisgd.store.target import partial_path
from mpisgd.submit import queue
from mpisgd.submit.runs import GridRun
from mpisgd.values.errors import UsageError

JOB = re.compile(r"\d+(_\d+)?", re.ASCII)  # of an array NUMBER_TASK


class State(StrEnum):
    """Where a run stands. QUEUED: its job is in Slurm's queue, waiting or running."""

    NEW = "new"
    PARTIAL = "partial"
    QUEUED = "queued"
    FINISHED = "finished"


class Found(NamedTuple):
    """A run's state; its job's number and Slurm's word for it, if it is in the queue."""

    state: State
    job: str | None = None
    slurm_state: str | None = None


def check(folder: Path) -> None:
    """UsageError if results can't be written below `folder`; makes nothing."""
    text = str(folder)
    if not text.isprintable() or "\\" in text:
        raise UsageError("--folder", text, "a name without backslashes and control characters")
    existing = folder
    while not os.path.lexists(existing) and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise UsageError("--folder", text, f"{str(existing)!r} is not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError("--folder", text, f"{str(existing)!r} cannot be written to")


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Make the folder, and be the only submit at work in it. UsageError if another is."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise UsageError("--folder", str(folder), error.strerror or "can't be made") from None
    try:
        flocked(descriptor, folder)
    except OSError as error:
        os.close(descriptor)
        busy = isinstance(error, BlockingIOError)
        allowed = (
            "another submit is at work in it" if busy else f"can't be locked: {error.strerror}"
        )
        raise UsageError("--folder", str(folder), allowed) from None
    try:
        yield
    finally:
        os.close(descriptor)


def look(runs: Sequence[GridRun], folder: Path) -> list[Found]:
    """Where each run stands.

    UsageError for a result that is not the run's or can't be read (nothing is ever overwritten
    that might be of use), and when Slurm does not answer for a job that is on record.
    """
    finished = [finished_in(run, folder) for run in runs]
    jobs = [None if done else _job(folder / f"{run.name}.job", run.name) for run, done in
            zip(runs, finished, strict=True)]  # fmt: skip
    queued = queue.states() if any(jobs) else {}
    found = []
    for run, done, job in zip(runs, finished, jobs, strict=True):
        number, called = job or (None, run.name)
        slurm_state = queued.get((number or "", called))
        if number == queue.SENT:
            states = (state for (_, name), state in queued.items() if name == called)
            slurm_state, number = next(states, queue.SENT), None
        if done:
            found.append(Found(State.FINISHED))
        elif slurm_state is not None:
            found.append(Found(State.QUEUED, number, slurm_state))
        elif os.path.exists(partial_path(folder / f"{run.name}.h5")):
            found.append(Found(State.PARTIAL))
        else:
            found.append(Found(State.NEW))
    return found


def finished_in(run: GridRun, folder: Path) -> bool:
    """Whether the run's result is there, complete. UsageError for another's, or a damaged one."""
    path = folder / f"{run.name}.h5"
    if not os.path.lexists(path):
        return False
    from mpisgd.store.reader import read

    with read(path) as result:
        if not result.complete:
            return False
        difference = run.difference(result.config, result.virtual)
    if difference is not None:
        allowed = f"is the result of another run, whose {difference}: move it, or name a --folder"
        raise UsageError(str(path), None, allowed)
    return True


def _job(record: Path, run: str) -> tuple[str, str] | None:
    """The number and the name of the job on record for a run: its own name, or an array's."""
    try:
        number, _, name = files.text(record).strip().partition(" ")
    except files.Unreadable as error:
        if not os.path.lexists(record):
            return None
        raise UsageError(str(record), None, f"can't be read: {error}") from None
    known = number == queue.SENT or JOB.fullmatch(number)
    return (number, name or run) if known else None
