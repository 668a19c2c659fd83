"""A training run of real servers and workers: from the first message to the last."""

import argparse
import platform
import sys
from contextlib import ExitStack, closing, nullcontext
from typing import Any

import numpy as np

from allreduce.algorithms import build
from mpisgd.algorithms.servers import serve, work
from mpisgd.checkpoint.writer import Checkpointing
from mpisgd.commands.train import progress_bar, report
from mpisgd.data import Dataset
from mpisgd.drivers.mpi import open_store
from mpisgd.drivers.mpi_rests import SharedSaver
from mpisgd.drivers.mpi_saving import Run, Saver
from mpisgd.drivers.virtual_servers import check_finite, summary
from mpisgd.experiment.experiment import Experiment
from mpisgd.experiment.remarks import tell_stopped
from mpisgd.experiment.stragglers import StepTimer, step_timer
from mpisgd.mpi import session
from mpisgd.servers.roles import Builder
from mpisgd.servers.server import Server
from mpisgd.servers.worker import ServedWorker
from mpisgd.store.recording import Recorder, Rows
from mpisgd.training.worker import NotFinite
from mpisgd.values.errors import UsageError
from mpisgd.worlds.mpi import CommunicatorSite
from mpisgd.worlds.mpi_servers import MpiServerSite, MpiWorkerSite, Scheduler

UPDATES_TAG = 32001
PATIENCE = 10  # deadlines until all have heard how the run ended: rank 0 may still be at work
COLUMNS = (
    "server", "update", "worker", "step", "version_read", "staleness", "used", "samples",
    "arrived_s", "waited_s",
)  # fmt: skip


def train(
    comm: Any,
    experiment: Experiment,
    dataset: Dataset,
    arguments: argparse.Namespace,
    checkpointing: Checkpointing | None = None,
) -> int:
    """Train on `comm`; the exit code. `experiment` is resolved and agreed on."""
    rank, deadline = comm.Get_rank(), experiment.deadline_s
    hosts = session.texts(comm, platform.node(), deadline)
    builder = Builder(experiment, dataset)
    store, refused = None, None
    slow: Any = None
    try:
        slow = step_timer(experiment.straggler, experiment.step_seconds, experiment.seed)
        store = open_store(experiment, hosts, None, arguments, checkpointing) if rank == 0 else None
    except UsageError as mistake:  # another job may have taken the name since it was checked
        refused = mistake
    session.agree(comm, refused, deadline)
    bar = progress_bar(experiment, checkpointing) if rank == 0 else None
    patience = 3 * deadline  # servers may first wait that long for a worker that is gone
    recorder = Recorder(comm, store, {}, deadline=patience)
    ledger = _ledger(comm, store, patience)
    inner = CommunicatorSite(comm, build("tree", comm.Get_size()), recorder, deadline=deadline)
    evaluator = builder.evaluator(store) if rank == 0 else None
    scheduler = Scheduler()
    record = _recording(ledger, recorder, bar)
    servers, workers = _hire(builder, inner, scheduler, record, evaluator, slow)
    crowd: list[Any] = [*servers, *workers]

    def ask() -> None:
        inner.asked_to_stop = True

    def busy() -> bool:
        """Whoever evaluates, saves or waits for another goes on, until a deadline."""
        return inner.evaluating or not inner.computing

    with ExitStack() as stack:
        signals = stack.enter_context(session.Signals(comm, ask, busy))
        stack.enter_context(closing(scheduler))
        stack.enter_context(bar or nullcontext())
        if checkpointing is not None:
            kind = Saver if len(builder.roles.servers) == 1 else SharedSaver
            kind(checkpointing, Run(builder, inner, ledger, evaluator, signals)).begin(
                servers, workers
            )
        for who in crowd:
            who.site.expect(who)
        failure = _run(inner, scheduler, servers, evaluator)
        lost = {builder.roles.workers[w] for server in servers for w in server.lost}
        recorder.finish(lost)
        ledger.finish(lost)
        if failure is not None:
            if store is not None:
                store.close(reason=str(failure))
            raise failure
    number = int(signals.received or 15) if any(who.stopping for who in crowd) else 0
    if not lost:
        number = int(session.texts(comm, str(number), PATIENCE * deadline)[0])
    if evaluator is not None:
        _complete(store, builder, servers, evaluator, number)
        report(experiment, evaluator.last, arguments)
        if number:
            tell_stopped(servers[0].step, arguments.output)
    if lost:
        _leave_without(comm, lost)
    return 128 + number if number else 0


def _hire(
    builder: Builder,
    inner: CommunicatorSite,
    scheduler: Scheduler,
    record: Any,
    evaluator: Any,
    slow: StepTimer,
) -> tuple[list[Server], list[ServedWorker]]:
    """The server and the worker that this rank is, one or both of them."""
    servers: list[Server] = []
    workers: list[ServedWorker] = []
    for place, number, serves in builder.places():
        if place == inner.rank and serves:
            own = evaluator if number == 0 else None
            site = MpiServerSite(inner, number, scheduler, builder, record, own)
            servers.append(builder.server(site, number))
            scheduler.add(site, site.until_all_end(serve(servers[-1], builder.policy)))
        elif place == inner.rank:
            bench = MpiWorkerSite(inner, number, scheduler, builder, slow)
            workers.append(builder.worker(bench, number))
            scheduler.add(bench, work(workers[-1]))
    return servers, workers


def _run(
    inner: CommunicatorSite, scheduler: Scheduler, servers: list[Server], evaluator: Any
) -> NotFinite | None:
    """Until the last message; what was not finite, if anything was."""
    inner.begin()
    try:
        scheduler.run()
        check_finite(servers, evaluator)
    except NotFinite as failure:
        return failure
    return None


def _complete(
    store: Any, builder: Builder, servers: list[Server], evaluator: Any, number: int
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
