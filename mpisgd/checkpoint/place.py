"""Where checkpoints lie: FILE, the one before it in FILE.previous, and the next in FILE.writing."""

import os
from glob import escape
from pathlib import Path
from typing import NamedTuple

from mpisgd.checkpoint.file import Checkpoint, DamagedCheckpoint
from mpisgd.errors import UsageError

ENDING = ".checkpoint"  # after the name of the result file


class Found(NamedTuple):
    """The newest valid checkpoint, or None; and why none of the newer candidates was taken."""

    checkpoint: Checkpoint | None
    notes: list[str]


def previous(path: Path) -> Path:
    """The checkpoint before the last one."""
    return path.with_name(path.name + ".previous")


def writing(path: Path) -> Path:
    """One that is being written, or was when its run was killed."""
    return path.with_name(path.name + ".writing")


def base(path: Path) -> Path:
    """The FILE for which `path` stands."""
    return path.with_name(path.name.removesuffix(".previous").removesuffix(".writing"))


def part(path: Path, step: int, rank: int) -> Path:
    """The state of one rank, where each writes its own; FILE says which belong to it."""
    return path.with_name(f"{path.name}.step{step}.rank{rank}")


def check(path: Path, option: str) -> None:
    """UsageError for a place where no file can be written; before anything is."""
    if not path.name or os.path.isdir(path):
        raise UsageError(option, str(path), "must name a file")
    for there in (path, previous(path), writing(path)):
        if os.path.lexists(there) and not os.path.isfile(there):
            raise UsageError(option, str(there), "is no regular file, and is left as it is")
    folder = path.parent
    if not os.path.isdir(folder):
        raise UsageError(option, str(path), f"there is no folder {str(folder)!r}; make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(option, str(path), f"the folder {str(folder)!r} cannot be written to")
    longest = os.pathconf(folder, "PC_NAME_MAX") if hasattr(os, "pathconf") else 255
    if len(os.fsencode(previous(path).name)) > longest:
        raise UsageError(option, str(path), "the name is too long")


def move_in(path: Path) -> None:
    """What is in FILE.writing, whole and on the disk, becomes FILE; the one before it is kept.

    A kill in between leaves FILE.previous and FILE.writing, both whole.
    """
    if os.path.exists(path):
        os.replace(path, previous(path))
    os.replace(writing(path), path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # the names, too
    except OSError:  # some file systems cannot, and need not
        pass
    finally:
        os.close(descriptor)


def newest(path: Path) -> Found:
    """The newest valid checkpoint of those that stand for FILE.

    FILE.writing counts if it is whole: its run was killed before it could be moved in.
    """
    notes: list[str] = []
    valid: list[Checkpoint] = []
    for candidate in (writing(path), path, previous(path)):
        try:
            valid.append(_with_parts(path, Checkpoint(candidate)))
        except FileNotFoundError:
            continue
        except DamagedCheckpoint as damage:
            if candidate != writing(path):
                notes.append(str(damage))
            elif not valid:
                notes.append(f"{candidate.name} was not completed")
    best = max(valid, key=lambda checkpoint: checkpoint.meta["number"], default=None)
    return Found(best, notes)


def _with_parts(path: Path, checkpoint: Checkpoint) -> Checkpoint:
    """DamagedCheckpoint if a rank's part is missing; each rank verifies its own."""
    for rank in checkpoint.meta.get("parts", {}):
        there = part(path, checkpoint.meta["step"], int(rank))
        if not there.exists():
            raise DamagedCheckpoint(str(checkpoint.path), None, f"its part {there.name} is missing")
    return checkpoint


def present(path: Path) -> Path | None:
    """A file that stands for FILE, whether valid or not; None if there is none."""
    return next((p for p in (path, previous(path), writing(path)) if os.path.lexists(p)), None)


def remove(path: Path) -> None:
    """All files that stand for FILE: the run that wrote them is begun anew."""
    parts = path.parent.glob(f"{escape(path.name)}.step*.rank*")
    for there in (writing(path), previous(path), path, *parts):
        there.unlink(missing_ok=True)
