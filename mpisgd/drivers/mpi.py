"""A whole run of real ranks: sites, signals, records, from the first message to the last."""

import json
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from allreduce.arrays import HOST
from allreduce.collectives import Maker, carrier
from allreduce.communicator import Communicator, abort
from allreduce.errors import Stalled
from allreduce.pairs import Pairs, meeting
from mpisgd.algorithms.policies import POLICIES
from mpisgd.data import Dataset
from mpisgd.drivers.job import Job, Outcome
from mpisgd.experiment import delays
from mpisgd.experiment.building import Place, algorithm_run, build_worker
from mpisgd.experiment.experiment import Experiment
from mpisgd.experiment.stragglers import step_timer
from mpisgd.models.statistics import POOLED, described
from mpisgd.mpi import aware, cores, devices, session
from mpisgd.mpi.aware import Awareness
from mpisgd.store.environment import environment
from mpisgd.store.recording import Store
from mpisgd.store.weights import Weights
from mpisgd.training.buckets import exposed
from mpisgd.training.parameters import digest
from mpisgd.training.recorder import Recorder
from mpisgd.training.worker import Worker
from mpisgd.tuning import auto
from mpisgd.values import progress
from mpisgd.values.errors import NotFinite, UsageError
from mpisgd.values.processes import PATIENCE
from mpisgd.values.schedules import maker
from mpisgd.worlds.mpi import CommunicatorSite

if TYPE_CHECKING:  # a run that saves nothing does without: memory counts, times ranks
    from mpisgd.checkpoint.options import Saving
    from mpisgd.checkpoint.resume import Choice
    from mpisgd.drivers.mpi_served import Served
    from mpisgd.values.progress import Bar


def train(
    comm: Communicator,
    job: Job,
    nodes: Sequence[int] | None = None,
    cuda_aware: bool = False,
) -> Outcome:
    """Train on `comm`, all ranks with the same experiment. `nodes`: of each rank [all on one].
    `cuda_aware`: whether MPI may have device memory."""
    store, deadline = job.store, job.experiment.deadline_s
    signals = session.Signals(comm, lambda: run.ask_to_stop(), lambda: run.busy())
    run = begun(comm, job, nodes or [0] * comm.Get_size(), signals, cuda_aware)
    failure = ""
    with signals, closing(job.bar or _Quiet()):
        with closing(run):
            try:
                run.run()
            except NotFinite as error:
                failure = str(error)
            lost = run.finish()
        word = json.dumps([failure, run.stopping, int(signals.received or 0)])
        words = [word] if lost else session.texts(comm, word, PATIENCE * deadline)
        code, reason = _ended([json.loads(text) for text in words], run.step)
        if store is not None and reason:
            store.close(reason=reason)
        elif store is not None:
            kept = run.weights if job.keep_parameters else None
            store.complete({**run.evaluation(), **run.summary()}, kept)
    return Outcome(job.experiment, code, reason, run.step, run.evaluation(), run.weights,
                   lost=tuple(sorted(lost)))  # fmt: skip


def _ended(told: list[tuple[str, bool, int]], step: int) -> tuple[int, str | None]:
    """The exit code, and the reason for one that is not 0, from what each rank tells: what was not
    finite, whether it has stopped, and by which signal."""
    if failure := next((failure for failure, *_ in told if failure), None):
        return session.NOT_FINITE, failure
    if not told[0][1]:
        return 0, None
    number = max(number for *_, number in told) or int(signal.SIGTERM)
    return 128 + number, f"stopped by signal {number} after step {step}"


def begun(
    comm: Communicator,
    job: Job,
    nodes: Sequence[int],
    signals: session.Signals,
    cuda_aware: bool,
) -> "Averaging | Served":
    """This rank of that run, at its beginning or where it goes on."""
    if job.experiment.algorithm not in POLICIES:
        return Averaging(comm, job, nodes, signals, cuda_aware)
    from mpisgd.drivers.mpi_served import Served

    return Served(comm, job, signals)


def _maker(
    experiment: Experiment, size: int, nodes: Sequence[int] | None, cuda_aware: bool
) -> Maker:
    """What makes the averages."""
    return partial(maker(experiment.allreduce, size, nodes), cuda_aware=cuda_aware)


class Averaging:
    """A rank that trains, and averages with all others."""

    def __init__(
        self,
        comm: Communicator,
        job: Job,
        nodes: Sequence[int],
        signals: session.Signals,
        cuda_aware: bool,
    ):
        experiment = job.experiment
        self.job, self.signals = job, signals
        self.recorder = Recorder(
            comm, job.store, experiment.config(), deadline=experiment.deadline_s,
            on_step=None if job.bar is None else job.bar.update,
            meta=None if job.resumed is None else job.resumed.meta,
        )  # fmt: skip
        self.site = CommunicatorSite(
            comm, _maker(experiment, comm.Get_size(), nodes, cuda_aware), self.recorder,
            chunks=experiment.chunks, deadline=experiment.deadline_s,
            step_timer=step_timer(experiment.straggler, experiment.step_seconds, experiment.seed),
            thread_comm=session.thread_comm(comm) if experiment.progress == "thread" else None,
            keep=None if job.checkpointing is None else self._save,
            during=experiment.evaluate == "during", pairs=partial(Pairs, cuda_aware=cuda_aware),
        )  # fmt: skip
        rests, resumed = None, job.resumed
        if job.checkpointing is not None:
            from mpisgd.checkpoint.ranks import Gathering

            rests = job.checkpointing.rests(resumed.state["site"]["time_s"] if resumed else 0.0)
            self._gather = Gathering(
                comm, job.checkpointing, self.recorder, job.store, experiment.deadline_s
            )
        self.worker = build_worker(experiment, job.dataset, self.site, rests)
        if resumed is not None:
            self.site.restore(resumed.state["site"])
            self.worker.restore(resumed.state["worker"])

    @property
    def step(self) -> int:
        return self.worker.step

    @property
    def stopping(self) -> bool:
        return self.worker.stopping

    @property
    def weights(self) -> Weights | None:
        mean = self.site.evaluated
        return None if mean is None else Weights(mean.to(HOST).views, self.site.statistics)

    def ask_to_stop(self) -> None:
        self.site.asked_to_stop = True

    def busy(self) -> bool:
        """Whether it may not hear of a stop for long, and will in the end."""
        return self.site.evaluating

    def run(self) -> None:
        """From equal parameters, from each rank's own, or those of a checkpoint."""
        if self.job.resumed is None and self.worker.equal:
            self.site.broadcast(self.worker.parameters.buffer)
        self.site.begin()
        try:
            self._train()
        except Stalled as stall:
            raise Stalled(f"{stall}, at step {self.step}") from None

    def _train(self) -> None:
        """Evaluate what was kept, too, whatever ends the training."""
        failure = None
        try:
            _exhaust(algorithm_run(self.job.experiment, self.worker))
        except NotFinite as error:  # on every rank, in the same step
            failure = error
        self.site.drain()
        with closing(self._told()) as bar:
            _exhaust(self.site.evaluate_kept(self.worker, bar.update))
        if failure is not None:
            raise failure

    def _told(self) -> "Bar":
        """Of each evaluation after training."""
        if self.job.bar is None:
            return _Quiet()
        self.job.bar.close()
        return progress.shown("evaluating", max(1, self.site.kept), unit="evaluation")

    def finish(self) -> set[int]:
        """Hand over the last rows; ranks that went silent."""
        self.recorder.finish()
        return set()

    def evaluation(self) -> Mapping[str, Any]:
        return self.recorder.last_evaluation

    def summary(self) -> Mapping[str, Any]:
        site, model = self.site, self.worker.model
        spent = {"final_average_s": site.final_average_s, "saving_s": site.saving_s}
        stated = described(model, POOLED) | exposed(
            self.worker.parameters, self.job.experiment.bucket_bytes
        )
        own = {} if site.evaluated is None else {"parameters_sha256": digest(site.evaluated.flat)}
        return spent | stated | own

    def close(self) -> None:
        self.site.close()

    def _save(self, worker: Worker) -> None:
        if worker.stopping:
            self.signals.met()
        self.recorder.rows.hand_over()
        shipped = self.site.all_values(self.recorder.rows.shipped)
        self._gather(worker.step, {"worker": worker.state(), "site": self.site.state()}, shipped)


class MpiWorld:
    """The ranks of a communicator, as `launch` sees a world."""

    virtual = False

    def __init__(self, comm: Communicator):
        self.comm, self.rank, self.size = comm, comm.Get_rank(), comm.Get_size()
        self.places = cores.Places([])
        self._times: delays.Times | None = None
        self._module: Any = np
        self._devices: list[str] = []
        self._awareness = Awareness(False, "nothing lies on a device")

    def check(self, experiment: Experiment) -> None:
        """Which device this rank works on, if any."""
        self._experiment = experiment
        self._module = devices.module_of(experiment.backend, experiment.device)

    def agree(self, error: UsageError | None, deadline: float) -> None:
        """Raise on every rank if any has met a user's mistake."""
        session.agree(self.comm, error, deadline)

    def agree_on(self, what: str, value: str, deadline: float) -> None:
        """UsageError on every rank unless all have the same `value`."""
        session.agree_on(self.comm, what, value, deadline)

    def choose(
        self, saving: "Saving", experiment: Experiment, dataset: Dataset, output: str | None
    ) -> "tuple[Choice, Mapping[str, Any]]":
        """What to go on from, and what checkpoints say of the run."""
        from mpisgd.checkpoint.ranks import choose_together

        return choose_together(self.comm, saving, experiment, dataset, output)

    def join(self, deadline: float) -> None:
        """Every rank says where it is, and on which device. UsageError where what shall carry the
        averages cannot."""
        self.places = cores.places(self.comm, deadline)
        if self._module is not np:
            own = f"{devices.host()} {self._module.cuda.Device().pci_bus_id}"
            self._devices = session.texts(self.comm, own, deadline)
            chosen, name = self._experiment.cuda_aware, self._experiment.allreduce
            self._awareness = aware.decide(chosen, self.comm, self._module, deadline)
            refusal = carrier(name).refusal
            if why := refusal(self.comm, name, self._module, self._awareness.aware):
                raise UsageError("--allreduce", name, why)

    def chosen(self, experiment: Experiment, dataset: Dataset) -> Experiment:
        """`--allreduce auto` by a table, or by the simulator on a network: one that is named, or
        one that is measured now."""
        from mpisgd.predict.links import quick

        parameters = build_worker(experiment, dataset, Place(self.rank, self.size)).parameters
        links = partial(quick, self.comm, self.places.hosts, experiment.deadline_s)
        return auto.settled(experiment, parameters, self.places.nodes, False, links)

    @property
    def notes(self) -> list[str]:
        """What a user is told of where the ranks are."""
        return devices.shared(self._devices)

    def tuned(self, experiment: Experiment, dataset: Dataset) -> Experiment:
        """`--delay auto` from what an all-reduce of these parameters takes."""
        probe = build_worker(experiment, dataset, Place(self.rank, self.size))
        cuda_aware = self._awareness.aware
        allreduce = _maker(experiment, self.size, self.places.nodes, cuda_aware)
        if experiment.algorithm == delays.PAIRED:
            allreduce = partial(meeting, cuda_aware=cuda_aware)
        self._times = delays.measure(self.comm, allreduce, experiment, probe)
        return delays.tuned(experiment, self._times)

    def environment(self, experiment: Experiment) -> dict[str, Any]:
        """With what the run is made."""
        from allreduce.native import described

        return environment() | {
            **described(),
            **self.places.described(),
            "processes": [place.process for place in self.places.ranks],
            **devices.facts(self._module),
            **(self._awareness.facts() if self._devices else {}),
            **({"device_of_each_rank": self._devices} if self._devices else {}),
            "recorded_by": "rank 0",
            "delay_from": None if self._times is None else self._times._asdict(),
        }

    def writer(self, path: str, deadline: float, **options: Any) -> Store:
        """A result file, written by another process."""
        from mpisgd.store.remote import RemoteWriter

        return RemoteWriter(path, deadline=deadline, **options)

    def train(self, job: Job) -> Outcome:
        """See `train`."""
        return train(self.comm, job, self.places.nodes, self._awareness.aware)

    def leave(self, outcome: Outcome) -> None:
        """Rank 0 ends the job if ranks are gone: MPI_Finalize would wait for them."""
        if outcome.lost and self.rank == 0:
            ranks = ", ".join(map(str, outcome.lost))
            abort(self.comm, f"mpisgd: done, but without rank {ranks}, which went silent", 0)


class _Quiet:
    """No bar is shown."""

    def update(self) -> None: ...

    def close(self) -> None: ...


def _exhaust(steps: Iterator[None]) -> None:
    for _ in steps:
        raise AssertionError("a communicator site never yields")
