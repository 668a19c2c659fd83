"""A training run of real servers and workers: from the first message to the last."""

import argparse
import platform
import sys
from contextlib import ExitStack, closing, nullcontext
from typing import Any

import numpy as np

from allreduce.algorithms import build
from mpisgd import launch
from mpisgd.algorithms.servers import serve, work
from mpisgd.data import Dataset
from mpisgd.errors import UsageError
from mpisgd.experiment import Experiment
from mpisgd.recording import Recorder, Rows
from mpisgd.roles import Workshop
from mpisgd.served import ServedWorker
from mpisgd.server import Server
from mpisgd.stragglers import pace
from mpisgd.train import progress_bar, report
from mpisgd.worker import NotFinite
from mpisgd.worlds.benches import Crew, ServerBench, WorkerBench
from mpisgd.worlds.communicator import CommunicatorSite
from mpisgd.worlds.real import open_store
from mpisgd.worlds.virtual_servers import check_finite, summary

UPDATES_TAG = 32001
COLUMNS = (
    "server", "update", "worker", "step", "version_read", "staleness", "used", "samples",
    "arrived_s", "waited_s",
)  # fmt: skip


def train(
    comm: Any, experiment: Experiment, dataset: Dataset, arguments: argparse.Namespace
) -> int:
    """Train on `comm`; the exit code. `experiment` is resolved and agreed on."""
    rank, deadline = comm.Get_rank(), experiment.deadline_s
    hosts = launch.texts(comm, platform.node(), deadline)
    workshop = Workshop(experiment, dataset)
    store, refused = None, None
    try:
        store = open_store(experiment, hosts, None, arguments) if rank == 0 else None
    except UsageError as mistake:  # another job may have taken the name since it was checked
        refused = mistake
    launch.agree(comm, refused, deadline)
    bar = progress_bar(experiment) if rank == 0 else None
    patience = 3 * deadline  # servers may first wait that long for a worker that is gone
    recorder = Recorder(comm, store, 1.0, deadline=patience)
    ledger = _ledger(comm, store, patience)
    inner = CommunicatorSite(comm, build("tree", comm.Get_size()), recorder, deadline=deadline)
    evaluator = workshop.evaluator(store) if rank == 0 else None
    crew = Crew()
    record = _recording(ledger, recorder, bar)
    servers, workers = _hire(workshop, inner, crew, record, evaluator)

    def ask() -> None:
        inner.asked_to_stop = True

    with ExitStack() as stack:
        signals = stack.enter_context(launch.Signals(comm, ask))
        stack.enter_context(closing(crew))
        stack.enter_context(bar or nullcontext())
        failure = _run(inner, crew, servers)
        lost = {workshop.roles.workers[w] for server in servers for w in server.lost}
        recorder.finish(lost)
        ledger.finish(lost)
        if failure is not None:
            if store is not None:
                store.close(reason=str(failure))
            raise failure
    crowd: list[Any] = [*servers, *workers]
    stopped = any(who.stopping for who in crowd)
    number = int(signals.received or 15) if stopped else 0
    if evaluator is not None:
        _complete(store, workshop, servers, evaluator, number)
        report(experiment, evaluator.last, arguments)
    if lost:
        _leave_without(comm, lost)
    return 128 + number if stopped else 0


def _hire(
    workshop: Workshop, inner: CommunicatorSite, crew: Crew, record: Any, evaluator: Any
) -> tuple[list[Server], list[ServedWorker]]:
    """The server and the worker that this rank is, one or both of them."""
    experiment, servers, workers = workshop.experiment, [], []
    slow = pace(experiment.straggler, experiment.step_seconds, experiment.seed)
    for place, number, serves in workshop.places():
        if place == inner.rank and serves:
            own = evaluator if number == 0 else None
            site = ServerBench(inner, number, crew, workshop, record, own)
            servers.append(workshop.server(site, number))
            crew.add(site, serve(servers[-1], workshop.policy))
        elif place == inner.rank:
            bench = WorkerBench(inner, number, crew, workshop, slow)
            workers.append(workshop.worker(bench, number))
            crew.add(bench, work(workers[-1]))
    return servers, workers


def _run(inner: CommunicatorSite, crew: Crew, servers: list[Server]) -> NotFinite | None:
    """Until the last message; what was not finite, if anything was."""
    inner.begin()
    try:
        crew.run()
        check_finite(servers)
    except NotFinite as failure:
        return failure
    return None


def _complete(
    store: Any, workshop: Workshop, servers: list[Server], evaluator: Any, number: int
) -> None:
    """On rank 0: end the file, which says so if a signal ended the run."""
    if store is None:
        return
    if number:
        store.close(reason=f"stopped by signal {number} after step {servers[0].step}")
    else:
        store.complete(evaluator.last | summary(servers, evaluator))


def _leave_without(comm: Any, lost: set[int]) -> None:
    """Rank 0 ends the job: MPI_Finalize would wait for ranks that are gone."""
    if comm.Get_rank() == 0:
        ranks = ", ".join(map(str, sorted(lost)))
        print(f"mpisgd: done, but without rank {ranks}, which went silent", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        comm.Abort(0)


def _ledger(comm: Any, store: Any, deadline: float) -> Rows:
    """Rows of /updates on their way to the store."""

    def deliver(rank: int, rows: np.ndarray) -> None:
        if store is not None:
            store.updates([dict(zip(COLUMNS, row, strict=True)) for row in rows.tolist()])

    return Rows(comm, len(COLUMNS), UPDATES_TAG, deliver, deadline=deadline)


def _recording(ledger: Rows, recorder: Recorder, bar: Any) -> Any:
    def record(row: dict[str, float]) -> None:
        ledger.add([row[name] for name in COLUMNS])
        recorder.rows.look()  # a server has no steps of its own, and takes in those of others
        if bar is not None and row["server"] == 0 and row["used"]:
            bar.update()

    return record
