"""`mpisgd sweep`: where the best setting of a sweep lies, and the grid that would settle it."""

import argparse
import os
import shlex
import sys

from mpisgd.store.lock import save
from mpisgd.store.target import check_not_read, check_target
from mpisgd.values import tables
from mpisgd.values.errors import UsageError

METRICS = ("accuracy", "loss", "ema_accuracy", "ema_loss", "train_loss")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `mpisgd sweep`."""
    parser.add_argument("files", nargs="+", metavar="RESULT",
                        help="result files, or folders of them")  # fmt: skip
    parser.add_argument("--by", choices=METRICS, default="accuracy",
                        help="what is best, at the end of a run [accuracy]")  # fmt: skip
    parser.add_argument("--grid", metavar="FILE.toml", help="write what lies beyond the edges")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing --grid")
    parser.add_argument("--format", choices=tables.FORMATS, default="table", help="[table]")


def run(arguments: argparse.Namespace) -> int:
    """Print a row an option; exit code 0."""
    from mpisgd.report.collect import collect, find
    from mpisgd.report.sweep import COLUMNS, EDGE, ONE_RUN, further, rows, sweeps

    if arguments.grid is not None:
        check_target(arguments.grid, arguments.overwrite, option="--grid")
    files = find(arguments.files)
    if arguments.grid is not None:
        check_not_read(arguments.grid, files, "--grid")
    named, problems = collect(files)
    for problem in problems:
        print(f"mpisgd sweep: {problem}", file=sys.stderr)
    if problems and not named:
        return 2
    found = sweeps(named, arguments.by)
    if not found:
        allowed = f"{len(named)} runs vary no number of an algorithm, or have no {arguments.by}"
        raise UsageError("RESULT", None, allowed)
    grid = None if arguments.grid is None else further(found, arguments.by)
    if grid:
        save(arguments.grid, grid.encode(), "--grid")
    table = [row for sweep in found for row in rows(sweep, arguments.by)]
    used = [c for c in COLUMNS if any(row.get(c.key) is not None for row in table)]
    shown = used if arguments.format == "table" else COLUMNS
    print(tables.render(shown, table, arguments.format))
    edges = sum(row["verdict"].startswith(EDGE) for row in table)
    out = sys.stdout if arguments.format == "table" else sys.stderr
    print(f"mpisgd sweep: {edges} of {len(table)} lie on an edge of what was tried", file=out)
    if any(max(map(len, sweep.scores.values())) == 1 for sweep in found):
        print(f"mpisgd sweep: note: {ONE_RUN}", file=sys.stderr)
    if grid is not None:
        if grid:
            words = ["mpisgd", "submit", arguments.grid, "--dry-run"]
            if len(arguments.files) == 1 and os.path.isdir(arguments.files[0]):
                words[3:3] = ["--folder", arguments.files[0]]  # beside those that it goes on from
            told = f"wrote {arguments.grid}; {shlex.join(words)}"
        else:
            told = "no grid: nothing that may be tried lies beyond"
        print(f"mpisgd sweep: {told}", file=sys.stderr)
    return 0
