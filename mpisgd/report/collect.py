"""Find and read result files: what can't be read is named, and the rest goes on."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mpisgd.report.lateness import lateness
from mpisgd.report.speed import speed
from mpisgd.store.opening import DamagedFile
from mpisgd.store.reader import Run, read
from mpisgd.store.texts import printable
from mpisgd.values import progress
from mpisgd.values.errors import UsageError

PATTERNS = ("*.h5", "*.h5.partial")


class Named(NamedTuple):
    """A run and the name it goes by: its path as the user would write it."""

    name: str
    run: Run

    def release(self) -> None:
        """Forget the long columns of the run, which are read again if asked for."""
        if isinstance(self.run, Run):
            self.run.release()


def find(words: Sequence[str]) -> list[str]:
    """The files that `words` name; a folder stands for the results in it and below.

    Raises UsageError for a folder without any.
    """
    files: list[str] = []
    for word in words:
        if os.path.isdir(word):
            found = sorted(str(path) for pattern in PATTERNS for path in Path(word).rglob(pattern))
            if not found:
                raise UsageError("FILES", word, f"holds no result, no {' or '.join(PATTERNS)}")
            files += found
        else:
            files.append(word)
    return list(dict.fromkeys(files))


def collect(files: Sequence[str]) -> tuple[list[Named], list[str]]:
    """The readable runs in `files`, and one line for each that is not."""
    runs, problems = [], []
    for file in progress.over(files, "reading", "file"):
        try:
            run = read(file)
            # Damage in what is looked at later is found now, not in the middle of a page.
            run.check()
            _ = speed(run), lateness(run)  # of long columns, while they are at hand
            run.release()
            partial = run.path.name != Path(file).name  # what is shown is what was read
            runs.append(Named(printable(file + run.path.suffix * partial), run))
        except DamagedFile as error:
            problems.append(printable(str(error)))
    return runs, problems
