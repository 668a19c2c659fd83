"""A training run of virtual ranks: the same generators, driven by a clock in this process."""

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from itertools import chain
from types import FrameType
from typing import Any

import numpy as np

from allreduce.algorithms import build
from allreduce.errors import AllreduceError, Stalled
from allreduce.network import Network, network
from allreduce.schedule import Schedule
from allreduce.simulate import simulate
from mpisgd.checkpoint.rests import RUN
from mpisgd.checkpoint.writer import Checkpointing
from mpisgd.commands.train import progress_bar, report
from mpisgd.data import Dataset
from mpisgd.experiment.building import VIRTUAL_STEP_S, Place, algorithm_run, build_worker
from mpisgd.experiment.delays import Times, tuned
from mpisgd.experiment.experiment import Experiment
from mpisgd.experiment.remarks import tell_stopped, tell_tuned
from mpisgd.experiment.stragglers import step_timer
from mpisgd.models.statistics import POOLED, described
from mpisgd.mpi.session import LEFT_EARLY, NOT_FINITE
from mpisgd.store.environment import environment
from mpisgd.store.recording import packed, store_rows
from mpisgd.training.buckets import exposed
from mpisgd.training.evaluation import row
from mpisgd.training.worker import NotFinite, Worker
from mpisgd.values.errors import UsageError
from mpisgd.values.processes import handle
from mpisgd.worlds.mpi import Recorder
from mpisgd.worlds.virtual import Clock

ROWS = 64  # rows of one rank handed to the store at once


def train(
    experiment: Experiment,
    dataset: Dataset,
    arguments: argparse.Namespace,
    checkpointing: Checkpointing | None = None,
) -> int:
    """Train `experiment.ranks` virtual ranks; the exit code. `experiment` is resolved."""
    if experiment.delay == "auto":
        experiment = _tuned(experiment, dataset)
        tell_tuned(experiment)
    store = open_store(experiment, arguments, checkpointing)
    bar = progress_bar(experiment, checkpointing)
    recorders = [
        VirtualRecorder(rank, store, experiment.config(), bar if rank == 0 else None)
        for rank in range(experiment.ranks)
    ]
    clock, workers = world(experiment, dataset, recorders)
    if checkpointing is not None:
        keep(checkpointing, experiment, clock, workers, recorders, store)
    try:
        with StopSignals(clock.ask_to_stop) as asked:
            clock.run([algorithm_run(experiment, worker) for worker in workers])
    except NotFinite as failure:
        finish(recorders, store)
        if store is not None:
            store.close(reason=str(failure))
        print(f"mpisgd: {failure}; stopped before the next merge", file=sys.stderr)
        return NOT_FINITE
    except Stalled as stall:
        finish(recorders, store)
        if store is not None:
            store.close(reason=str(stall))
        print(f"mpisgd: {stall}", file=sys.stderr)
        return LEFT_EARLY
    except BaseException as failure:
        finish(recorders, store)
        if store is not None:
            store.close(reason=repr(failure))
        raise
    finally:
        if bar is not None:
            bar.close()
    finish(recorders, store)
    last = recorders[0].last_evaluation
    if workers[0].stopping:
        if store is not None:
            store.close(reason=f"stopped by signal {asked.number} after step {workers[0].step}")
        tell_stopped(workers[0].step, arguments.output)
        return 128 + asked.number
    if store is not None:
        own = exposed(workers[0].parameters, experiment.bucket_bytes)
        store.complete({**last, **described(workers[0].model, POOLED), **own})
    report(experiment, last, arguments)
    return 0


def keep(
    checkpointing: Checkpointing,
    experiment: Experiment,
    clock: Clock,
    workers: Sequence[Worker],
    recorders: "list[VirtualRecorder]",
    store: Any,
) -> None:
    """Let the run be saved, and go on from where it was. Nothing has begun."""
    identity = {**checkpointing.identity, "config": experiment.config()}
    checkpoint_writer, resumed = (
        checkpointing._replace(identity=identity).checkpoint_writer(),
        checkpointing.resumed,
    )
    if resumed is not None:
        clock.restore(resumed.section(RUN))
        for worker in workers:
            worker.restore(resumed.section(str(worker.rank))["worker"])
        for recorder in recorders:
            recorder.last_evaluation = resumed.meta["evaluation"]
            recorder.evaluated = resumed.meta["keep"]["evaluation"]
    for worker in workers:
        worker.rests = checkpointing.rests(clock.times[worker.rank])

    def save(rested: list[Worker]) -> None:
        finish(recorders, store)
        first = recorders[0]
        meta = {
            "step": rested[0].step,
            "evaluation": first.last_evaluation,
            "keep": {"evaluation": first.evaluated},
        }
        states = ((str(worker.rank), {"worker": worker.state()}) for worker in rested)
        checkpoint_writer.write(meta, chain([(RUN, clock.state())], states))

    clock.keep = save


class StopSignals:
    """SIGTERM, SIGINT and SIGUSR1 ask to stop at the next merge; a second one ends the process."""

    def __init__(self, ask: Callable[[], object]):
        self.ask, self.number = ask, 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        self._before = handle((signal.SIGTERM, signal.SIGINT, signal.SIGUSR1), self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.number:
            raise KeyboardInterrupt
        self.number = number
        self.ask()


def world(
    experiment: Experiment, dataset: Dataset, recorders: Sequence[Recorder]
) -> tuple[Clock, list[Worker]]:
    """The clock and its workers, nothing begun; `experiment` is resolved, a recorder a rank."""
    cluster = virtual_network(experiment)
    seconds = VIRTUAL_STEP_S if experiment.step_seconds is None else experiment.step_seconds
    clock = Clock(
        cluster, virtual_schedule(experiment, cluster), recorders,
        step_timer(experiment.straggler, seconds, experiment.seed),
        chunks=experiment.chunks, seed=experiment.seed,
    )  # fmt: skip
    return clock, [build_worker(experiment, dataset, site) for site in clock.sites]


def virtual_network(experiment: Experiment) -> Network:
    """The network that `--network` names, with `--progress perfect` if asked for."""
    try:
        named = network(experiment.network or "ideal")
    except AllreduceError as error:
        raise UsageError("--network", None, str(error)) from None
    return named.with_(progress="perfect") if experiment.progress == "perfect" else named


def virtual_schedule(experiment: Experiment, cluster: Network) -> Schedule:
    """The averages' schedule: the network's nodes, one for all where no network is given, as for
    ranks that mpiexec starts on one host."""
    ranks = experiment.ranks
    nodes = [0] * ranks if experiment.network is None else cluster.nodes(ranks)
    return build(experiment.allreduce, ranks, nodes)


def _tuned(experiment: Experiment, dataset: Dataset) -> Experiment:
    """The delay from what the simulator says of an all-reduce of these parameters."""
    place, cluster = Place(0, experiment.ranks), virtual_network(experiment)
    buffer = build_worker(experiment, dataset, place).parameters.buffer
    schedule = virtual_schedule(experiment, cluster)
    ends = simulate(
        schedule, buffer.nbytes, cluster, itemsize=buffer.itemsize, chunks=experiment.chunks
    )
    return tuned(experiment, Times(experiment.step_seconds or VIRTUAL_STEP_S, float(ends.max())))


class VirtualRecorder:
    """One virtual rank's rows, straight to the store."""

    def __init__(self, rank: int, store: Any, config: dict[str, Any], bar: Any):
        self.rank, self.store, self.config, self.bar = rank, store, config, bar
        self.last_evaluation: dict[str, Any] = {}
        self.evaluated = self.reported = (
            0  # rows so far, and steps, those before a restart included
        )
        self._rows: list[list[float]] = []

    def step(self, step: int, columns: dict[str, float]) -> None:
        if self.bar is not None:
            self.bar.update()
        self.reported = step
        self._rows.append(packed(step, columns))
        if len(self._rows) == ROWS:
            self.flush()

    def evaluation(self, worker: Worker, sums: np.ndarray, time_s: float) -> None:
        self.last_evaluation = row(sums, worker, self.config, time_s)
        self.evaluated += 1
        if self.rank == 0 and self.store is not None:
            self.store.evaluation(**self.last_evaluation)
            self.store.flush()

    def flush(self) -> None:
        if self._rows and self.store is not None:
            store_rows(self.store, self.rank, np.array(self._rows))
        self._rows.clear()


def finish(recorders: list[VirtualRecorder], store: Any) -> None:
    """Hand over what the recorders still have."""
    for recorder in recorders:
        recorder.flush()
    if store is not None:
        store.flush()


def open_store(
    experiment: Experiment,
    arguments: argparse.Namespace,
    checkpointing: Checkpointing | None = None,
) -> Any:
    """The store of a virtual run, None without --output."""
    if arguments.output is None:
        return None
    from mpisgd.store.writer import Writer

    made_with = environment() | {"hosts": [environment()["host"]], "mpi_library": "none: virtual"}
    options: dict[str, Any] = {"overwrite": arguments.overwrite}
    if checkpointing is not None:
        options = checkpointing.store_options(arguments.overwrite)
        checkpointing.before_rows_are_cut()
    store = Writer(
        arguments.output, kind="train", config=experiment.config(), environment=made_with,
        ranks=experiment.ranks, virtual=True, **options,
    )  # fmt: skip
    if checkpointing is not None and checkpointing.resumed is not None:
        store.restart(**checkpointing.resumed.restart())
        store.flush()
    return store
