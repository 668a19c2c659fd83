"""What is saved of a run of real servers and workers: of one server amid the traffic, of several
once they have come to rest (see worlds.server_rests)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpisgd.checkpoint.messages import TAG, WORKERS_TAG, Heartbeat, receive
from mpisgd.checkpoint.writer import Checkpointing
from mpisgd.mpi import session
from mpisgd.servers.evaluation import Evaluator
from mpisgd.servers.roles import Builder
from mpisgd.servers.server import Server
from mpisgd.servers.worker import ServedWorker
from mpisgd.store.recording import Rows
from mpisgd.training.site import Steps
from mpisgd.worlds.mpi import CommunicatorSite
from mpisgd.worlds.mpi_servers import Part, Pause
from mpisgd.worlds.server_rests import STOP, Leader, ServerPart, WorkerPart

Section = tuple[str, dict[str, Any]]


class Rank(NamedTuple):
    """What a rank knows of the run. `rows`, `ledger`: of /steps and /updates, on their way;
    `evaluator`: on rank 0."""

    builder: Builder
    inner: CommunicatorSite
    rows: Rows
    ledger: Rows
    evaluator: Evaluator | None
    signals: session.Signals


class Saver:
    """Saves a run of one server, in the process of that server, and lets it go on.

    Nobody waits for it: gradients that are outstanding will be lost, and computed again.
    """

    def __init__(self, checkpointing: Checkpointing, rank: Rank):
        """Files of an earlier run go, unless it goes on."""
        self.rank, self.resumed = rank, checkpointing.resumed
        state = {"time_s": 0.0} if self.resumed is None else self.resumed.state["site"]
        self.rests = checkpointing.rests(state["time_s"])
        self.updates = 0 if self.resumed is None else self.resumed.meta["keep"]["updates"]
        if rank.inner.rank == 0:
            self.checkpoint_writer = checkpointing.checkpoint_writer()

    def server_part(self, number: int) -> Part | None:
        """What server `number` has to do for the whole run to be saved."""
        return None

    def worker_part(self) -> Part | None:
        """The same of a worker."""
        return None

    def restore(self, servers: Sequence[Server], workers: Sequence[ServedWorker]) -> None:
        """Go on from where it was; nothing has begun. Raises BadState."""
        if self.resumed is None:
            return
        self.rank.inner.restore(self.resumed.state["site"])
        for server in servers:
            self._restore_server(server, self.resumed.state)
        for worker in workers:
            self._restore_worker(worker, self.resumed.state["worker"])

    def _restore_server(self, server: Server, state: Mapping[str, Any]) -> None:
        server.restore(state["server"])
        server.forget_workers()

    def _restore_worker(self, worker: ServedWorker, state: Any) -> None:
        worker.go_on(*state.tolist())

    def save(self, server: Server) -> Steps:
        """At the end of an update."""
        if server.stopping:
            self.rank.signals.met()
        with Pause(self.rank.inner):
            self._hand_over()
            done = server.done()
            reported = dict(zip(self.rank.builder.roles.workers, done[0].tolist(), strict=True))
            self.checkpoint_writer.write(self._meta(server, reported), self._sections(server, done))
        self.rests.rested(self.rank.inner.now())
        yield from ()

    def _hand_over(self) -> None:
        """The rows so far, to the file if it is here."""
        self.rank.ledger.hand_over()
        self.rank.rows.hand_over()
        evaluator = self.rank.evaluator
        if evaluator is not None and evaluator.store is not None:
            evaluator.store.settle()

    def _meta(
        self, server: Server, reported: Mapping[int, int], updates: int = 0
    ) -> dict[str, Any]:
        """`reported`: steps by rank; `updates`: rows of /updates of other ranks, in this run."""
        evaluator = self.rank.evaluator
        assert evaluator is not None
        rows = self.updates + self.rank.ledger.added + updates
        return {
            "step": server.step,
            "evaluation": evaluator.last,
            "keep": {"evaluation": evaluator.evaluated, "updates": rows},
            "reported": [reported.get(rank, 0) for rank in range(self.rank.inner.size)],
        }

    def _sections(self, server: Server, done: np.ndarray) -> Iterator[Section]:
        numbers = {rank: worker for worker, rank in enumerate(self.rank.builder.roles.workers)}
        for rank in range(self.rank.inner.size):
            section: dict[str, Any] = {"site": self.rank.inner.state()}
            if rank == 0:
                section["server"] = server.state()
            if rank in numbers:
                section["worker"] = done[:, numbers[rank]]
            yield str(rank), section


class SharedSaver(Saver):
    """Saves a run of several servers: each rank its part of it."""

    leader: Leader

    def server_part(self, number: int) -> Part:
        inner, roles = self.rank.inner, self.rank.builder.roles
        if number:
            return ServerPart(inner.comm, roles, inner.deadline, self._rows_handed_over)
        self.leader = Leader(inner.comm, roles, inner.deadline)
        return self.leader

    def worker_part(self) -> Part:
        inner, roles = self.rank.inner, self.rank.builder.roles
        return WorkerPart(inner.comm, roles, inner.deadline, self._rows_handed_over)

    def _rows_handed_over(self) -> dict[str, int]:
        ledger, rows = self.rank.ledger, self.rank.rows
        ledger.hand_over()
        rows.hand_over()
        return {"updates": ledger.shipped, "steps": rows.shipped, "added": ledger.added}

    def _restore_server(self, server: Server, state: Mapping[str, Any]) -> None:
        site: Any = server.site
        site.restore(state["server"]["site"])
        server.restore(state["server"]["own"])
        server.forget_notices()
        if self.rank.evaluator is not None:
            self.rank.evaluator.restore(state.get("evaluator", {}))

    def _restore_worker(self, worker: ServedWorker, state: Any) -> None:
        worker.site.restore(state["site"])
        worker.restore(state["own"])

    def save(self, server: Server) -> Steps:
        """At the end of an update, or before all are told to stop."""
        if server.stopping:
            self.rank.signals.met()
        if (yield from self.leader.everyone_waits()):
            servers, workers, heartbeat = yield from self.leader.line_up()
            with Pause(self.rank.inner):
                self._write(server, servers, workers, heartbeat)
            yield from heartbeat.release()
        if server.stopping:
            self.leader.tell(STOP)
        self.rests.rested(self.rank.inner.now())

    def _write(
        self,
        server: Server,
        servers: Mapping[int, Mapping[str, Any]],
        workers: Mapping[int, Mapping[str, Any]],
        heartbeat: Heartbeat,
    ) -> None:
        """`servers`, `workers`: what they have told, by rank."""
        for rows, name in ((self.rank.ledger, "updates"), (self.rank.rows, "steps")):
            rows.hand_over()
            told = [[table[r][name] for table in (servers, workers) if r in table]
                    for r in range(self.rank.inner.size)]  # fmt: skip
            rows.catch_up([max(counts, default=0) for counts in told])
            heartbeat.beat()
        self._hand_over()
        reported = {rank: its["reported"] for rank, its in workers.items()}
        meta = self._meta(server, reported, sum(its["added"] for its in servers.values()))
        sections = self._shared_sections(server, servers, workers, heartbeat)
        self.checkpoint_writer.write(meta, sections, heartbeat.beat)

    def _shared_sections(
        self, server: Server, servers: Mapping, workers: Mapping, heartbeat: Heartbeat
    ) -> Iterator[Section]:
        """Rank by rank: only one more than its own is in memory."""
        inner, evaluator = self.rank.inner, self.rank.evaluator
        assert evaluator is not None
        for rank in range(inner.size):
            yield str(rank), {"site": inner.state()}
        own = {"own": server.state(), "site": self.leader.site.state()}
        yield "0", {"server": own, "evaluator": evaluator.state()}
        for kind, tag, ranks in (("server", TAG, servers), ("worker", WORKERS_TAG, workers)):
            for rank in ranks:
                state = receive(inner.comm, rank, inner.deadline, heartbeat.beat, tag)
                yield str(rank), {kind: state}
