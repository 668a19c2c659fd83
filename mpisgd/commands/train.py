"""`mpisgd train`: build a run from an Experiment, let a world run it, record it."""

import argparse
import os
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from mpisgd.checkpoint import options as checkpoint
from mpisgd.checkpoint.options import Saving
from mpisgd.experiment.arguments import add_arguments as add_options
from mpisgd.experiment.arguments import from_arguments
from mpisgd.experiment.building import Place, build_worker, load, resolve_for
from mpisgd.experiment.experiment import Experiment
from mpisgd.experiment.remarks import tell_assumptions
from mpisgd.store.lock import held
from mpisgd.store.target import OPTION, check_target
from mpisgd.values import progress, tables
from mpisgd.values.errors import UsageError
from mpisgd.values.options import whole

VIRTUAL = {
    "averaging": "mpisgd.drivers.virtual:train",
    "servers": "mpisgd.drivers.virtual_servers:train",
}
REAL = {
    "averaging": "mpisgd.drivers.mpi:train",
    "servers": "mpisgd.drivers.mpi_servers:train",
}
FIGURES = ("steps", "time_s", "steps_per_s", "loss", "accuracy")
SUMMARIES = {
    "averaging": ("algorithm", "tau", "delay", "ranks", *FIGURES),
    "servers": ("algorithm", "ranks", "workers", "servers", *FIGURES, "used_share"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `mpisgd train`."""
    add_options(parser)
    group = parser.add_argument_group("where it runs, and output")
    group.add_argument("--virtual", metavar="M", help="M ranks in this process, on a virtual clock")
    group.add_argument("--output", metavar="FILE", help="HDF5 file for the results")
    group.add_argument("--overwrite", action="store_true", help="replace an existing --output")
    checkpoint.add_arguments(parser)
    group.add_argument("--blas-threads", metavar="N", help="BLAS threads of each rank [1]")
    group.add_argument("--format", choices=tables.FORMATS, default="table", help="of the summary")


def run(arguments: argparse.Namespace) -> int:
    """Run one experiment; exit code 0, 2 for a user's mistake, 3 where a loss was not finite."""
    from mpisgd.mpi import session

    experiment = from_arguments(arguments)
    ranks = None if arguments.virtual is None else _virtual_ranks(arguments.virtual)
    saving = checkpoint.read(arguments)
    check_world(experiment, ranks is not None)
    if arguments.blas_threads is not None:
        whole(1, 4096).read("--blas-threads", arguments.blas_threads)
    if ranks is not None:
        if (tasks := session.announced_tasks(os.environ)) > 1:
            allowed = f"runs in one process, but a launcher started {tasks}; start it without"
            raise UsageError("--virtual", ranks, allowed)
        with ExitStack() as locks:
            return _run_virtual(experiment, ranks, arguments, saving, locks)
    comm = session.world()
    work = partial(_run_locked, comm, experiment, arguments, saving)
    return session.guarded(comm, work, experiment.deadline_s)


def check_world(experiment: Experiment, virtual: bool) -> None:
    """UsageError for what only the other world can do."""
    if virtual and experiment.progress == "thread":
        raise UsageError("--progress", "thread", "poll or perfect with --virtual")
    if not virtual and experiment.progress == "perfect":
        raise UsageError("--progress", "perfect", "poll or thread without --virtual")
    if not virtual and experiment.network is not None:
        raise UsageError("--network", experiment.network, "only with --virtual")


def _virtual_ranks(text: str) -> int:
    return whole(1, 8192).read("--virtual", text)


def _run_locked(
    comm: Any, experiment: Experiment, arguments: argparse.Namespace, saving: Saving | None
) -> int:
    with ExitStack() as locks:
        return _run_real(comm, experiment, arguments, saving, locks)


def _lock(locks: ExitStack, output: str | None, saving: Saving | None) -> None:
    """Until `locks` are closed nobody else writes there. UsageError if another run does."""
    if output is not None:
        locks.enter_context(held(Path(output), OPTION))
    if saving is not None:
        locks.enter_context(held(saving.place, saving.option))


def _lock_together(
    comm: Any, locks: ExitStack, output: str | None, saving: Saving | None, deadline: float
) -> None:
    """On rank 0, which writes; UsageError on every rank."""
    from mpisgd.mpi import session

    refused: UsageError | None = None
    if comm.Get_rank() == 0:
        try:
            _lock(locks, output, saving)
        except UsageError as mistake:
            refused = mistake
    session.agree(comm, refused, deadline)


def _run_real(
    comm: Any, experiment: Experiment, arguments: argparse.Namespace, saving: Saving | None,
    locks: ExitStack,
) -> int:  # fmt: skip
    from mpisgd.mpi import session
    from mpisgd.values.registry import resolve

    error: UsageError | None = None
    dataset: Any = None
    try:
        dataset = load(experiment)
        if arguments.output is not None and comm.Get_rank() == 0:
            check_target(arguments.output, arguments.overwrite, resume=_resumes(saving))
        _try(resolve_for(experiment, dataset, comm.Get_size()), dataset, comm.Get_rank())
    except UsageError as mistake:
        error = mistake
    session.agree(comm, error, experiment.deadline_s)
    experiment = resolve_for(experiment, dataset, comm.Get_size())
    session.agree_on(comm, "options", repr((experiment, saving)), experiment.deadline_s)
    tell = partial(tell_assumptions, experiment, dataset, arguments, comm.Get_rank())
    train = resolve(REAL, _kind(experiment), "--algorithm")
    if saving is None:
        _lock_together(comm, locks, arguments.output, None, experiment.deadline_s)
        tell()
        return train(comm, experiment, dataset, arguments)
    from mpisgd.checkpoint import ranks
    from mpisgd.checkpoint.writer import Checkpointing

    choice, mine = ranks.choose_together(comm, saving, experiment, dataset, arguments.output)
    if not choice.complete:
        _lock_together(comm, locks, arguments.output, saving, experiment.deadline_s)
    if comm.Get_rank() == 0:
        _tell(choice.notes)
    if choice.complete:
        return 0
    tell()
    checkpointing = Checkpointing(saving, mine, choice.resumed)
    return train(comm, choice.experiment, dataset, arguments, checkpointing)


def _try(experiment: Experiment, dataset: Any, rank: int) -> None:
    """Build what the rank will need, to find a user's mistakes before any message."""
    if _kind(experiment) == "averaging":
        build_worker(experiment, dataset, Place(rank, experiment.ranks))
    else:
        from mpisgd.servers.roles import Builder

        Builder(experiment, dataset).server(None, 0)


def _run_virtual(
    experiment: Experiment, ranks: int, arguments: argparse.Namespace, saving: Saving | None,
    locks: ExitStack,
) -> int:  # fmt: skip
    from mpisgd.drivers.virtual import virtual_network
    from mpisgd.values.registry import resolve

    train = resolve(VIRTUAL, _kind(experiment), "--algorithm")
    dataset = load(experiment)
    if arguments.output is not None:
        check_target(arguments.output, arguments.overwrite, resume=_resumes(saving))
    experiment = resolve_for(experiment, dataset, ranks)
    virtual_network(experiment)  # a user's mistakes, before any word or file
    _try(experiment, dataset, 0)
    tell = partial(tell_assumptions, experiment, dataset, arguments)
    if saving is None:
        _lock(locks, arguments.output, None)
        tell()
        return train(experiment, dataset, arguments)
    from mpisgd.checkpoint.fitting import misfit
    from mpisgd.checkpoint.identity import identity
    from mpisgd.checkpoint.resume import choose
    from mpisgd.checkpoint.writer import Checkpointing

    saving.check()
    mine = identity(experiment, dataset, virtual=True)
    fits = partial(misfit, experiment, dataset, True)
    choice = choose(saving, experiment, mine, arguments.output, misfit=fits)
    if not choice.complete:
        _lock(locks, arguments.output, saving)
    _tell(choice.notes)
    if choice.complete:
        return 0
    tell()
    return train(choice.experiment, dataset, arguments, Checkpointing(saving, mine, choice.resumed))


def _resumes(saving: Saving | None) -> bool:
    return saving is not None and saving.resume is not None


def _tell(notes: list[str]) -> None:
    for note in notes:
        print(f"mpisgd: {note}", file=sys.stderr)
    sys.stderr.flush()


def _kind(experiment: Experiment) -> str:
    """Which driver it needs."""
    from mpisgd.algorithms import ALGORITHMS

    return "averaging" if experiment.algorithm in ALGORITHMS else "servers"


def report(experiment: Experiment, last: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Print the summary on standard output."""
    time_s, computed = last.get("time_s", 0.0), last.get("samples_computed")
    kind = _kind(experiment)
    row = {
        "algorithm": experiment.algorithm,
        "tau": experiment.tau,
        "delay": experiment.delay,
        "ranks": experiment.ranks,
        "workers": experiment.workers,
        "servers": experiment.servers,
        "used_share": last.get("samples_used", 0) / computed if computed else None,
        "steps": last.get("step"),
        "time_s": time_s,
        "steps_per_s": last.get("step", 0) / time_s if time_s else None,
        "loss": last.get("loss"),
        "accuracy": last.get("accuracy"),
    }
    print(tables.render(SUMMARIES[kind], [row], arguments.format))
    sys.stdout.flush()


def progress_bar(experiment: Experiment, checkpointing: Any = None) -> Any:
    """What tells how far the run is; `update()` it for each step, or each gradient that a server
    used. `keeping`: of a run that is saved, and may go on from a step."""
    resumed = None if checkpointing is None else checkpointing.resumed
    each = experiment.step_workers if _kind(experiment) == "servers" else 1
    done = 0 if resumed is None else resumed.step
    return progress.shown(experiment.algorithm, experiment.steps or 1, each, done)
