"""Servers and workers as processes of a Post: the same generators, in virtual time."""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from math import isinf
from typing import Any

import numpy as np

from mpisgd.algorithms.servers import serve, work
from mpisgd.evaluator import FINAL, Evaluator, facts
from mpisgd.roles import Workshop
from mpisgd.served import ServedWorker
from mpisgd.server import Answer, Asked, Letter, Server
from mpisgd.stragglers import Pace
from mpisgd.worlds import Ready, Work
from mpisgd.worlds.communicator import Counters
from mpisgd.worlds.post import Desk, Post

HEADER_B = 80  # bytes of a letter beside its shard
Steps = Generator[None, None, None]


class Offices:
    """All servers and workers of one experiment on a Post, nothing begun.

    `record_update(row)`, `record_step(rank, step, columns)`: where rows go.
    """

    def __init__(
        self,
        post: Post,
        workshop: Workshop,
        pace: Pace,
        evaluator: Evaluator,
        record_update: Callable[[dict[str, float]], None] = lambda row: None,
        record_step: Callable[[int, int, dict[str, float]], None] = lambda rank, step, row: None,
    ):
        self.post, self.pace, self.evaluator = post, pace, evaluator
        self.record_update, self.record_step = record_update, record_step
        self.server_sites = [ServerOffice(self, n, r) for n, r in enumerate(workshop.roles.servers)]
        self.worker_sites = [WorkerOffice(self, n, r) for n, r in enumerate(workshop.roles.workers)]
        self.servers = [workshop.server(site, site.number) for site in self.server_sites]
        self.workers = [workshop.worker(site, site.number) for site in self.worker_sites]
        for server in self.servers:
            self._seat(server, serve(server, workshop.policy))
        for worker in self.workers:
            self._seat(worker, work(worker))

    def run(self) -> None:
        """Until all have ended. Raises NotFinite and Stalled."""
        self.post.run()

    @staticmethod
    def _seat(who: Server | ServedWorker, generator: Steps) -> None:
        office: Any = who.site
        office.desk.generator = generator


class _Office:
    """What servers and workers have in common."""

    asked_to_stop = False
    paused_s = 0.0  # evaluations take no virtual time

    def __init__(self, offices: Offices, number: int, rank: int):
        self.offices, self.number, self.place = offices, number, rank
        self.desk: Desk = offices.post.desk(rank)

    def now(self) -> float:
        return self.offices.post.now

    def receive(self, until: float | None = None) -> Generator[None, None, Letter | None]:
        return (yield from self.desk.receive(until))

    def _post(self, to: "_Office", header: Any, payload: np.ndarray | None) -> None:
        nbytes = HEADER_B + (0 if payload is None else payload.nbytes)
        number, desk, post = self.number, to.desk, self.offices.post
        post.carry(
            self.place, desk, nbytes,
            lambda: desk.put(Letter(number, header, payload, post.now)),
        )  # fmt: skip


class ServerOffice(_Office):
    """A virtual server's place."""

    def send(self, worker: int, header: Answer, payload: np.ndarray) -> None:
        self._post(self.offices.worker_sites[worker], header, payload.copy())

    def notify(self, worker: int) -> None:
        office = self.offices.worker_sites[worker]
        number = self.number
        self.offices.post.carry(
            self.place, office.desk, HEADER_B, lambda: office.take_notice(number)
        )

    def busy(self, octets: int) -> Steps:
        seconds = octets * self.offices.post.network.sum_s_per_B
        if seconds:
            yield from self.desk.sleep(seconds)

    def record(self, row: dict[str, float]) -> None:
        self.offices.record_update(row)

    def evaluate(self, server: Server, final: bool) -> Steps:
        label = FINAL if final else server.step
        ema = None if server.ema is None else server.ema.average.copy()
        flat = server.parameters.copy()
        self.offices.evaluator.add(label, server.index, flat, ema, facts(server))
        yield from ()


class WorkerOffice(_Office):
    """A virtual worker's place. `rank` and `size` are those among the workers."""

    def __init__(self, offices: Offices, number: int, rank: int):
        super().__init__(offices, number, rank)
        self.rank = number
        self.abandoned = False
        self._watched: set[int] = set()
        self._notices: set[int] = set()
        self._step, self._began, self._computed = 0, 0.0, 0.0
        self._counters = Counters()

    @property
    def size(self) -> int:
        return len(self.offices.worker_sites)

    def begin_step(self, step: int) -> None:
        self._step, self._began = step, self.now()
        self._counters = Counters()

    def watch(self, servers: set[int]) -> None:
        self._watched = set(servers)
        self._notices -= servers

    def take_notice(self, server: int) -> None:
        """`server` has a newer version than what is being computed with."""
        self._notices.add(server)
        if self._watched <= self._notices:
            self.desk.interrupt()

    def compute(self, work: Work, samples: int, ready: Ready | None = None) -> Steps:
        work(lambda share: None, ready)
        seconds, began = self.offices.pace(self.number, self._step), self.now()
        if isinf(seconds):
            yield from self.desk.die()
        self.abandoned = False
        yield from self.desk.sleep(seconds)
        self._computed = self.now()
        self.abandoned = self._watched <= self._notices
        self._counters.compute_s += self._computed - began

    def updating(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def send(self, server: int, header: Asked, payload: np.ndarray | None) -> None:
        self._post(self.offices.server_sites[server], header, payload)

    def end_step(self, **columns: float) -> None:
        now = self.now()
        self._counters.wait_s += now - self._computed
        times = {"start_s": self._began, "step_s": now - self._began}
        self.offices.record_step(self.place, self._step, columns | times | vars(self._counters))
