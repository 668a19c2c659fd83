"""The data of a grid's runs: looked for once, before the first run starts."""

import sys
from collections.abc import Sequence
from pathlib import Path

from mpisgd.experiment import building
from mpisgd.submit.runs import GridRun


def check(runs: Sequence[GridRun]) -> None:
    """Read every data set of `runs` once. UsageError for one that is missing or damaged: each of
    its runs would fail alike."""
    known: set[tuple[object, ...]] = set()
    for run in runs:
        e = run.experiment
        key = e.data, e.data_path, e.data_samples, e.plugin_options
        if key not in known:
            known.add(key)
            building.load(e)


def note_missing(runs: Sequence[GridRun]) -> None:
    """Say which paths are not here: jobs may run where they are, so that is no mistake yet."""
    paths = dict.fromkeys(run.experiment.data_path for run in runs)
    for path in paths:
        if path is not None and not Path(path).exists():
            print(f"mpisgd submit: note: --data-path {path!r} is not found here", file=sys.stderr)
