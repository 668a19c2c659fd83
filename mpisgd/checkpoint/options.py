"""What a user says about checkpoints, read and checked before anything runs."""

import argparse
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mpisgd.checkpoint import place
from mpisgd.store.target import CHECKPOINT, check_apart, names
from mpisgd.values import options
from mpisgd.values.errors import UsageError
from mpisgd.values.files import resolved

AUTO = "auto"
EVERY = "a whole number of steps, or a time such as 30s or 5min"


@dataclass(frozen=True)
class Saving:
    """Where and when a run is saved, and what it goes on from.

    `place`: FILE, which `option` named; `every_steps`, `every_s`: how often, besides when the run
    ends; `resume`: AUTO, a file, or None to begin; `overwrite`: replace what is there; `per_rank`:
    each rank writes a file of its own.
    """

    place: Path
    option: str = "--checkpoint"
    every_steps: int | None = None
    every_s: float | None = None
    resume: str | None = None
    overwrite: bool = False
    per_rank: bool = False

    @property
    def source(self) -> Path:
        """The FILE to go on from, whichever of those that stand for it was taken."""
        return self.place if self.resume in (None, AUTO) else place.base(Path(str(self.resume)))

    @property
    def on_the_way(self) -> bool:
        """Whether the run is saved before it ends."""
        return self.every_steps is not None or self.every_s is not None

    def check(self) -> None:
        """UsageError for a place that cannot or must not be written. On the rank that writes."""
        place.check(self.place, self.option)
        there = place.present(self.place)
        if self.resume is None:
            self._check_ours()
        if self.resume is None and not self.overwrite and there is not None:
            allowed = "is there from an earlier run; pass --resume auto to go on, or --overwrite"
            raise UsageError(self.option, str(there), allowed)

    def check_apart(self, others: Iterable[Path], owner: str) -> None:
        """UsageError where one of `others`, which the option `owner` writes, is a checkpoint's."""
        _check_apart(self.place, self.option, others, owner)

    def _check_ours(self) -> None:
        """UsageError for FILE, or one beside it, that is there and that no run has written."""
        from mpisgd.checkpoint.file import claims

        for there in (*place.candidates(self.place), *place.parts(self.place)):
            if os.path.lexists(there) and not claims(there):
                allowed = "is no checkpoint, and is left as it is; choose another name"
                raise UsageError(self.option, str(there), allowed)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `mpisgd train` about checkpoints."""
    group = parser.add_argument_group("checkpoints (docs/checkpoints.md)")
    group.add_argument(
        "--checkpoint", metavar="FILE",
        help="where to save the run, when it ends and when a signal stops it [OUTPUT.checkpoint]",
    )  # fmt: skip
    group.add_argument("--checkpoint-every", metavar="STEPS|TIME", help=f"and on the way: {EVERY}")
    group.add_argument(
        "--checkpoint-per-rank", action="store_true",
        help="each rank writes its own file, where all see the folder: for large models",
    )  # fmt: skip
    group.add_argument(
        "--resume", metavar="auto|FILE",
        help="go on from FILE; auto: from the newest valid checkpoint, or from the beginning",
    )  # fmt: skip


def saving(
    output: str | None,
    file: str | None = None,
    every: int | str | None = None,
    resume: str | None = None,
    per_rank: bool = False,
    overwrite: bool = False,
) -> Saving | None:
    """What was said, as the options of `mpisgd train`; None where nothing is to be saved.

    Raises UsageError.
    """
    if file is None and every is None and resume is None:
        if per_rank:
            allowed = "only with --checkpoint, --checkpoint-every or --resume"
            raise UsageError("--checkpoint-per-rank", None, allowed)
        return None
    option = "--checkpoint"
    if file is None:
        if output is None and resume in (None, AUTO):
            given = ("--checkpoint-every", every) if resume is None else ("--resume", resume)
            raise UsageError(*given, "needs --checkpoint FILE or --output FILE, to lie beside it")
        option = "--resume" if output is None else "--output"
        file = resume if output is None else f"{resolved(output)}{CHECKPOINT}"
    if resume is not None and overwrite:
        raise UsageError("--overwrite", None, "not with --resume, which continues what is there")
    if not file or "\0" in file or not Path(file).name or resume == "":
        raise UsageError("--checkpoint" if not file else option, file, "must name a file")
    if resume not in (None, AUTO) and not Path(resume).name:
        raise UsageError("--resume", resume, "must name a file")
    if output and Path(file).name and Path(output).name:  # else refused elsewhere
        _check_apart(Path(file), option, names(output), "--output")
    steps, seconds = _every(None if every is None else str(every))
    return Saving(resolved(file), option, steps, seconds, resume, overwrite, per_rank)


def _check_apart(file: Path, option: str, others: Iterable[Path], owner: str) -> None:
    """UsageError where a checkpoint would lie in a file of another option's, or the reverse."""
    folder, others = os.path.realpath(file.parent), list(others)
    parts = [
        name
        for name in others
        if place.is_part(file, name) and os.path.realpath(name.parent) == folder
    ]
    whose = f"a checkpoint's and {owner}'s"
    check_apart(option, file, [*place.names(file), *parts], others, whose)


def _every(text: str | None) -> tuple[int | None, float | None]:
    """(steps, None) or (None, seconds)."""
    if text is None:
        return None, None
    option = "--checkpoint-every"
    try:
        if text.isascii() and text.isdigit():
            return options.whole(1, 10**9).read(option, text), None
        return None, options.duration(1e-6).read(option, text)
    except UsageError:
        raise UsageError(option, text, EVERY) from None
