"""A Writer in a process of its own: a rank that trains has neither HDF5's 19 MB nor its disk time.

Calls go down a pipe. Most are not answered, so that nobody waits for a disk; what goes wrong with
them is raised by a later call. Should the rank end without a word, the process closes the file.
"""

import os
import pickle
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

# Calls that are answered only if they fail.
SILENT = ("steps", "evaluation", "event", "events", "updates", "case", "restart", "flush")
LAST = ("close", "complete")
BEGIN = "begin"
ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
ABANDONED = "its run ended without closing it"


class RemoteWriter:
    """The methods of writer.Writer, carried out elsewhere. OSError if that process is lost."""

    def __init__(self, path: str | os.PathLike, **options: Any):
        """Begin as Writer does, and raise what it raises."""
        self.path = path
        # A session of its own: Ctrl-C is for the ranks, which then close the file.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mpisgd.store.remote"],
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
            self._answer()  # raises what went wrong meanwhile
        try:
            pickle.dump((name, arguments, options), calls)
            calls.flush()
        except BrokenPipeError:
            self._answer()
        if name not in SILENT:
            self._answer()
        if name in LAST:
            self._end()

    def _answer(self) -> None:
        """Wait for it; raise it, unless all is well."""
        assert self._process.stdout is not None
        try:
            failure = pickle.load(self._process.stdout)
        except EOFError:
            code = self._process.wait()
            failure = OSError(f"{self.path}: the process that wrote it ended with code {code}")
        if failure is not None:
            self._end()
            raise failure

    def _end(self) -> None:
        self._ended = True
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:  # what was on its way is lost with its reader
                continue
        self._process.wait()


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
