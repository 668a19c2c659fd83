"""A limit for the two waits that MPI has no words for: until all ranks have started, and have left.

MPI_Init and MPI_Finalize hold the interpreter: no thread or signal handler of this process runs
meanwhile. So another process waits beside it: it ends the rank, and the launcher then the job.
"""

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def watched(words: str, seconds: float) -> Iterator[None]:
    """End this process, after `words` on standard error, if the block takes longer."""
    child, wake = begin(words, seconds)
    try:
        yield
    finally:
        os.close(wake)
        os.waitpid(child, 0)


def begin(words: str, seconds: float) -> tuple[int, int]:
    """Start to watch, until the descriptor is closed, as the end of this process does too. The
    process that watches, and the descriptor."""
    read, write = os.pipe()
    rank = os.getpid()
    child = os.fork()
    if child:
        os.close(read)
        return child, write
    try:
        os.close(write)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # they are the rank's, which then leaves
        if not select.select([read], [], [], seconds)[0] and os.getppid() == rank:
            os.write(2, f"{words}\n".encode())
            os.kill(rank, signal.SIGKILL)
    finally:
        os._exit(0)
