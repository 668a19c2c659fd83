"""Servers and workers in a run of real ranks: who is here, and how the run is summed up."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from allreduce.collectives import maker
from allreduce.communicator import Communicator
from mpisgd.algorithms.servers import serve, work
from mpisgd.drivers.job import Job
from mpisgd.experiment.stragglers import step_timer
from mpisgd.mpi import session, tags
from mpisgd.servers.evaluation import check_finite, summary
from mpisgd.servers.roles import Builder
from mpisgd.servers.server import Server
from mpisgd.servers.worker import ServedWorker
from mpisgd.store.recording import Rows, Store
from mpisgd.store.schema import group
from mpisgd.store.weights import Weights
from mpisgd.training.recorder import Recorder
from mpisgd.worlds.mpi import CommunicatorSite
from mpisgd.worlds.mpi_servers import MpiServerSite
from mpisgd.worlds.mpi_workers import MpiWorkerSite
from mpisgd.worlds.scheduler import Scheduler

if TYPE_CHECKING:
    from mpisgd.drivers.mpi_saving import Saver

COLUMNS = tuple(field.name for field in group("updates"))


class Served:
    """The server and the worker that this rank is, one or both of them."""

    def __init__(self, comm: Communicator, job: Job, signals: session.Signals):
        experiment = job.experiment
        self.job, self.builder = job, Builder(experiment, job.dataset)
        patience = 3 * experiment.deadline_s  # servers may first wait for a worker that is gone
        self.recorder = Recorder(comm, job.store, {}, deadline=patience)
        self.ledger = _ledger(comm, job.store, patience)
        self.inner = CommunicatorSite(
            comm, maker("tree", comm.Get_size()), self.recorder, deadline=experiment.deadline_s
        )
        meta = None if job.resumed is None else job.resumed.meta
        own = self.builder.evaluator(job.store, meta) if self.inner.rank == 0 else None
        self.evaluator = own
        self.saver: Saver | None = None
        if job.checkpointing is not None:
            from mpisgd.drivers import mpi_saving

            kind = (
                mpi_saving.Saver if len(self.builder.roles.servers) == 1 else mpi_saving.SharedSaver
            )
            rank = mpi_saving.Rank(
                self.builder, self.inner, self.recorder.rows, self.ledger, self.evaluator, signals
            )
            self.saver = kind(job.checkpointing, rank)
        self.scheduler = Scheduler()
        self.servers: list[Server] = []
        self.workers: list[ServedWorker] = []
        for place, number, serves in self.builder.places():
            if place == self.inner.rank:
                (self._add_server if serves else self._add_worker)(number)
        if self.saver is not None:
            self.saver.restore(self.servers, self.workers)
        for site, who in zip(self.scheduler.sites, self._all(), strict=True):
            site.expect(who)

    def _add_server(self, number: int) -> None:
        saver, builder = self.saver, self.builder
        own = self.evaluator if number == 0 else None
        site = MpiServerSite(
            self.inner, number, self.scheduler, builder, self._record, own,
            save=saver.save if saver and number == 0 else None,
            part=saver.server_part(number) if saver else None,
        )  # fmt: skip
        server = builder.server(site, number, saver.rests if saver else None)
        self.servers.append(server)
        self.scheduler.add(site, site.until_all_end(serve(server, builder.policy)))

    def _add_worker(self, number: int) -> None:
        experiment = self.job.experiment
        slow = step_timer(experiment.straggler, experiment.step_seconds, experiment.seed)
        part = self.saver.worker_part() if self.saver else None
        site = MpiWorkerSite(self.inner, number, self.scheduler, self.builder, slow, part=part)
        self.workers.append(self.builder.worker(site, number))
        self.scheduler.add(site, work(self.workers[-1]))

    def _all(self) -> Iterator[Server | ServedWorker]:
        yield from self.servers
        yield from self.workers

    @property
    def step(self) -> int:
        return next(self._all()).step

    @property
    def stopping(self) -> bool:
        return any(who.stopping for who in self._all())

    @property
    def weights(self) -> Weights | None:
        return None if self.evaluator is None else self.evaluator.weights

    def ask_to_stop(self) -> None:
        self.inner.asked_to_stop = True

    def busy(self) -> bool:
        """Whoever evaluates, saves or waits for another goes on, until a deadline."""
        return self.inner.evaluating or not self.inner.computing

    def run(self) -> None:
        self.inner.begin()
        self.scheduler.run()
        check_finite(self.servers, self.evaluator)

    def finish(self) -> set[int]:
        lost = {self.builder.roles.workers[w] for server in self.servers for w in server.lost}
        self.recorder.finish(lost)
        self.ledger.finish(lost)
        return lost

    def evaluation(self) -> Mapping[str, Any]:
        return {} if self.evaluator is None else self.evaluator.last

    def summary(self) -> Mapping[str, Any]:
        assert self.evaluator is not None
        return summary(self.servers, self.evaluator)

    def close(self) -> None:
        self.scheduler.close()

    def _record(self, row: dict[str, float]) -> None:
        """A row of /updates."""
        self.ledger.add([row[name] for name in COLUMNS])
        self.recorder.rows.look()  # a server has no steps of its own, and takes in those of others
        if self.job.bar is not None and row["server"] == 0 and row["used"]:
            self.job.bar.update()


def _ledger(comm: Communicator, store: Store | None, deadline: float) -> Rows:
    """Rows of /updates on their way to the store."""

    def deliver(rank: int, rows: np.ndarray) -> None:
        if store is not None:
            store.updates([dict(zip(COLUMNS, row, strict=True)) for row in rows.tolist()])

    return Rows(comm, len(COLUMNS), tags.UPDATES, deliver, deadline=deadline)
