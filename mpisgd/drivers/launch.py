"""From an experiment to a run: what is checked, agreed on, locked and opened before it begins."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from mpisgd.algorithms.policies import POLICIES
from mpisgd.data import Dataset
from mpisgd.drivers import workload
from mpisgd.drivers.job import Job, Outcome
from mpisgd.experiment.building import Place, build_worker, load, resolve_for
from mpisgd.experiment.experiment import Experiment
from mpisgd.experiment.stragglers import step_timer
from mpisgd.store.lock import held
from mpisgd.store.memory import MemoryStore
from mpisgd.store.recording import Store
from mpisgd.store.target import OPTION, check_target
from mpisgd.tuning import auto
from mpisgd.values.errors import UsageError
from mpisgd.values.schedules import AUTO

if TYPE_CHECKING:  # a run that saves nothing does without: memory counts, times ranks
    from mpisgd.checkpoint.options import Saving
    from mpisgd.checkpoint.writer import Checkpointing
    from mpisgd.drivers.mpi import MpiWorld
    from mpisgd.drivers.virtual import VirtualWorld
    from mpisgd.values.progress import Bar

    World = MpiWorld | VirtualWorld


class Target(NamedTuple):
    """Where results go: a file, else memory if `keep`, else nowhere. `parameters`: those, too;
    `workload`: a file for what virtual ranks compute and send."""

    path: str | None = None
    overwrite: bool = False
    keep: bool = False
    parameters: bool = False
    workload: str | None = None


class Console(Protocol):
    """What is said to a user meanwhile, on rank 0."""

    def notes(self, lines: list[str]) -> None:
        """What was chosen."""

    def begin(self, experiment: Experiment, dataset: Dataset) -> None:
        """What the run takes for granted."""

    def chosen(self, experiment: Experiment) -> None:
        """`--allreduce auto` is settled."""

    def tuned(self, experiment: Experiment) -> None:
        """`--delay auto` is settled."""

    def bar(self, experiment: Experiment, done: int) -> "Bar | None":
        """What tells how far the run is; `done`: steps before."""


class Launched(NamedTuple):
    """`outcome`: None where there was nothing left to do; `store`: on rank 0, if there is one."""

    outcome: Outcome | None
    store: Store | None = None


def launch(
    experiment: Experiment,
    world: "World",
    target: Target,
    saving: "Saving | None" = None,
    console: Console | None = None,
    dataset: Dataset | None = None,
    until: Callable[[Mapping[str, Any]], bool] | None = None,
) -> Launched:
    """Run `experiment` on `world`. Raises UsageError, on every rank, before anything is computed.

    `console`: on rank 0, if anybody is there; `dataset`: instead of loading the experiment's;
    `until`: as of Job.
    """
    deadline = experiment.deadline_s
    experiment, dataset = _checked(experiment, world, target, saving, dataset)
    with ExitStack() as locks:
        checkpointing, choice = None, None
        if saving is not None:
            choice, identity = world.choose(saving, experiment, dataset, target.path)
            experiment = choice.experiment
        if choice is None or not choice.complete:
            _together(world, deadline, lambda: _lock(locks, target, saving))
        if choice is not None and console is not None:
            console.notes(choice.notes)
        if choice is not None and choice.complete:
            return Launched(None)
        if console is not None:
            console.begin(experiment, dataset)
        world.join(deadline)
        if console is not None:
            console.notes(world.notes)
        if experiment.allreduce == AUTO and averages(experiment):
            experiment = world.chosen(experiment, dataset)
            world.agree_on("an --allreduce that they chose", repr(experiment), deadline)
            if console is not None:
                console.chosen(experiment)
        if experiment.delay == "auto":
            experiment = world.tuned(experiment, dataset)
            if console is not None:
                console.tuned(experiment)
        if saving is not None and choice is not None:
            from mpisgd.checkpoint.writer import Checkpointing

            mine = {**identity, "config": experiment.config()}
            checkpointing = Checkpointing(saving, mine, choice.resumed)
        store = _together(
            world, deadline, lambda: _open(world, experiment, dataset, target, checkpointing)
        )
        resumed = None if checkpointing is None else checkpointing.resumed
        done = 0 if resumed is None else resumed.step
        bar = None if console is None else console.bar(experiment, done)
        told = None
        if target.workload is not None:
            told = workload.begun(experiment)
        job = Job(experiment, dataset, store, bar, checkpointing, until, target.parameters, told)
        with np.errstate(over="ignore", invalid="ignore"):  # what comes of it is told in one line
            launched = Launched(world.train(job), store)
        if target.workload is not None and told is not None:
            workload.write(target.workload, told)
        return launched


def averages(experiment: Experiment) -> bool:
    """Whether all ranks train, and none is a server."""
    return experiment.algorithm not in POLICIES


def _checked(
    experiment: Experiment,
    world: "World",
    target: Target,
    saving: "Saving | None",
    dataset: Dataset | None,
) -> tuple[Experiment, Dataset]:
    """What the run needs can be made: the experiment with all that follows, and its data."""
    error, given, deadline = None, experiment, experiment.deadline_s
    try:
        experiment.check_world(world.virtual)
        world.check(experiment)
        dataset = dataset or load(experiment)
        if target.path is not None and world.rank == 0:
            resumes = saving is not None and saving.resume is not None
            check_target(target.path, target.overwrite, resume=resumes)
        if target.workload is not None:
            fixed = averages(experiment) and not experiment.partial
            workload.check(target.workload, target, saving, world, fixed)
        if saving is not None and given.pull not in (None, "answer", "sparse"):
            raise UsageError("--pull", given.pull, "only answer or sparse in a run that is saved")
        experiment = resolve_for(given, dataset, world.size)
        _try(experiment, dataset, world.rank)
    except UsageError as mistake:
        error = mistake
    world.agree(error, deadline)
    assert dataset is not None
    what = "options" if experiment.plugin_sha256 is None else "options or contents of plug-ins"
    world.agree_on(what, repr((experiment, saving)), deadline)
    return experiment, dataset


def _try(experiment: Experiment, dataset: Dataset, rank: int) -> None:
    """Build what the rank will need, to find a user's mistakes before any message."""
    step_timer(experiment.straggler, experiment.step_seconds, experiment.seed)
    if experiment.allreduce == AUTO:
        auto.read(experiment.tuning)
    if averages(experiment):
        build_worker(experiment, dataset, Place(rank, experiment.ranks))
    else:
        from mpisgd.servers.roles import Builder

        Builder(experiment, dataset).server(None, 0)


def _together(world: "World", deadline: float, work: Callable[[], Any]) -> Any:
    """Rank 0 does `work`, whose result it gets; a user's mistake is raised on every rank."""
    error, result = None, None
    if world.rank == 0:
        try:
            result = work()
        except UsageError as mistake:  # another job may have taken a name since it was checked
            error = mistake
    world.agree(error, deadline)
    return result


def _lock(locks: ExitStack, target: Target, saving: "Saving | None") -> None:
    """Until `locks` are closed nobody else writes there. UsageError if another run does."""
    if target.path is not None:
        locks.enter_context(held(Path(target.path), OPTION))
    if saving is not None:
        locks.enter_context(held(saving.place, saving.option))


def _open(
    world: "World",
    experiment: Experiment,
    dataset: Dataset,
    target: Target,
    checkpointing: "Checkpointing | None",
) -> Store | None:
    if target.path is None and not target.keep:
        return None
    told: dict[str, Any] = {"config": experiment.config(), "ranks": experiment.ranks}
    told["environment"] = world.environment(experiment) | {"training_samples": dataset.samples}
    if target.path is None:
        return MemoryStore(**told, virtual=world.virtual)
    options: dict[str, Any] = {"overwrite": target.overwrite}
    if checkpointing is not None:
        options = checkpointing.store_options(target.overwrite)
        checkpointing.before_rows_are_cut()
    store = world.writer(target.path, experiment.deadline_s, kind="train", **told, **options)
    if checkpointing is not None and checkpointing.resumed is not None:
        store.restart(**checkpointing.resumed.restart())
        store.flush()
    return store
