"""`mpisgd submit GRID.toml`: a grid of runs as Slurm jobs, or here; what is finished stays so."""

import argparse
import sys
from pathlib import Path
from typing import Any

from mpisgd import launcher, tables
from mpisgd.errors import UsageError
from mpisgd.submit import estimate, local, queue, script
from mpisgd.submit import folder as folders
from mpisgd.submit import grid as grids
from mpisgd.submit.folder import Found, State

COLUMNS = ("run", "algorithm", "allreduce", "ranks", "batch", "seed", "state", "job", "file")
INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `mpisgd submit`."""
    parser.add_argument("grid", metavar="GRID.toml", help="the runs; see docs/submit.md")
    parser.add_argument("--folder", metavar="DIR", help="for results [results/NAME OF THE GRID]")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--local", action="store_true", help="run here, one after another")
    how.add_argument("--scripts", action="store_true", help="write the scripts, submit nothing")
    how.add_argument("--dry-run", action="store_true", help="print the runs, write nothing")
    parser.add_argument("--mpiexec", metavar="PATH", help="for --local [the one beside Python]")
    parser.add_argument("--format", choices=tables.FORMATS, default="table")


def run(arguments: argparse.Namespace) -> int:
    """Do what is left of the grid. Exit code 1 if a run failed here, 130 after Ctrl-C."""
    grid = grids.read(arguments.grid)
    folder = Path(arguments.folder or Path("results") / Path(arguments.grid).stem)
    folders.check(folder)
    if grid.settings is None and not (arguments.local or arguments.dry_run):
        raise UsageError(grid.path, None, "has no [slurm] table; add it, or pass --local")
    if arguments.dry_run:
        _print(grid, folders.look(grid.runs, folder), folder, arguments)
        return 0
    mpiexec = None
    if arguments.local and not all(run.virtual for run in grid.runs):
        mpiexec = launcher.find(arguments.mpiexec)
    if not (arguments.local or arguments.scripts):
        queue.check()
    folders.look(grid.runs, folder)  # mistakes before the folder is made
    try:
        with folders.alone(folder):
            found = folders.look(grid.runs, folder)
            if not arguments.local:
                return _submit(grid, found, folder, arguments)
            return _execute(grid, found, folder, mpiexec, arguments)
    except OSError as error:  # a full disk, a folder that vanished
        reason = error.strerror or "can't be written"
        raise UsageError("--folder", error.filename or str(folder), reason) from None
    except KeyboardInterrupt:
        print("mpisgd submit: interrupted; the same command goes on", file=sys.stderr)
        return INTERRUPTED


def _submit(
    grid: grids.Grid, found: list[Found], folder: Path, arguments: argparse.Namespace
) -> int:
    """Write the scripts of all runs that are left, then put them into the queue."""
    assert grid.settings is not None
    left = [i for i, each in enumerate(found) if each.state in (State.NEW, State.PARTIAL)]
    for i in left:
        text = script.text(grid.runs[i], grid.settings, folder, grid.path)
        (folder / f"{grid.runs[i].name}.sh").write_text(text, encoding="utf-8")
    shown: list[Any] = list(found)
    try:
        for i in [] if arguments.scripts else left:
            path = folder / f"{grid.runs[i].name}.sh"
            number = queue.submit(path, path.with_suffix(".job"))
            shown[i] = Found(State.QUEUED, number, "submitted")
    finally:
        _print(grid, shown, folder, arguments)
    return 0


def _execute(
    grid: grids.Grid, found: list[Found], folder: Path, mpiexec: Any, arguments: argparse.Namespace
) -> int:
    """Run what is left, here. A run that fails is named, and the others go on."""
    left = [i for i, each in enumerate(found) if each.state in (State.NEW, State.PARTIAL)]
    failed = 0
    shown = list(found)
    with local.progress_bar([grid.runs[i] for i in left]) as bar:
        for i in left:
            reason = local.execute(grid.runs[i], folder, mpiexec)
            if reason is None:
                shown[i] = Found(State.FINISHED)
            else:
                failed += 1
                shown[i] = Found(folders.look([grid.runs[i]], folder)[0].state, None, "failed")
                print(f"mpisgd submit: {grid.runs[i].name}: {reason}", file=sys.stderr)
            if bar is not None:
                bar.update()
    _print(grid, shown, folder, arguments)
    return 1 if failed else 0


def _print(
    grid: grids.Grid, found: list[Found], folder: Path, arguments: argparse.Namespace
) -> None:
    """The table of all runs: `file` is the result where there is one, else script or log."""
    rows = []
    columns: tuple[Any, ...] = COLUMNS
    predicted: list[float] = []
    if len({run.experiment.model for run in grid.runs}) > 1:
        columns = (COLUMNS[0], "model", *COLUMNS[1:])
    if grid.cluster is not None:
        predicted = [estimate.seconds(run, grid.cluster) for run in grid.runs]
        columns = (*columns[:-1], tables.Column("predicted_s", ".4g"), COLUMNS[-1])
        print(f"mpisgd submit: {estimate.summary(grid.runs, grid.cluster)}", file=sys.stderr)
    for i, (run, each) in enumerate(zip(grid.runs, found, strict=True)):
        ending = "log" if arguments.local else "sh"
        if each.state == State.FINISHED:
            ending = "h5"
        rows.append(
            {
                **{name: getattr(run.experiment, name) for name in COLUMNS[1:6]},
                "run": run.name,
                "model": run.experiment.model,
                "state": each.slurm_state or str(each.state),
                "job": each.job,
                "file": str(folder / f"{run.name}.{ending}"),
                **({"predicted_s": predicted[i]} if predicted else {}),
            }
        )
    print(tables.render(columns, rows, arguments.format), flush=True)
