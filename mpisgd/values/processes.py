"""How this package starts processes of its own, and which signals it listens to."""

import signal
import sys
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

BLAS_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
PATIENCE = 10
"""How many deadlines to wait for a process that may be at work on a file: one that it reads, begins
or completes."""


def python(module: str, *arguments: str) -> list[str]:
    """The words that run a module of an installed package with this Python, whatever lies in the
    folder where they are started: `-P` keeps a user's random.py from being imported there."""
    return [sys.executable, "-P", "-m", module, *arguments]


def handle(
    numbers: Iterable[int], handler: Callable[[int, FrameType | None], object]
) -> dict[int, Any]:
    """Let `handler` have these signals; what had them before, to be set again.

    One that is ignored stays so (nohup, jobs in the background of a script). Python takes signals
    in the main thread only: elsewhere nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    heard = (number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN)
    return {number: signal.signal(number, handler) for number in heard}
