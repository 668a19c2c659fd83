"""Slurm's queue: putting scripts in, and asking what is in it."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mpisgd.values import files
from mpisgd.values.errors import UsageError

TIMEOUT = 120.0  # s for one call
NUMBER = re.compile(r"^(?:Submitted batch job )?(\d+)(?:;\S*)?\s*$", re.ASCII | re.MULTILINE)
SENT = "sent"  # in the place of a number: of a job that nobody knows the number of
GUARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Refused(UsageError):
    """Slurm has answered, and it is no."""


def check() -> None:
    """UsageError when there is no Slurm to submit to."""
    if shutil.which("sbatch") is None:
        allowed = "no Slurm here; pass --local to run here, or --scripts to write the scripts only"
        raise UsageError("sbatch", None, allowed)


def states() -> dict[tuple[str, str], str]:
    """(number, name) -> state, such as "pending", of all jobs of this user in the queue; of an
    array each task, whose number is NUMBER_TASK.

    UsageError when Slurm does not answer.
    """
    printed = _ask(["squeue", "--me", "--noheader", "--array", "--format=%i %T %j"])
    jobs = (line.split(None, 2) for line in printed.splitlines())
    return {(job[0], job[2]): job[1].lower() for job in jobs if len(job) == 3}


def submit(script: Path, records: Sequence[Path]) -> list[str]:
    """The numbers of the new jobs of `script`, written to `records` before a signal can come
    between: of several, which are an array, with its name, which is the script's.

    Until Slurm has answered, a record says that it was sent, and so it stays if nobody knows what
    became of it: a job is never sent twice. UsageError with sbatch's words when it refuses.
    """
    name = f" {script.stem}" if len(records) > 1 else ""
    with _deferred():
        for record in records:
            files.write(record, f"{SENT}{name}\n".encode())
        try:
            printed = _ask(["sbatch", "--parsable", os.path.abspath(script)])
        except Refused:
            for record in records:
                record.unlink()
            raise
        numbers = NUMBER.findall(printed)
        if not numbers:  # banners of a site may stand around it
            allowed = (
                f"printed no number of a job; see squeue, and delete {records[0]} to send it again"
            )
            raise UsageError("sbatch", " ".join(printed.split())[:200], allowed)
        jobs = [f"{numbers[-1]}_{task}" if name else numbers[-1] for task in range(len(records))]
        for job, record in zip(jobs, records, strict=True):
            files.write(record, f"{job}{name}\n".encode())
    return jobs


@contextmanager
def _deferred() -> Iterator[None]:
    """Signals that would end this process wait until the end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, GUARDED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ask(words: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=TIMEOUT,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError as problem:
        raise Refused(words[0], None, f"can't be asked: {problem}") from None
    except subprocess.TimeoutExpired as problem:
        raise UsageError(words[0], None, f"can't be asked: {problem}") from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        reason = said[-1].removeprefix(f"{words[0]}: ") if said else f"ended with {done.returncode}"
        raise Refused(words[0], None, reason)
    return done.stdout
