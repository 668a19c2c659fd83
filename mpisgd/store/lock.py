"""One run at a time: who writes files at a place holds a lock beside it for as long as it lives.

The lock is the kernel's (flock), so that it ends with its process, however that ends; the empty
file that carries it may then stay. Where a file system has no locks a run goes on without, and says
so; a lock that is there but not to be had, another user's for one, is a refusal.
"""

import contextlib
import errno
import fcntl
import os
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mpisgd.values import files
from mpisgd.values.errors import UsageError

PATIENCE = 1.0  # s that a run which is just being killed has to let go
LOOK_EVERY = 0.05  # s
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)
FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def lock_path(path: str | os.PathLike) -> Path:
    """The file that carries the lock of `path`."""
    path = files.resolved(path)
    return path.with_name(f".{path.name}.lock")


@contextlib.contextmanager
def held(path: Path, option: str) -> Iterator[None]:
    """Nobody else writes `path`, which `option` named. UsageError if another run does."""
    lock = lock_path(path) if path.name else None
    descriptor = None if lock is None else _acquire(lock, path, option)
    if descriptor is not None:
        files.remove_left(files.resolved(path))
    try:
        yield
    finally:
        if lock is not None and descriptor is not None:
            _remove(lock, descriptor)
            os.close(descriptor)


def save(path: str | os.PathLike, content: bytes, option: str) -> None:
    """Write a file that `option` named, alone, whole or not at all. UsageError if that fails."""
    stream(path, [content], option)


def stream(path: str | os.PathLike, pieces: Iterable[bytes], option: str) -> None:
    """As `save`, of a content that is never in memory as a whole."""
    with held(Path(path), option):
        try:
            with files.replacing(path) as beside, open(beside, "wb") as file:
                file.writelines(pieces)
        except OSError as error:
            raise UsageError(option, str(path), f"cannot be written: {error.strerror}") from None


@contextlib.contextmanager
def held_together(comm: Any, output: str | None, deadline: float) -> Iterator[None]:
    """Nobody else writes the file `output`, if there is one: rank 0, which writes, holds its lock.
    UsageError on every rank."""
    from mpisgd.mpi import session

    refused: UsageError | None = None
    with contextlib.ExitStack() as locks:
        try:
            if output is not None and comm.Get_rank() == 0:
                locks.enter_context(held(Path(output), "--output"))
        except UsageError as mistake:
            refused = mistake
        session.agree(comm, refused, deadline)
        yield


def flocked(descriptor: int, what: str | os.PathLike) -> bool:
    """Whether the lock of an open file was taken; where there are no locks that is told, and it
    was not. BlockingIOError if another process has it; OSError."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        print(
            f"mpisgd: note: {what}: this file system has no locks ({error.strerror}); nothing "
            "keeps another run from writing there too",
            file=sys.stderr,
            flush=True,
        )
        return False
    return True


def _acquire(lock: Path, path: Path, option: str) -> int | None:
    """The descriptor that holds it; None where there are no locks."""
    until = time.monotonic() + PATIENCE
    while True:
        descriptor = _opened(lock, path, option)
        try:
            if not flocked(descriptor, path):
                _remove(lock, descriptor)
                os.close(descriptor)
                return None
            if _is(lock, descriptor):
                return descriptor
            os.close(descriptor)  # whoever had it has just removed the file
        except BlockingIOError:
            os.close(descriptor)
            if time.monotonic() > until:
                allowed = "another run is writing it; wait for that to end, or choose another name"
                raise UsageError(option, str(path), allowed) from None
            time.sleep(LOOK_EVERY)
        except OSError as error:
            os.close(descriptor)
            raise _refused(lock, path, option, error) from None


def _opened(lock: Path, path: Path, option: str) -> int:
    try:
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | FLAGS, 0o666)
        except PermissionError:  # another user's: it tells whether that one's run goes on
            descriptor = os.open(lock, os.O_RDONLY | FLAGS)
    except OSError as error:
        raise _refused(lock, path, option, error) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UsageError(option, str(lock), "is no regular file, and is left as it is")
    return descriptor


def _refused(lock: Path, path: Path, option: str, error: OSError) -> UsageError:
    allowed = f"cannot be locked by {lock.name} beside it: {error.strerror}"
    allowed += "; it is another user's" if isinstance(error, PermissionError) else ""
    return UsageError(option, str(path), allowed)


def _remove(lock: Path, descriptor: int) -> None:
    with contextlib.suppress(OSError):
        if os.fstat(descriptor).st_size == 0:  # else it is a file of the user's
            os.unlink(lock)


def _is(lock: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.lstat(lock), os.fstat(descriptor))
    except FileNotFoundError:
        return False
