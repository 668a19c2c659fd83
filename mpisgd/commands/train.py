"""`mpisgd train`: an experiment from options, the world that runs it, what is said of it."""

import argparse
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from mpisgd.algorithms.policies import POLICIES
from mpisgd.checkpoint import options as checkpoint
from mpisgd.checkpoint.options import Saving
from mpisgd.experiment.arguments import add_arguments as add_options
from mpisgd.experiment.arguments import from_arguments
from mpisgd.experiment.experiment import Experiment
from mpisgd.experiment.remarks import (
    tell_assumptions,
    tell_chosen,
    tell_stopped,
    tell_tuned,
)
from mpisgd.values import progress, tables
from mpisgd.values.errors import UsageError
from mpisgd.values.options import whole

if TYPE_CHECKING:
    from mpisgd.drivers.job import Outcome
    from mpisgd.drivers.launch import World
    from mpisgd.values.progress import Bar

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
    group.add_argument("--keep-parameters", action="store_true",
                       help="the final model into --output, too: see export")  # fmt: skip
    group.add_argument("--workload", metavar="FILE", help="with --virtual, what ranks compute and "
                       "send, for other simulators: .goal (LogGOPSim) or .et (Chakra)")  # fmt: skip
    checkpoint.add_arguments(parser)
    group.add_argument("--blas-threads", metavar="N", help="BLAS threads of each rank [1]")
    group.add_argument("--format", choices=tables.FORMATS, default="table", help="of the summary")


def run(arguments: argparse.Namespace) -> int:
    """Run one experiment; exit code 0, 2 for a user's mistake, 3 where a loss was not finite."""
    from mpisgd.mpi import session
    from mpisgd.mpi.announced import check_alone

    experiment = from_arguments(arguments)
    ranks = None
    if arguments.virtual is not None:
        ranks = whole(1, 8192).read("--virtual", arguments.virtual)
    saving = checkpoint.saving(
        arguments.output, arguments.checkpoint, arguments.checkpoint_every, arguments.resume,
        arguments.checkpoint_per_rank, arguments.overwrite,
    )  # fmt: skip
    if arguments.keep_parameters and arguments.output is None:
        raise UsageError("--keep-parameters", None, "needs --output, to lie there")
    experiment.check_world(ranks is not None)
    if ranks is None:
        from mpisgd.drivers.mpi import MpiWorld

        comm = session.world()
        work = partial(_run, MpiWorld(comm), experiment, arguments, saving)
        return session.guarded(comm, work, experiment.deadline_s)
    check_alone("--virtual", ranks)
    from mpisgd.drivers.virtual import VirtualWorld

    return _run(VirtualWorld(ranks), experiment, arguments, saving)


def _run(
    world: "World", experiment: Experiment, arguments: argparse.Namespace, saving: Saving | None
) -> int:
    from mpisgd.drivers.launch import Target, launch

    target = Target(
        arguments.output, arguments.overwrite, parameters=arguments.keep_parameters,
        workload=arguments.workload,
    )  # fmt: skip
    console = None if world.rank else Terminal(arguments, world.virtual, saving)
    outcome = launch(experiment, world, target, saving, console).outcome
    if outcome is None:
        return 0
    if world.rank == 0:
        _tell(outcome, arguments)
    world.leave(outcome)
    return outcome.code


def _tell(outcome: "Outcome", arguments: argparse.Namespace) -> None:
    """How the run ended, on standard output what it came to."""
    from mpisgd.mpi.session import NOT_FINITE

    if outcome.code == 0 or outcome.code > 128:
        report(outcome, arguments.format)
    if outcome.code > 128:
        tell_stopped(outcome.step, arguments.output)
    elif outcome.reason is not None:
        behind = "; stopped before the next merge" if outcome.code == NOT_FINITE else ""
        print(f"mpisgd: {outcome.reason}{behind}", file=sys.stderr, flush=True)


class Terminal:
    """What a user at a terminal is told meanwhile; see launch.Console."""

    def __init__(self, arguments: argparse.Namespace, virtual: bool, saving: Saving | None):
        self.arguments, self.virtual, self.saving = arguments, virtual, saving

    def notes(self, lines: list[str]) -> None:
        for line in lines:
            print(f"mpisgd: {line}", file=sys.stderr)
        sys.stderr.flush()

    def begin(self, experiment: Experiment, dataset: Any) -> None:
        tell_assumptions(experiment, dataset, self.arguments, None if self.virtual else 0)
        if self.saving is not None and self.saving.on_the_way:
            same = "" if self.saving.resume else ", with --resume auto,"
            told = f"should the run be killed, the same line{same} goes on from the last of them"
            self.notes([f"note: checkpoints go to {self.saving.place}: {told}"])

    def chosen(self, experiment: Experiment) -> None:
        tell_chosen(experiment)

    def tuned(self, experiment: Experiment) -> None:
        tell_tuned(experiment)

    def bar(self, experiment: Experiment, done: int) -> "Bar":
        each = experiment.step_workers if experiment.algorithm in POLICIES else 1
        return progress.shown(experiment.algorithm, experiment.steps or 1, each, done)


def report(outcome: "Outcome", form: str) -> None:
    """Print the summary on standard output."""
    experiment, last = outcome.experiment, outcome.evaluation
    time_s, computed = last.get("time_s", 0.0), last.get("samples_computed")
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
    kind = "servers" if experiment.algorithm in POLICIES else "averaging"
    print(tables.render(SUMMARIES[kind], [row], form))
    sys.stdout.flush()
