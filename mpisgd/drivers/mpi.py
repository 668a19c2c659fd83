"""A training run on real ranks: sites, signals, records, from the first message to the last."""

import argparse
import os
import platform
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Any

from allreduce.algorithms import build
from allreduce.errors import Stalled
from mpisgd.commands.train import progress_bar, report
from mpisgd.data import Dataset
from mpisgd.experiment import delays
from mpisgd.experiment.building import Place, algorithm_run, build_worker
from mpisgd.experiment.experiment import Experiment
from mpisgd.experiment.remarks import tell_stopped, tell_tuned
from mpisgd.experiment.stragglers import step_timer
from mpisgd.models.statistics import POOLED, described
from mpisgd.mpi import session
from mpisgd.store.environment import environment
from mpisgd.store.recording import Recorder
from mpisgd.training.buckets import exposed
from mpisgd.training.worker import NotFinite, Worker
from mpisgd.values.errors import UsageError
from mpisgd.worlds.mpi import CommunicatorSite

if TYPE_CHECKING:  # a run that saves nothing does without: memory counts, times ranks
    from mpisgd.checkpoint.writer import Checkpointing


def train(
    comm: Any,
    experiment: Experiment,
    dataset: Dataset,
    arguments: argparse.Namespace,
    checkpointing: "Checkpointing | None" = None,
) -> int:
    """Train on `comm`; the exit code. `experiment` is resolved and agreed on."""
    rank = comm.Get_rank()
    hosts = session.texts(comm, platform.node(), experiment.deadline_s)
    nodes = [hosts.index(host) for host in hosts]
    schedule = build(experiment.allreduce, comm.Get_size(), nodes)
    times = None
    if experiment.delay == "auto":
        probe = build_worker(experiment, dataset, Place(rank, comm.Get_size()))
        times = delays.measure(comm, schedule, experiment, probe)
        experiment = delays.tuned(experiment, times)
        tell_tuned(experiment, rank)
    thread_comm = session.thread_comm(comm) if experiment.progress == "thread" else None
    store, refused = None, None
    try:
        store = (
            open_store(experiment, hosts, times, arguments, checkpointing) if rank == 0 else None
        )
    except UsageError as mistake:  # another job may have taken the name since it was checked
        refused = mistake
    session.agree(comm, refused, experiment.deadline_s)
    bar = progress_bar(experiment, checkpointing) if rank == 0 else None
    recorder = Recorder(
        comm, store, experiment.config(), deadline=experiment.deadline_s,
        on_step=None if bar is None else bar.update,
    )  # fmt: skip
    site = CommunicatorSite(
        comm, schedule, recorder,
        chunks=experiment.chunks, deadline=experiment.deadline_s,
        step_timer=step_timer(experiment.straggler, experiment.step_seconds, experiment.seed),
        thread_comm=thread_comm,
    )  # fmt: skip
    worker = build_worker(experiment, dataset, site)

    def ask() -> None:
        site.asked_to_stop = True

    signals_of_run = session.Signals(comm, ask, lambda: site.evaluating)
    with signals_of_run as signals, closing(site), bar or nullcontext():
        if checkpointing is not None:
            keep(checkpointing, experiment, site, worker, recorder, store, signals)
        try:
            _run(
                site,
                experiment,
                worker,
                checkpointing is not None and checkpointing.resumed is not None,
            )
        except NotFinite as failure:
            recorder.finish()
            if store is not None:
                store.close(reason=str(failure))
            raise
        recorder.finish()
        number = max(site.all_values(signals.received or 0))
        last = recorder.last_evaluation
        if store is not None and worker.stopping:
            store.close(reason=f"stopped by signal {number} after step {worker.step}")
        elif store is not None:
            stated = described(worker.model, POOLED) | exposed(
                worker.parameters, experiment.bucket_bytes
            )
            spent = {"final_average_s": site.final_average_s, "saving_s": site.saving_s}
            store.complete({**spent, **last, **stated})
    if rank == 0:
        report(experiment, last, arguments)
        if worker.stopping:
            tell_stopped(worker.step, arguments.output)
    return 128 + number if worker.stopping else 0


def keep(
    checkpointing: "Checkpointing",
    experiment: Experiment,
    site: CommunicatorSite,
    worker: Worker,
    recorder: Recorder,
    store: Any,
    signals: session.Signals,
) -> None:
    """Let the run be saved, and go on from where it was. Nothing has begun."""
    from mpisgd.checkpoint import place
    from mpisgd.checkpoint.ranks import Gathering

    checkpoint_writer, resumed, since_s = None, checkpointing.resumed, 0.0
    identity = {**checkpointing.identity, "config": experiment.config()}
    if site.rank == 0:
        checkpoint_writer = checkpointing._replace(identity=identity).checkpoint_writer()
    if resumed is not None:
        site.restore(resumed.state["site"])
        worker.restore(resumed.state["worker"])
        recorder.last_evaluation = resumed.meta["evaluation"]
        recorder.evaluated = resumed.meta["keep"]["evaluation"]
        since_s = resumed.state["site"]["time_s"]
    worker.rests = checkpointing.rests(since_s)
    gathering = Gathering(
        site.comm,
        checkpoint_writer,
        recorder,
        store,
        experiment.deadline_s,
        checkpointing.saving,
        identity,
    )
    if resumed is not None:
        steps = place.part_steps(checkpointing.saving.place, site.rank)
        gathering.steps = [step for step in steps if step <= resumed.step]

    def save(worker: Worker) -> None:
        if worker.stopping:
            signals.met()
        recorder.rows.hand_over()
        shipped = site.all_values(recorder.rows.shipped)
        state = {"worker": worker.state(), "site": site.state()}
        gathering(worker.step, state, shipped)

    site.keep = save


def _run(site: CommunicatorSite, experiment: Experiment, worker: Worker, resumed: bool) -> None:
    """From equal parameters, or those of a checkpoint, to the last message."""
    if not resumed:
        site.broadcast(worker.parameters.buffer)
    site.begin()
    try:
        for _ in algorithm_run(experiment, worker):
            raise AssertionError("a communicator site never yields")
        site.drain()
    except Stalled as stall:
        raise Stalled(f"{stall}, at step {worker.step}") from None


def open_store(
    experiment: Experiment,
    hosts: list[str],
    times: delays.Times | None,
    arguments: argparse.Namespace,
    checkpointing: "Checkpointing | None" = None,
) -> Any:
    if arguments.output is None:
        return None
    from allreduce.native import library
    from mpisgd.store.remote import RemoteWriter

    made_with = environment() | {
        "mpi_library": library(),
        "hosts": hosts,
        "ranks_per_core": round(experiment.ranks / max(1, _cores(hosts)), 3),
        "recorded_by": "rank 0",
        "delay_from": None if times is None else times._asdict(),
    }
    options: dict[str, Any] = {"overwrite": arguments.overwrite}
    if checkpointing is not None:
        options = checkpointing.store_options(arguments.overwrite)
        checkpointing.before_rows_are_cut()
    store = RemoteWriter(
        arguments.output, deadline=experiment.deadline_s, kind="train",
        config=experiment.config(), environment=made_with, ranks=experiment.ranks,
        **options,
    )  # fmt: skip
    if checkpointing is not None and checkpointing.resumed is not None:
        store.restart(**checkpointing.resumed.restart())
        store.flush()
    return store


def _cores(hosts: list[str]) -> int:
    """Cores of all hosts, taking them to be like this one."""
    return len(set(hosts)) * len(os.sched_getaffinity(0))
