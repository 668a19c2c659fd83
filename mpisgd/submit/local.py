"""Runs of a grid, here, one after another or some at once."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path

from mpisgd.mpi.mpiexec import Job, Launcher, own
from mpisgd.submit.folder import finished_in
from mpisgd.submit.runs import GridRun
from mpisgd.values import files
from mpisgd.values.processes import handle

LAST_WORDS_S = 5.0  # for what a job that was ended has still printed


def each(
    runs: Sequence[GridRun], folder: Path, mpiexec: Launcher | None, jobs: int, cores: int
) -> Iterator[tuple[int, str | None]]:
    """(its place in `runs`, why it has no result or None) of each run, as it ends.

    At most `jobs` at once, and together no more processes than `cores`, unless one run alone is
    wider. Ctrl-C and signals end them first.
    """
    if jobs == 1:
        for place, run in enumerate(runs):
            yield place, execute(run, folder, mpiexec)
        return
    started = _Started(cores)
    with _ended_by_signals(), ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(started.execute, run, folder, mpiexec): place
                   for place, run in enumerate(runs)}  # fmt: skip
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            started.end()
            raise


def execute(
    run: GridRun, folder: Path, mpiexec: Launcher | None, jobs: set[Job] | None = None
) -> str | None:
    """Run it to its end; why it has no result, or None when it has. What it prints is logged.

    `mpiexec` may be None for a virtual run; `jobs` holds its job while that runs. Ctrl-C and
    signals end it first, and what it has printed is logged all the same.
    """
    words = ["mpisgd", *run.words(str(folder / f"{run.name}.h5"))]
    if run.virtual:
        job = Job(own(words), os.environ)
    else:
        assert mpiexec is not None
        job = mpiexec.start(run.tasks, words)
    jobs = set() if jobs is None else jobs
    log = folder / f"{run.name}.log"
    with job:
        jobs.add(job)
        try:
            done = job.wait()
        except BaseException:
            with suppress(subprocess.TimeoutExpired, OSError, ValueError):
                files.write(log, "".join(job.process.communicate(timeout=LAST_WORDS_S)).encode())
            raise
        finally:
            jobs.discard(job)
    files.write(log, (done.stdout + done.stderr).encode())
    return _reason(done) if done.returncode or not finished_in(run, folder) else None


class _Started:
    """Runs that share `cores`."""

    def __init__(self, cores: int):
        self.cores = self.free = cores
        self.changed = threading.Condition()
        self.jobs: set[Job] = set()
        self.ended = False

    def execute(self, run: GridRun, folder: Path, mpiexec: Launcher | None) -> str | None:
        """As the function, once there are cores for it."""
        needed = min(run.tasks, self.cores)
        with self.changed:
            self.changed.wait_for(lambda: self.ended or self.free >= needed)
            if self.ended:
                return "interrupted"
            self.free -= needed
        try:
            return execute(run, folder, mpiexec, self.jobs)
        finally:
            with self.changed:
                self.free += needed
                self.changed.notify_all()

    def end(self) -> None:
        """All that run, and none begins."""
        with self.changed:
            self.ended = True
            self.changed.notify_all()
        for job in list(self.jobs):
            job.end()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP leave by an exception: jobs have sessions of their own."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = handle((signal.SIGTERM, signal.SIGHUP), leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return f"exit code {done.returncode}" + (f": {said[-1][:300]}" if said else "")
