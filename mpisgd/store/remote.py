"""A Writer in a process of its own: a rank that trains has neither HDF5's 19 MB nor its disk time.

Calls go down a pipe. Most are not answered, so that nobody waits for a disk; what goes wrong with
them is raised by a later call. Should the rank end without a word, the process closes the file.
"""

import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from allreduce.errors import Stalled
from mpisgd.values.processes import PATIENCE, python

# Calls that are answered only if they fail.
SILENT = ("steps", "evaluation", "event", "events", "updates", "case", "restart", "flush")
LAST = ("close", "complete")
BEGIN = "begin"
ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
ABANDONED = "its run ended without closing it"


class RemoteWriter:
    """The methods of writer.Writer, carried out elsewhere. OSError if that process is lost, Stalled
    if it neither takes nor answers anything for `deadline` seconds."""

    def __init__(self, path: str | os.PathLike, *, deadline: float | None = None, **options: Any):
        """Begin as Writer does, and raise what it raises."""
        self.path, self._deadline = path, deadline
        # A session of its own: Ctrl-C is for the ranks, which then close the file.
        self._process = subprocess.Popen(
            python("mpisgd.store.remote"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._ended = False
        try:
            self._call(BEGIN, path, **options)
        except BaseException:
            self._end()
            raise

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("_"):
            raise AttributeError(name)
        return partial(self._call, name)

    def _call(self, name: str, *arguments: Any, **options: Any) -> None:
        if self._ended:
            if name == "close":
                return
            raise OSError(f"{self.path}: is closed")
        calls, answers = self._process.stdin, self._process.stdout
        assert calls is not None
        assert answers is not None
        if select.select([answers], [], [], 0)[0]:
            self._answer(0)  # raises what went wrong meanwhile
        patience = self._deadline
        if patience is not None and name in (BEGIN, *LAST):
            patience *= PATIENCE
        try:
            self._send(pickle.dumps((name, arguments, options)), calls.fileno(), patience)
        except BrokenPipeError:
            self._answer(patience)
        if name not in SILENT:
            self._answer(patience)
        if name in LAST:
            self._end()

    def _send(self, octets: bytes, pipe: int, patience: float | None) -> None:
        os.set_blocking(pipe, False)
        left = memoryview(octets)
        while left:
            if not select.select([], [pipe], [], patience)[1]:
                self._stall(patience)
            left = left[os.write(pipe, left) :]

    def _stall(self, patience: float | None) -> NoReturn:
        """It may be stopped, or its disk hangs: it is ended, and the file stays as it is."""
        self._process.kill()
        self._end(wait_s=1.0)
        told = f"rank 0 waited {patience:g} s for the process that writes results"
        raise Stalled(f"{told}, {self.path}")

    def _answer(self, patience: float | None) -> None:
        """Wait for it; raise it, unless all is well."""
        assert self._process.stdout is not None
        if patience != 0 and not select.select([self._process.stdout], [], [], patience)[0]:
            self._stall(patience)
        try:
            failure = pickle.load(self._process.stdout)
        except EOFError:
            code = self._process.wait()
            failure = OSError(f"{self.path}: the process that wrote it ended with code {code}")
        if failure is not None:
            self._end()
            raise failure

    def _end(self, wait_s: float | None = None) -> None:
        self._ended = True
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:  # what was on its way is lost with its reader
                continue
        with contextlib.suppress(subprocess.TimeoutExpired):  # killed, but its disk holds it
            self._process.wait(wait_s)


def main() -> None:
    """Serve one RemoteWriter, on standard input and output."""
    from mpisgd.store.writer import Writer

    for number in ASKING:  # Slurm sends them to every process: the rank decides what they mean
        signal.signal(number, signal.SIG_IGN)
    calls, answers = sys.stdin.buffer, sys.stdout.buffer
    writer: Writer | None = None
    name = BEGIN
    while name not in LAST:
        try:
            name, arguments, options = pickle.load(calls)
        except (EOFError, pickle.UnpicklingError):
            break
        failure: BaseException | None = None
        try:
            if name == BEGIN:
                writer = Writer(*arguments, **options)
            else:
                getattr(writer, name)(*arguments, **options)
        except Exception as error:
            failure = error
        if failure is not None or name not in SILENT:
            try:
                pickle.dump(failure, answers)
                answers.flush()
            except BrokenPipeError:  # the rank is gone
                break
    if writer is not None and name not in LAST:
        writer.close(reason=ABANDONED)


if __name__ == "__main__":
    main()
