"""Where a result file goes: names, and what can be told wrong before anything runs. No HDF5."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from allreduce.files import regular
from mpisgd.store.lock import lock_path
from mpisgd.store.superblock import SIGNATURE
from mpisgd.values import files
from mpisgd.values.errors import UsageError

OPTION = "--output"
CHECKPOINT = ".checkpoint"  # after the name of the result file: what its run saves
SAVED, HEAD = "mpisgd checkpoint", 512  # what such a file says, and within how many octets


def partial_path(path: str | os.PathLike) -> Path:
    """The file that stands beside the target while a run goes on, or after it was killed."""
    path = files.resolved(path)
    return path.with_name(path.name + ".partial")


def previous(checkpoint: Path) -> Path:
    """The one before it."""
    return checkpoint.with_name(checkpoint.name + ".previous")


def names(path: str | os.PathLike) -> tuple[Path, ...]:
    """All that a run writes for this target, under names that can be told before."""
    return files.resolved(path), partial_path(path), lock_path(path)


def _check_ours(partial: Path, option: str) -> None:
    """A file of that name which no run can have left is the user's."""
    try:
        with regular(partial) as file:
            head = file.read(len(SIGNATURE))
    except OSError:  # there is none, or one that only its owner may read
        return
    if any(head) and head != SIGNATURE:
        raise UsageError(option, str(partial), "is no file of a run, and is left as it is; move it")


def check_not_read(path: str | os.PathLike, inputs: Iterable[str], option: str = OPTION) -> None:
    """Refuse to write over what the same command reads, whatever it is called. UsageError."""
    for read in inputs:
        for there in (Path(read), partial_path(read)):
            try:
                same = os.path.samefile(path, there)
            except (OSError, ValueError):  # one of them is not there
                continue
            if same:
                raise UsageError(option, str(path), f"is {str(there)!r}, which is read")


def check_apart(
    option: str, given: object, mine: Iterable[Path], others: Iterable[Path], whose: str
) -> None:
    """Refuse names of one command that are the same file, whatever it is called. `whose`: of which
    two, as "--goal's and --msccl's". UsageError, of what was `given` for `option`."""
    there = set(map(os.path.realpath, mine))
    for name in others:
        if os.path.realpath(name) in there:
            allowed = f"{name.name} would be both {whose}; rename one of them"
            raise UsageError(option, str(given), allowed)


def check_target(
    path: str | os.PathLike, overwrite: bool = False, resume: bool = False, option: str = OPTION
) -> None:
    """Refuse a target that cannot or must not be written, before any communication.

    resume: existing files are to be continued, so they are no obstacle.
    option: what the user wrote before the name. Raises UsageError.
    """
    target = files.resolved(path)
    if not target.name or str(path).endswith("/"):
        raise UsageError(option, str(path), "must name a file, such as run.h5")
    if os.path.isdir(target):
        raise UsageError(option, str(path), "is a folder; name a file in it")
    for there in (target, partial_path(target)):
        if os.path.lexists(there) and not stat.S_ISREG(os.lstat(there).st_mode):
            raise UsageError(option, str(there), "is no regular file, and is left as it is")
    folder = target.parent
    if not os.path.isdir(folder):
        raise UsageError(option, str(path), f"there is no folder {str(folder)!r}; make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(option, str(path), f"the folder {str(folder)!r} cannot be written to")
    longest = os.pathconf(folder, "PC_NAME_MAX") if hasattr(os, "pathconf") else 255
    if len(os.fsencode(target.name)) > longest - len(".partial") - 1:
        raise UsageError(option, str(path), "the name is too long")
    _check_ours(partial_path(target), option)
    if overwrite or resume:
        return
    if os.path.lexists(target):
        raise UsageError(option, str(path), "exists; pass --overwrite or choose another name")
    if os.path.lexists(partial_path(target)):
        checkpoint = target.with_name(target.name + CHECKPOINT)
        saved = os.path.lexists(checkpoint) or os.path.lexists(previous(checkpoint))
        allowed = f"{partial_path(target).name} is there, from a run that still goes on or did not "
        allowed += (
            f"complete; {'--resume auto goes on, else ' if saved else ''}pass --overwrite or "
        )
        allowed += "choose another name"
        raise UsageError(option, str(path), allowed)
