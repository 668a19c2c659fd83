"""One run at a time: who writes files at a place holds a lock beside it for as long as it lives.

The lock is the kernel's (flock), so that it ends with its process, however that ends; the empty
file that carries it may then stay. Where a file system has no locks a run goes on without.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from mpisgd.values.errors import UsageError

PATIENCE = 1.0  # s that a run which is just being killed has to let go
LOOK_EVERY = 0.05  # s


def lock_path(path: Path) -> Path:
    """The file that carries the lock of `path`."""
    return path.with_name(f".{path.name}.lock")


@contextlib.contextmanager
def held(path: Path, option: str) -> Iterator[None]:
    """Nobody else writes `path`, which `option` named. UsageError if another run does."""
    lock = lock_path(path) if path.name else None
    descriptor = None if lock is None else _acquire(lock, path, option)
    try:
        yield
    finally:
        if lock is not None and descriptor is not None:
            with contextlib.suppress(OSError):
                if os.fstat(descriptor).st_size == 0:  # else it is a file of the user's
                    os.unlink(lock)
            os.close(descriptor)


def _acquire(lock: Path, path: Path, option: str) -> int | None:
    """The descriptor that holds it; None where there are no locks."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(lock, descriptor):
                return descriptor
            os.close(descriptor)  # whoever had it has just removed the file
        except BlockingIOError:
            os.close(descriptor)
            if time.monotonic() > until:
                allowed = "another run is writing it; wait for that to end, or choose another name"
                raise UsageError(option, str(path), allowed) from None
            time.sleep(LOOK_EVERY)
        except OSError:
            os.close(descriptor)
            return None


def _is(lock: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(lock), os.fstat(descriptor))
    except FileNotFoundError:
        return False
