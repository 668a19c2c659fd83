"""`mpisgd submit GRID.toml`: a grid of runs as Slurm jobs, or here; what is finished stays so."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from mpisgd.algorithms.policies import POLICIES
from mpisgd.experiment.experiment import Experiment, flag
from mpisgd.mpi import cores, mpiexec
from mpisgd.submit import datasets, estimate, local, queue, script
from mpisgd.submit import folder as folders
from mpisgd.submit import grid as grids
from mpisgd.submit.folder import Found, State
from mpisgd.submit.runs import GridRun
from mpisgd.values import files, progress, tables
from mpisgd.values.errors import UsageError
from mpisgd.values.options import whole

# Options that vary within the grid are columns too, behind these of them.
OPTIONS = ("algorithm", "allreduce", "ranks", "batch", "seed")
BEHIND = ("state", "job", "file")
INTERRUPTED = 130
MOST_TASKS = 1000  # of an array: Slurm's MaxArraySize is 1001 unless a site has set it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `mpisgd submit`."""
    parser.add_argument("grid", metavar="GRID.toml", help="the runs; see docs/submit.md")
    parser.add_argument("--folder", metavar="DIR", help="for results [results/NAME OF THE GRID]")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--local", action="store_true", help="run here, one after another or --jobs")
    how.add_argument("--scripts", action="store_true", help="write the scripts, submit nothing")
    parser.add_argument("--dry-run", action="store_true", help="print the runs, write nothing")
    parser.add_argument("--array", action="store_true",
                        help="runs that ask Slurm for the same are one array of jobs")  # fmt: skip
    parser.add_argument("--jobs", metavar="N", help="runs at once: of --local, as far as there are "
                        "cores [1]; of each --array [as Slurm likes]")  # fmt: skip
    parser.add_argument("--mpiexec", metavar="PATH", help="for --local [the one beside Python]")
    parser.add_argument("--format", choices=tables.FORMATS, default="table", help="[table]")


def run(arguments: argparse.Namespace) -> int:
    """Do what is left of the grid. Exit code 1 if a run failed here, 130 after Ctrl-C."""
    if arguments.array and arguments.local:
        raise UsageError("--array", None, "is of Slurm, not of --local")
    if arguments.jobs is not None:
        arguments.jobs = whole(1, 4096).read("--jobs", arguments.jobs)
    if (arguments.jobs or 1) > 1 and not (arguments.local or arguments.array):
        allowed = "only with --local or --array; Slurm has its own limits"
        raise UsageError("--jobs", arguments.jobs, allowed)
    grid = grids.read(arguments.grid)
    folder = Path(arguments.folder or Path("results") / Path(arguments.grid).stem)
    folders.check(folder)
    base, grid = grid, _searched(grid, folder)
    slurms = arguments.array or arguments.scripts or not (arguments.local or arguments.dry_run)
    if grid.settings is None and slurms:
        raise UsageError(grid.path, None, "has no [slurm] table; add it, or pass --local")
    if arguments.dry_run:
        return _foresee(grid, folder, arguments)
    launcher = None
    if arguments.local and not all(run.virtual for run in grid.runs):
        launcher = mpiexec.find(arguments.mpiexec)
    if not (arguments.local or arguments.scripts):
        queue.check()
    before = folders.look(grid.runs, folder)  # mistakes before the folder is made
    if arguments.local:
        datasets.check([grid.runs[i] for i in _left(before)])
    try:
        with folders.alone(folder):
            found = folders.look(grid.runs, folder)
            if not arguments.local:
                return _submit(grid, found, folder, arguments)
            if base.search is None:
                return _execute(grid, found, folder, launcher, arguments)
            return _search(base, folder, launcher, arguments)
    except OSError as error:  # a full disk, a folder that vanished
        reason = error.strerror or "can't be written"
        raise UsageError("--folder", error.filename or str(folder), reason) from None
    except KeyboardInterrupt:
        print("mpisgd submit: interrupted; the same command goes on", file=sys.stderr)
        return INTERRUPTED


def _left(found: list[Found]) -> list[int]:
    """The numbers of the runs that are neither finished nor in the queue."""
    return [i for i, each in enumerate(found) if each.state in (State.NEW, State.PARTIAL)]


def _foresee(grid: grids.Grid, folder: Path, arguments: argparse.Namespace) -> int:
    """Print all runs, and with --array the arrays that those that are left would be."""
    datasets.note_missing(grid.runs)
    found = folders.look(grid.runs, folder)
    _print(grid, found, folder, arguments)
    most = f"at most {arguments.jobs} at a time" if arguments.jobs else "as Slurm likes"
    for some in _alike(grid.runs, _left(found)) if arguments.array else ():
        tasks = grid.runs[some[0]].tasks
        size = f"{tasks} ranks" if tasks > 1 else "1 process"  # a rank, or all that are virtual
        told = f"1 array of {len(some)} tasks ({size} each), {most}"
        told = told if len(some) > 1 else f"1 job ({size}), which is no array"
        print(f"mpisgd submit: {told}", file=sys.stderr)
    return 0


def _submit(
    grid: grids.Grid, found: list[Found], folder: Path, arguments: argparse.Namespace
) -> int:
    """Write the scripts of all runs that are left, then put them into the queue."""
    assert grid.settings is not None
    left = _left(found)
    for i in left:
        text = script.text(grid.runs[i], grid.settings, folder, grid.path)
        files.write(folder / f"{grid.runs[i].name}.sh", text.encode())
    batches: dict[Path, list[int]] = {}
    for some in _alike(grid.runs, left) if arguments.array else [[i] for i in left]:
        runs = [grid.runs[i] for i in some]
        name = runs[0].name
        if len(some) > 1:
            name, text = script.array(runs, grid.settings, folder, grid.path, arguments.jobs)
            files.write(folder / f"{name}.sh", text.encode())
        batches[folder / f"{name}.sh"] = some
    shown: list[Any] = list(found)
    try:
        for path, some in () if arguments.scripts else batches.items():
            jobs = queue.submit(path, [folder / f"{grid.runs[i].name}.job" for i in some])
            for i, number in zip(some, jobs, strict=True):
                shown[i] = Found(State.QUEUED, number, "submitted")
    finally:
        _print(grid, shown, folder, arguments)
    return 0


def _alike(runs: Sequence[GridRun], left: Sequence[int]) -> list[list[int]]:
    """Those that ask for the same, at most MOST_TASKS together."""
    by_tasks: dict[int, list[int]] = {}
    for i in left:
        by_tasks.setdefault(runs[i].tasks, []).append(i)
    return [some[at : at + MOST_TASKS] for some in by_tasks.values()
            for at in range(0, len(some), MOST_TASKS)]  # fmt: skip


def _execute(
    grid: grids.Grid, found: list[Found], folder: Path, launcher: Any, arguments: argparse.Namespace
) -> int:
    """Run what is left, here. A run that fails is named, and the others go on."""
    left = _left(found)
    failed = 0
    shown = list(found)
    runs = [grid.runs[i] for i in left]
    ended = local.each(runs, folder, launcher, *_at_once(arguments.jobs or 1, runs))
    for place, reason in progress.over(ended, "submit", "run", len(left)):
        i = left[place]
        if reason is None:
            shown[i] = Found(State.FINISHED)
        else:
            failed += 1
            shown[i] = Found(folders.look([grid.runs[i]], folder)[0].state, None, "failed")
            print(f"mpisgd submit: {grid.runs[i].name}: {reason}", file=sys.stderr)
    _print(grid, shown, folder, arguments)
    return 1 if failed else 0


def _searched(grid: grids.Grid, folder: Path) -> grids.Grid:
    """The grid with the runs of its [search] that can be told by now."""
    if grid.search is None:
        return grid
    from mpisgd.submit import search

    return replace(grid, runs=tuple(search.known(grid.runs, grid.search, folder)))


def _search(base: grids.Grid, folder: Path, launcher: Any, arguments: argparse.Namespace) -> int:
    """Round by round, here. A run that diverges has lost; one that fails otherwise ends it."""
    from mpisgd.submit import search

    assert base.search is not None
    while True:
        runs = _searched(base, folder).runs
        left = [run for run in runs if search.score(run, base.search, folder) is None]
        if not left:
            break
        ended = local.each(left, folder, launcher, *_at_once(arguments.jobs or 1, left))
        for place, reason in progress.over(ended, "submit", "run", len(left)):
            if reason and search.score(left[place], base.search, folder) is None:
                raise UsageError(left[place].name, None, reason)
    grid = _searched(base, folder)
    _print(grid, folders.look(grid.runs, folder), folder, arguments)
    for line in search.told(base.runs, base.search, folder):
        print(f"mpisgd submit: best of {line}", file=sys.stderr)
    return 0


def _at_once(jobs: int, runs: Sequence[GridRun]) -> tuple[int, int]:
    """Runs at once, and the cores that they share; what a user should know of it is told."""
    there = max(1, int(cores.available()))
    fit = max(1, there // min((run.tasks for run in runs), default=1))
    if jobs > 1 and runs:
        more = f", not {jobs}: there are cores for no more" if jobs > fit else ""
        print(f"mpisgd submit: {min(jobs, fit)} at once{more}", file=sys.stderr)
        if fit > 1 and not all(run.virtual for run in runs):
            told = "note: seconds measured side by side disturb each other; --jobs 1 for those"
            print(f"mpisgd submit: {told}", file=sys.stderr)
    return min(jobs, fit), there


def _print(
    grid: grids.Grid, found: list[Found], folder: Path, arguments: argparse.Namespace
) -> None:
    """The table of all runs: `file` is the result where there is one or will be, else
    script or log."""
    rows = []
    settled = [_shown(run) for run in grid.runs]
    columns: list[Any] = ["run", *OPTIONS, *_varied(grid.runs), *BEHIND]
    predicted: list[float] = []
    if grid.cluster is not None:
        predicted = [estimate.seconds(run, grid.cluster) for run in grid.runs]
        columns.insert(-1, tables.Column("predicted_s", ".4g"))
        print(f"mpisgd submit: {estimate.summary(grid.runs, grid.cluster)}", file=sys.stderr)
    elif arguments.dry_run:
        reason = f"{grid.path} has no [predict] table (docs/submit.md)"
        print(f"mpisgd submit: no estimate of the cost: {reason}", file=sys.stderr)
    for i, (run, each) in enumerate(zip(grid.runs, found, strict=True)):
        ending = "log" if arguments.local else "sh"
        if each.state == State.FINISHED or arguments.dry_run:
            ending = "h5"
        rows.append(
            {
                **settled[i],
                "run": run.name,
                "state": each.slurm_state or str(each.state),
                "job": each.job,
                "file": str(folder / f"{run.name}.{ending}"),
                **({"predicted_s": predicted[i]} if predicted else {}),
            }
        )
    print(tables.render(tuple(columns), rows, arguments.format), flush=True)


def _shown(run: GridRun) -> dict[str, Any]:
    """The run's options by their flags, as cells of a table. Servers make no all-reduce."""
    names = {option.name: flag(option) for option in fields(Experiment) if option.metadata}
    cells = {names.get(name, name): value for name, value in run.settled().items()}
    cells |= {"virtual": run.virtual, "delay": cells.get("delay", run.experiment.delay)}
    if run.experiment.algorithm in POLICIES:
        cells["allreduce"] = None
    return {
        name: ",".join(map(str, value)) if isinstance(value, tuple) else value
        for name, value in cells.items()
    }


def _varied(runs: Sequence[GridRun]) -> list[str]:
    """The options beside OPTIONS that the grid gives different values."""
    options = [option for option in fields(Experiment) if option.metadata]
    found = {flag(o): {getattr(run.experiment, o.name) for run in runs} for o in options}
    found["virtual"] = {run.virtual for run in runs}
    return [name for name, values in found.items() if len(values) > 1 and name not in OPTIONS]
