"""A training run of real servers and workers: from the first message to the last."""

import argparse
import platform
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, nullcontext
from typing import Any

import numpy as np

from allreduce.algorithms import build
from mpisgd import launch
from mpisgd.algorithms.servers import serve, work
from mpisgd.checkpoint.keeper import Keeper, Keeping
from mpisgd.data import Dataset
from mpisgd.errors import UsageError
from mpisgd.evaluator import Evaluator
from mpisgd.experiment import Experiment
from mpisgd.recording import Recorder, Rows
from mpisgd.remarks import tell_stopped
from mpisgd.roles import Workshop
from mpisgd.served import ServedWorker
from mpisgd.server import Server
from mpisgd.stragglers import Pace, pace
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
    comm: Any,
    experiment: Experiment,
    dataset: Dataset,
    arguments: argparse.Namespace,
    keeping: Keeping | None = None,
) -> int:
    """Train on `comm`; the exit code. `experiment` is resolved and agreed on."""
    rank, deadline = comm.Get_rank(), experiment.deadline_s
    hosts = launch.texts(comm, platform.node(), deadline)
    workshop = Workshop(experiment, dataset)
    store, refused = None, None
    slow: Any = None
    try:
        slow = pace(experiment.straggler, experiment.step_seconds, experiment.seed)
        store = open_store(experiment, hosts, None, arguments, keeping) if rank == 0 else None
    except UsageError as mistake:  # another job may have taken the name since it was checked
        refused = mistake
    launch.agree(comm, refused, deadline)
    bar = progress_bar(experiment, keeping) if rank == 0 else None
    patience = 3 * deadline  # servers may first wait that long for a worker that is gone
    recorder = Recorder(comm, store, 1.0, deadline=patience)
    ledger = _ledger(comm, store, patience)
    inner = CommunicatorSite(comm, build("tree", comm.Get_size()), recorder, deadline=deadline)
    evaluator = workshop.evaluator(store) if rank == 0 else None
    crew = Crew()
    record = _recording(ledger, recorder, bar)
    servers, workers = _hire(workshop, inner, crew, record, evaluator, slow)

    def ask() -> None:
        inner.asked_to_stop = True

    with ExitStack() as stack:
        signals = stack.enter_context(launch.Signals(comm, ask))
        stack.enter_context(closing(crew))
        stack.enter_context(bar or nullcontext())
        if keeping is not None:
            saving = Saver(keeping, workshop, inner, ledger, evaluator, signals)
            saving.begin(servers, workers)
        failure = _run(inner, crew, servers, evaluator)
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
        if number:
            tell_stopped(servers[0].step, arguments.output)
    if lost:
        _leave_without(comm, lost)
    return 128 + number if stopped else 0


class Saver:
    """Saves a run of one server, in the process of that server, and lets it go on.

    Nobody waits for it: gradients that are outstanding will be lost, and computed again.
    """

    def __init__(
        self,
        keeping: Keeping,
        workshop: Workshop,
        inner: CommunicatorSite,
        ledger: Rows,
        evaluator: Evaluator | None,
        signals: launch.Signals,
    ):
        self.keeping, self.inner, self.ledger = keeping, inner, ledger
        self.workshop, self.evaluator, self.signals = workshop, evaluator, signals
        self.updates = 0  # rows of /updates before a restart
        self.keeper: Keeper | None = None

    def begin(self, servers: list[Server], workers: list[ServedWorker]) -> None:
        """Go on from where it was; nothing has begun. Raises BadState."""
        resumed, since_s = self.keeping.resumed, 0.0
        if resumed is not None:
            since_s = resumed.state["site"]["time_s"]
            self.inner.restore(resumed.state["site"])
            for worker in workers:
                worker.go_on(*resumed.state["worker"].tolist())
        for server in servers:
            assert self.evaluator is not None
            config = self.workshop.experiment.config()
            self.keeper = self.keeping._replace(
                identity={**self.keeping.identity, "config": config}
            ).keeper()
            server.rests = self.keeping.rests(since_s)
            server.site.keep = self.save  # type: ignore[attr-defined]
            if resumed is not None:
                server.restore(resumed.state["server"])
                server.forget_workers()
                self.evaluator.last = resumed.meta["evaluation"]
                self.evaluator.evaluated = resumed.meta["keep"]["evaluation"]
                self.updates = resumed.meta["keep"]["updates"]

    def save(self, server: Server) -> None:
        """At the end of an update."""
        assert self.keeper is not None
        assert self.evaluator is not None
        if server.stopping:
            self.signals.met()
        self.ledger.hand_over()
        self.inner.recorder.rows.hand_over()  # type: ignore[attr-defined]
        if self.evaluator.store is not None:
            self.evaluator.store.settle()
        done = server.done()
        reported = [0] * self.inner.size
        for worker, rank in enumerate(self.workshop.roles.workers):
            reported[rank] = int(done[0, worker])
        kept = {"evaluation": self.evaluator.evaluated, "updates": self.updates + self.ledger.added}
        meta = {
            "step": server.step,
            "evaluation": self.evaluator.last,
            "keep": kept,
            "reported": reported,
        }
        self.keeper.write(meta, self._sections(server, done))
        assert server.rests is not None
        server.rests.rested(self.inner.now())

    def _sections(self, server: Server, done: np.ndarray) -> Iterator[tuple[str, dict[str, Any]]]:
        numbers = {rank: worker for worker, rank in enumerate(self.workshop.roles.workers)}
        for rank in range(self.inner.size):
            section: dict[str, Any] = {"site": self.inner.state()}
            if rank == 0:
                section["server"] = server.state()
            if rank in numbers:
                section["worker"] = done[:, numbers[rank]]
            yield str(rank), section


def _hire(
    workshop: Workshop, inner: CommunicatorSite, crew: Crew, record: Any, evaluator: Any, slow: Pace
) -> tuple[list[Server], list[ServedWorker]]:
    """The server and the worker that this rank is, one or both of them."""
    servers: list[Server] = []
    workers: list[ServedWorker] = []
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


def _run(
    inner: CommunicatorSite, crew: Crew, servers: list[Server], evaluator: Any
) -> NotFinite | None:
    """Until the last message; what was not finite, if anything was."""
    inner.begin()
    try:
        crew.run()
        check_finite(servers, evaluator)
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
