"""Where checkpoints lie: FILE, the one before it in FILE.previous, and the next in FILE.writing."""

import os
import re
import stat
from collections.abc import Iterator, Mapping
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mpisgd.store.lock import lock_path
from mpisgd.store.target import previous
from mpisgd.values.errors import UsageError

if TYPE_CHECKING:  # a run that saves nothing needs no reader of files
    from mpisgd.checkpoint.file import Checkpoint


class Found(NamedTuple):
    """The newest valid checkpoint, or None; and why none of the newer candidates was taken."""

    checkpoint: "Checkpoint | None"
    notes: list[str]


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
        if os.path.lexists(there) and not stat.S_ISREG(os.lstat(there).st_mode):
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


def newest(path: Path, without: Mapping[str, str] | None = None) -> Found:
    """The newest valid checkpoint of those that stand for FILE.

    FILE.writing counts if it is whole: its run was killed before it could be moved in.
    `without`: digests of those that a rank cannot go on from, and why.
    """
    from mpisgd.checkpoint.file import Checkpoint, DamagedCheckpoint

    notes: list[str] = []
    valid: list[Checkpoint] = []
    for candidate in candidates(path):
        try:
            checkpoint = _with_parts(path, Checkpoint(candidate))
            if checkpoint.digest in (without or {}):
                notes.append((without or {})[checkpoint.digest])
            else:
                valid.append(checkpoint)
        except FileNotFoundError:
            continue
        except DamagedCheckpoint as damage:
            if candidate != writing(path):
                notes.append(str(damage))
            elif not valid:
                notes.append(f"{candidate.name} was not completed")
    best = max(valid, key=lambda checkpoint: checkpoint.meta["number"], default=None)
    return Found(best, notes)


def _with_parts(path: Path, checkpoint: "Checkpoint") -> "Checkpoint":
    """DamagedCheckpoint if a rank's part is missing; each rank verifies its own."""
    from mpisgd.checkpoint.file import DamagedCheckpoint

    for rank in checkpoint.meta.get("parts", {}):
        there = part(path, checkpoint.meta["step"], int(rank))
        if not there.exists():
            raise DamagedCheckpoint(str(checkpoint.path), None, f"its part {there.name} is missing")
    return checkpoint


def candidates(path: Path) -> tuple[Path, Path, Path]:
    """The files that stand for FILE, there or not, the newest first."""
    return writing(path), path, previous(path)


def names(path: Path) -> tuple[Path, ...]:
    """All that one process writes for FILE."""
    return *candidates(path), lock_path(path)


def parts(path: Path) -> Iterator[Path]:
    """All parts of ranks that lie there."""
    there = path.parent.glob(f"{escape(path.name)}.step*.rank*")
    return (candidate for candidate in there if is_part(path, candidate))


def part_steps(path: Path, rank: int) -> list[int]:
    """The steps of that rank's parts which lie there, the earliest first."""
    ends = (there.name.removeprefix(f"{path.name}.step").split(".rank") for there in parts(path))
    return sorted(int(step) for step, its in ends if int(its) == rank)


def is_part(path: Path, other: Path) -> bool:
    """Whether a file in the same folder has the name of a part."""
    named = re.escape(path.name) + r"\.step\d+\.rank\d+"
    return re.fullmatch(named, other.name, re.ASCII | re.DOTALL) is not None


def last_number(path: Path) -> int:
    """The highest number that any file there says it has; 0 if none does."""
    from mpisgd.checkpoint.file import peek

    told = (peek(candidate) for candidate in candidates(path))
    return max((meta["number"] for meta in told if meta is not None), default=0)


def present(path: Path) -> Path | None:
    """A file that stands for FILE, whether valid or not; None if there is none."""
    there = (path, previous(path), writing(path), *parts(path))
    return next((candidate for candidate in there if os.path.lexists(candidate)), None)


def newer(path: Path, meta: Mapping[str, Any]) -> list[Path]:
    """Those of the same run that were made after the one that says `meta`."""
    from mpisgd.checkpoint.file import peek

    at = (meta["step"], meta["number"])
    told = ((candidate, peek(candidate)) for candidate in candidates(path))
    return [candidate for candidate, its in told if its and (its["step"], its["number"]) > at]


def remove_newer(path: Path, meta: Mapping[str, Any]) -> None:
    """Before a run goes on from the one that says `meta`: rows that newer ones count are cut off,
    so that nobody may go on from those any more."""
    for there in newer(path, meta):
        there.unlink(missing_ok=True)
    for there in parts(path):
        if int(there.name.rsplit(".", 2)[1].removeprefix("step")) > meta["step"]:
            there.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """All files that stand for FILE: the run that wrote them is begun anew."""
    for there in (*candidates(path), *parts(path)):
        there.unlink(missing_ok=True)
