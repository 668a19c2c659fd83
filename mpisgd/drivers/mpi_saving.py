"""Saving a run of real servers and workers: of one server in the middle of the traffic."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from mpisgd.checkpoint.writer import Checkpointing, CheckpointWriter
from mpisgd.mpi import session
from mpisgd.servers.evaluation import Evaluator
from mpisgd.servers.roles import Builder
from mpisgd.servers.server import Server
from mpisgd.servers.worker import ServedWorker
from mpisgd.store.recording import Rows
from mpisgd.training.site import Steps
from mpisgd.worlds.mpi import CommunicatorSite
from mpisgd.worlds.mpi_servers import Pause


class Run(NamedTuple):
    """What a rank knows of the run. `evaluator`: on rank 0."""

    builder: Builder
    inner: CommunicatorSite
    ledger: Rows
    evaluator: Evaluator | None
    signals: session.Signals

    @property
    def rows(self) -> Rows:
        """Rows of /steps on their way."""
        return self.inner.recorder.rows  # type: ignore[attr-defined]


class Saver:
    """Saves a run of one server, in the process of that server, and lets it go on.

    Nobody waits for it: gradients that are outstanding will be lost, and computed again.
    """

    def __init__(self, checkpointing: Checkpointing, run: Run):
        self.checkpointing, self.run = checkpointing, run
        self.updates = 0  # rows of /updates before a restart
        self.checkpoint_writer: CheckpointWriter | None = None

    def begin(self, servers: list[Server], workers: list[ServedWorker]) -> None:
        """Go on from where it was; nothing has begun. Raises BadState."""
        resumed = self.checkpointing.resumed
        if resumed is not None:
            self.run.inner.restore(resumed.state["site"])
        for server in servers:
            if server.index == 0:
                self._lead(server)
            self._begin_server(server)
        for worker in workers:
            self._begin_worker(worker)

    def _lead(self, server: Server) -> None:
        """On rank 0: the writer, and what was evaluated and recorded before."""
        run, resumed, since_s = self.run, self.checkpointing.resumed, 0.0
        assert run.evaluator is not None
        identity = {**self.checkpointing.identity, "config": run.builder.experiment.config()}
        self.checkpoint_writer = self.checkpointing._replace(identity=identity).checkpoint_writer()
        if resumed is not None:
            since_s = resumed.state["site"]["time_s"]
            run.evaluator.last = resumed.meta["evaluation"]
            run.evaluator.evaluated = resumed.meta["keep"]["evaluation"]
            self.updates = resumed.meta["keep"]["updates"]
        server.rests = self.checkpointing.rests(since_s)
        server.site.save = self.save  # type: ignore[attr-defined]

    def _begin_server(self, server: Server) -> None:
        if self.checkpointing.resumed is not None:
            server.restore(self.checkpointing.resumed.state["server"])
            server.forget_workers()

    def _begin_worker(self, worker: ServedWorker) -> None:
        if self.checkpointing.resumed is not None:
            worker.go_on(*self.checkpointing.resumed.state["worker"].tolist())

    def save(self, server: Server) -> Steps:
        """At the end of an update."""
        assert self.checkpoint_writer is not None
        if server.stopping:
            self.run.signals.met()
        with Pause(self.run.inner):
            self.hand_over()
            done = server.done()
            reported = {
                rank: int(done[0, worker])
                for worker, rank in enumerate(self.run.builder.roles.workers)
            }
            self.checkpoint_writer.write(self.meta(server, reported), self._sections(server, done))
        assert server.rests is not None
        server.rests.rested(self.run.inner.now())
        yield from ()

    def hand_over(self) -> None:
        """The rows so far, to the file if it is here."""
        self.run.ledger.hand_over()
        self.run.rows.hand_over()
        evaluator = self.run.evaluator
        if evaluator is not None and evaluator.store is not None:
            evaluator.store.settle()

    def meta(self, server: Server, reported: dict[int, int], updates: int = 0) -> dict[str, Any]:
        """`reported`: steps by rank; `updates`: rows of /updates of other ranks, in this run."""
        evaluator = self.run.evaluator
        assert evaluator is not None
        rows = self.updates + self.run.ledger.added + updates
        return {
            "step": server.step,
            "evaluation": evaluator.last,
            "keep": {"evaluation": evaluator.evaluated, "updates": rows},
            "reported": [reported.get(rank, 0) for rank in range(self.run.inner.size)],
        }

    def _sections(self, server: Server, done: np.ndarray) -> Iterator[tuple[str, dict[str, Any]]]:
        numbers = {rank: worker for worker, rank in enumerate(self.run.builder.roles.workers)}
        for rank in range(self.run.inner.size):
            section: dict[str, Any] = {"site": self.run.inner.state()}
            if rank == 0:
                section["server"] = server.state()
            if rank in numbers:
                section["worker"] = done[:, numbers[rank]]
            yield str(rank), section
