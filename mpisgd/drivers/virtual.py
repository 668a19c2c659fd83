"""A whole run of virtual ranks in this process: the same generators, driven in virtual time."""

import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from allreduce.compress import priced
from allreduce.errors import Stalled
from allreduce.pairs import across, matching
from allreduce.simulate import simulate
from allreduce.simulate.workload import Workload
from mpisgd.algorithms.policies import POLICIES
from mpisgd.checkpoint.rests import RUN, Rests
from mpisgd.data import Dataset
from mpisgd.drivers.job import Job, Outcome
from mpisgd.drivers.rows import Recording
from mpisgd.experiment.building import Place, algorithm_run, build_worker
from mpisgd.experiment.delays import PAIRED, Times, parameters_wire, tuned
from mpisgd.experiment.experiment import Experiment
from mpisgd.experiment.stragglers import told_deaths
from mpisgd.experiment.virtual_time import (
    VIRTUAL_STEP_S,
    virtual_network,
    virtual_nodes,
    virtual_schedule,
    virtual_steps,
)
from mpisgd.models.statistics import POOLED, described, moments, pooled
from mpisgd.mpi.session import GRACE, LEFT_EARLY, NOT_FINITE
from mpisgd.store.environment import environment
from mpisgd.store.recording import Store
from mpisgd.store.weights import Weights
from mpisgd.training.buckets import exposed
from mpisgd.training.evaluation import means
from mpisgd.training.parameters import digest
from mpisgd.training.worker import Worker
from mpisgd.tuning import auto
from mpisgd.values.errors import NotFinite, UsageError
from mpisgd.values.processes import handle
from mpisgd.worlds.step import Recorder
from mpisgd.worlds.virtual import Clock

if TYPE_CHECKING:
    from mpisgd.checkpoint.options import Saving
    from mpisgd.checkpoint.resume import Choice
    from mpisgd.drivers.virtual_served import Served


SAVING = 20.0  # s, instead of GRACE, where the stop is saved: a merge may be many steps away


def train(job: Job) -> Outcome:
    """Train `experiment.ranks` virtual ranks."""
    store, enough = job.store, job.until
    recording = Recording(store, job.bar, job.experiment.ranks, job.resumed)
    run = begun(job, recording)
    if enough is not None:
        recording.watch(lambda row: run.world.ask_to_stop() if enough(row) else None)
    code, reason, patience = 0, None, GRACE if job.checkpointing is None else SAVING
    asked = StopSignals(run.world.ask_to_stop, lambda: run.first.stopping, patience)
    try:
        with asked:
            run.run()
        if run.first.stopping and asked.number:
            code = 128 + asked.number
            reason = f"stopped by signal {asked.number} after step {run.first.step}"
    except NotFinite as failure:
        code, reason = NOT_FINITE, str(failure)
    except Stalled as stall:
        code = LEFT_EARLY
        reason = f"{stall}{told_deaths(job.experiment.straggler, run.begun)}"
    except BaseException as failure:
        reason = repr(failure)
        if not asked.late:
            raise
        code, reason = 128 + asked.number, f"stopped by signal {asked.number} within a step"
    finally:
        recording.close(reason)
    if store is not None and not reason:
        kept = run.weights if job.keep_parameters else None
        store.complete({**recording.last, **run.summary()}, kept)
    step = min(recording.reported) if asked.late else run.first.step
    return Outcome(
        job.experiment, code, reason, step, recording.last, run.weights, run.evaluate,
        tuple(sorted(run.lost)),
    )  # fmt: skip


def begun(job: Job, recording: Recording) -> "Averaging | Served":
    """All ranks of that run, at its beginning or where it goes on."""
    if job.experiment.algorithm not in POLICIES:
        return Averaging(job, recording)
    from mpisgd.drivers.virtual_served import Served

    return Served(job, recording)


class Averaging:
    """Every rank trains, and averages with all others."""

    lost = ()  # without one of them nobody ends

    def __init__(self, job: Job, recording: Recording):
        experiment, dataset, checkpointing = job.experiment, job.dataset, job.checkpointing
        self.experiment, self.recording = experiment, recording
        recorders = recording.recorders(experiment.config())
        resumed = job.resumed
        state = {"time_s": 0.0} if resumed is None else resumed.section(RUN)
        keep: Callable[[list[Worker]], object] | None = None
        every: list[Rests | None] = []
        if checkpointing is not None:
            self._write, keep = checkpointing.checkpoint_writer().write, self._save
            every = [checkpointing.rests(state["time_s"]) for _ in recorders]
        self.world, self.workers = world(
            experiment, dataset, recorders, None, keep, every, job.workload
        )  # fmt: skip
        self.first = self.workers[0]
        if resumed is not None:
            self.world.restore(state)
            for worker in self.workers:
                worker.restore(resumed.section(str(worker.rank))["worker"])

    def run(self) -> None:
        """To the end. Raises NotFinite and Stalled."""
        self.world.run([algorithm_run(self.experiment, worker) for worker in self.workers])

    @property
    def begun(self) -> list[int]:
        """The last step that each of those who compute has begun."""
        return [worker.step for worker in self.workers]

    def summary(self) -> dict[str, Any]:
        """What a result file says of the whole run."""
        first, mean = self.first, self.world.evaluated
        last_bucket = exposed(first.parameters, self.experiment.bucket_bytes)
        stated = described(first.model, POOLED) | last_bucket
        return stated | ({} if mean is None else {"parameters_sha256": digest(mean.flat)})

    @property
    def weights(self) -> Weights | None:
        """Those of the last evaluation."""
        mean = self.world.evaluated
        return None if mean is None else Weights(mean.views, self.world.statistics)

    def evaluate(self, dataset: Dataset) -> tuple[float, float]:
        """Their loss and accuracy on the test samples of another data set."""
        assert self.world.evaluated is not None, "nothing was evaluated"
        model = self.first.model
        with pooled(model, np.sum([moments(worker.model) for worker in self.workers], axis=0)):
            return means(model, dataset, self.world.evaluated)

    def _save(self, workers: list[Worker]) -> None:
        self.recording.flush()
        states = ((str(worker.rank), {"worker": worker.state()}) for worker in workers)
        meta = {"step": workers[0].step, **self.recording.told()}
        self._write(meta, chain([(RUN, self.world.state())], states))


def world(
    experiment: Experiment,
    dataset: Dataset,
    recorders: Sequence[Recorder],
    step_time: Callable[[int, int], float] | None = None,
    keep: Callable[[list[Worker]], object] | None = None,
    rests: Sequence[Rests | None] = (),
    workload: Workload | None = None,
) -> tuple[Clock, list[Worker]]:
    """The clock and its workers, nothing begun; `experiment` is resolved, a recorder a rank."""
    cluster = virtual_network(experiment)
    clock = Clock(
        cluster, virtual_schedule(experiment, cluster), recorders,
        step_time or virtual_steps(experiment), chunks=experiment.chunks, seed=experiment.seed,
        keep=keep, workload=workload,
    )  # fmt: skip
    pairs = zip(clock.sites, rests or [None] * clock.size, strict=True)
    return clock, [build_worker(experiment, dataset, site, its) for site, its in pairs]


class VirtualWorld:
    """Virtual ranks, as `launch` sees a world."""

    virtual, rank = True, 0

    def __init__(self, ranks: int):
        self.size = ranks

    def check(self, experiment: Experiment) -> None:
        """UsageError for a network that is none."""
        virtual_network(experiment)

    @property
    def notes(self) -> list[str]:
        """Nothing."""
        return []

    def join(self, deadline: float) -> None:
        """There is nobody else."""

    def agree(self, error: UsageError | None, deadline: float) -> None:
        """There is nobody else."""
        if error is not None:
            raise error

    def agree_on(self, what: str, value: str, deadline: float) -> None:
        """There is nobody else."""

    def choose(
        self, saving: "Saving", experiment: Experiment, dataset: Dataset, output: str | None
    ) -> "tuple[Choice, Mapping[str, Any]]":
        """What to go on from, and what checkpoints say of the run."""
        from mpisgd.checkpoint.fitting import misfit
        from mpisgd.checkpoint.identity import identity
        from mpisgd.checkpoint.resume import choose

        saving.check()
        mine = identity(experiment, dataset, virtual=True)
        fits = partial(misfit, experiment, dataset, True)
        return choose(saving, experiment, mine, output, misfit=fits), mine

    def chosen(self, experiment: Experiment, dataset: Dataset) -> Experiment:
        """`--allreduce auto` among the schedules: by a file that is named, or on --network."""
        parameters = build_worker(experiment, dataset, Place(0, self.size)).parameters
        cluster = virtual_network(experiment)
        nodes = virtual_nodes(experiment, cluster)
        return auto.settled(experiment, parameters, nodes, True, lambda: cluster)

    def tuned(self, experiment: Experiment, dataset: Dataset) -> Experiment:
        """`--delay auto` from what the simulator says of an all-reduce of these parameters."""
        place, cluster = Place(0, experiment.ranks), virtual_network(experiment)
        parameters = build_worker(experiment, dataset, place).parameters
        schedule, carried = priced(
            parameters_wire(experiment, parameters),
            matching(across(self.size)) if experiment.algorithm == PAIRED
            else virtual_schedule(experiment, cluster),
            parameters.buffer.size, parameters.buffer.itemsize,
        )  # fmt: skip
        ends = simulate(schedule, network=cluster, chunks=experiment.chunks, **carried._asdict())
        step_s = experiment.step_seconds or VIRTUAL_STEP_S
        return tuned(experiment, Times(step_s, float(ends.max())))

    def environment(self, experiment: Experiment) -> dict[str, Any]:
        """With what the run is made."""
        own = environment()
        return own | {"hosts": [own["host"]], "mpi_library": "none: virtual"}

    def writer(self, path: str, deadline: float, **options: Any) -> Store:
        """A result file."""
        from mpisgd.store.writer import Writer

        return Writer(path, virtual=True, **options)

    def train(self, job: Job) -> Outcome:
        """See `train`."""
        return train(job)

    def leave(self, outcome: Outcome) -> None:
        """Nobody is waited for; those who were not there at the end are named."""
        if outcome.lost:
            ranks = ", ".join(map(str, outcome.lost))
            print(f"mpisgd: done, but without rank {ranks}, which died", file=sys.stderr)


class StopSignals:
    """SIGTERM, SIGINT and SIGUSR1 ask to stop at the next merge; a second one ends the process.

    `ask` tells the ranks; if they have not `heard` it `patience` seconds later, since their steps
    are long, the run ends where it is: `late`.
    """

    def __init__(self, ask: Callable[[], object], heard: Callable[[], bool], patience: float):
        self.ask, self.heard, self.number, self.late = ask, heard, 0, False
        self._timer = threading.Timer(patience, self._give_up)
        self._timer.daemon = True
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        self._before = handle((signal.SIGTERM, signal.SIGINT, signal.SIGUSR1), self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._timer.cancel()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.number:
            raise KeyboardInterrupt
        self.number = number
        self.ask()
        self._timer.start()

    def _give_up(self) -> None:
        if not self.heard():
            self.late = True
            signal.pthread_kill(threading.main_thread().ident or 0, self.number)
