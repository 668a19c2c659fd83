"""Servers and workers as processes of a Post: the same generators, in virtual time."""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from math import isinf
from typing import Any

import numpy as np

from mpisgd.algorithms.servers import serve, work
from mpisgd.checkpoint.rests import RUN, Rests
from mpisgd.checkpoint.state import flatten, unflatten
from mpisgd.experiment.stragglers import StepTimer
from mpisgd.servers.evaluation import FINAL, Evaluator, facts
from mpisgd.servers.messages import LEADER, Answer, Message, Request, Verdict, restored, saved
from mpisgd.servers.roles import Builder
from mpisgd.servers.server import Server
from mpisgd.servers.worker import ServedWorker
from mpisgd.training.site import Ready, Work
from mpisgd.worlds.marks import Marks
from mpisgd.worlds.mpi import Counters
from mpisgd.worlds.post import Desk, Post

HEADER_B = 80  # bytes of a message beside its shard
Steps = Generator[None, None, None]


class VirtualServers:
    """All servers and workers of one experiment on a Post, nothing begun.

    `record_update(row)`, `record_step(rank, step, columns)`: where rows go.
    """

    def __init__(
        self,
        post: Post,
        builder: Builder,
        step_timer: StepTimer,
        evaluator: Evaluator,
        record_update: Callable[[dict[str, float]], None] = lambda row: None,
        record_step: Callable[[int, int, dict[str, float]], None] = lambda rank, step, row: None,
        keep: Callable[[Mapping[str, Any]], object] | None = None,
        rests: Rests | None = None,
    ):
        """`keep` saves the run, at a rest; `rests`: when that is."""
        self.post, self.step_timer, self.evaluator = post, step_timer, evaluator
        self.record_update, self.record_step = record_update, record_step
        self.server_sites = [ServerOffice(self, n, r) for n, r in enumerate(builder.roles.servers)]
        self.worker_sites = [WorkerOffice(self, n, r) for n, r in enumerate(builder.roles.workers)]
        self.servers = [builder.server(site, site.number, rests) for site in self.server_sites]
        self.workers = [builder.worker(site, site.number) for site in self.worker_sites]
        self.policy = builder.policy
        self.keep = keep
        self._seat_all()

    def rest(self) -> None:
        """Nothing is on its way: save the run, and let all begin anew as a restored one does."""
        sections = {name: unflatten(flatten(state)) for name, state in self.state().items()}
        if self.keep is not None and not self._failing():
            self.keep(sections)
        self.restore(sections)
        for server in self.servers if self.servers[0].stopping else []:
            server.stopping = True

    def ask_to_stop(self) -> None:
        """As a signal does."""
        for site in (*self.server_sites, *self.worker_sites):
            site.asked_to_stop = True

    def _failing(self) -> bool:
        """Whether anything that was not finite is known, or will be read: that is not saved."""
        messages = (
            message
            for site in self.server_sites
            for message in site.desk.inbox
            if message.source != LEADER
        )
        failed = any(Request(*message.header).failed_step for message in messages)
        return failed or any(server.failed is not None for server in self.servers)

    def state(self) -> dict[str, dict[str, Any]]:
        """By section: RUN, and one for each server and worker. At a rest."""
        post = self.post
        run = {"time_s": post.now, "restarts": post.restarts, "evaluator": self.evaluator.state()}
        return {RUN: run} | {
            name: {"own": who.state(), "site": who.site.state()} for name, who in self._named()
        }

    def restore(self, sections: Mapping[str, Mapping[str, Any]]) -> None:
        """Go on from there. Raises BadState."""
        run = sections[RUN]
        self.evaluator.restore(run.get("evaluator", {}))
        for name, who in self._named():
            who.restore(sections[name]["own"])
            who.site.restore(sections[name]["site"])
        self.post.restart(run["time_s"], run["restarts"] + 1)
        rests = self.servers[0].rests
        if rests is not None:
            rests.rested(run["time_s"])
        self._seat_all()

    def _named(self) -> Iterator[tuple[str, Any]]:
        """Servers and workers by the names of their sections."""
        yield from ((f"server{server.index}", server) for server in self.servers)
        yield from ((f"worker{worker.rank}", worker) for worker in self.workers)

    def _seat_all(self) -> None:
        for server in self.servers:
            self._seat(server, serve(server, self.policy))
        for worker in self.workers:
            self._seat(worker, work(worker))

    def run(self) -> None:
        """Until all have ended. Raises NotFinite and Stalled."""
        self.post.run()

    @staticmethod
    def _seat(who: Server | ServedWorker, generator: Steps) -> None:
        office: Any = who.site
        office.desk.generator = office.desk.die() if office.is_dead else generator


class _Office:
    """What servers and workers have in common."""

    asked_to_stop = False
    paused_s = 0.0  # evaluations take no virtual time

    def __init__(self, virtual_servers: VirtualServers, number: int, rank: int):
        self.virtual_servers, self.number, self.place = virtual_servers, number, rank
        self.desk: Desk = virtual_servers.post.desk(rank)
        self.is_dead = False

    def state(self) -> dict[str, Any]:
        """What waits to be read."""
        return {
            "dead": self.virtual_servers.post.is_dead(self.desk),
            "inbox": saved(self.desk.inbox),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.is_dead = bool(state["dead"])
        self.desk.inbox.clear()
        for message in restored(state.get("inbox", {})):
            self.desk.put(message)

    def now(self) -> float:
        return self.virtual_servers.post.now

    def receive(self, until: float | None = None) -> Generator[None, None, Message | None]:
        return (yield from self.desk.receive(until))

    def _post(self, to: "_Office", header: Any, payload: np.ndarray | None) -> None:
        nbytes = HEADER_B + (0 if payload is None else payload.nbytes)
        number, desk, post = self.number, to.desk, self.virtual_servers.post
        post.carry(
            self.place, desk, nbytes,
            lambda: desk.put(Message(number, header, payload, post.now)),
        )  # fmt: skip


class ServerOffice(_Office):
    """A virtual server's place."""

    def __init__(self, virtual_servers: VirtualServers, number: int, rank: int):
        super().__init__(virtual_servers, number, rank)
        self._verdicts: deque[Verdict] = deque()  # on their way here, which keep their order

    def announce(self, verdict: Verdict) -> None:
        for office in self.virtual_servers.server_sites[1:]:
            office.expect(self.place, verdict)

    def expect(self, source: int, verdict: Verdict) -> None:
        """It is on its way from that rank."""
        self._verdicts.append(verdict)
        self.virtual_servers.post.carry(source, self.desk, HEADER_B, self._take_verdict)

    def _take_verdict(self) -> None:
        self.desk.put(Message(LEADER, self._verdicts.popleft(), None, self.now()))

    def send(self, worker: int, header: Answer, payload: np.ndarray) -> None:
        self._post(self.virtual_servers.worker_sites[worker], header, payload.copy())

    def notify(self, worker: int) -> None:
        office = self.virtual_servers.worker_sites[worker]
        number = self.number
        self.virtual_servers.post.carry(
            self.place, office.desk, HEADER_B, lambda: office.take_notice(number)
        )

    def busy(self, octets: int) -> Steps:
        seconds = octets * self.virtual_servers.post.network.sum_s_per_B
        if seconds:
            yield from self.desk.sleep(seconds)

    def record(self, row: dict[str, float]) -> None:
        self.virtual_servers.record_update(row)

    def rest(self, server: Server) -> Steps:
        self.virtual_servers.post.quiet = self.virtual_servers.rest
        yield  # for ever: the one who goes on after the rest is another

    def evaluate(self, server: Server, final: bool) -> Steps:
        label = FINAL if final else server.step
        ema = None if server.ema is None else server.ema.average.copy()
        flat = server.parameters.copy()
        self.virtual_servers.evaluator.add(label, server.index, flat, ema, facts(server))
        yield from ()


class WorkerOffice(_Office):
    """A virtual worker's place. `rank` and `size` are those among the workers."""

    def __init__(self, virtual_servers: VirtualServers, number: int, rank: int):
        super().__init__(virtual_servers, number, rank)
        self.rank = number
        self.abandoned = False
        self._watched: set[int] = set()
        self._notices: set[int] = set()
        self._step, self._began, self._computed = 0, 0.0, 0.0
        self._counters = Counters()

    @property
    def size(self) -> int:
        return len(self.virtual_servers.worker_sites)

    def state(self) -> dict[str, Any]:
        times = {"step": self._step, "began_s": self._began, "computed_s": self._computed}
        return super().state() | {
            "times": times,
            "abandoned": self.abandoned,
            "counters": vars(self._counters),
            "watched": np.array(sorted(self._watched), int),
            "notices": np.array(sorted(self._notices), int),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        times = state["times"]
        self._step, self._began = times["step"], times["began_s"]
        self._computed, self.abandoned = times["computed_s"], bool(state["abandoned"])
        self._counters = Counters(**state["counters"])
        self._watched = set(state["watched"].tolist())
        self._notices = set(state["notices"].tolist())

    def begin_step(self, step: int) -> None:
        self._step, self._began = step, self.now()
        self._counters = Counters()

    def watch(self, servers: set[int]) -> None:
        self._watched = set(servers)
        self._notices -= servers

    def unwatch(self, server: int) -> None:
        self._watched.discard(server)

    def take_notice(self, server: int) -> None:
        """`server` has a newer version than what is being computed with."""
        self._notices.add(server)
        if self._in_vain:
            self.desk.interrupt()

    @property
    def _in_vain(self) -> bool:
        return bool(self._watched) and self._watched <= self._notices

    def compute(self, work: Work, samples: int, ready: Ready | None = None) -> Steps:
        marks = Marks()
        work(marks.progress, None if ready is None else marks.ready)
        seconds, began = self.virtual_servers.step_timer(self.number, self._step), self.now()
        if isinf(seconds):
            yield from self.desk.die()
        self.abandoned = False
        for share, _, lows in marks.pieces():
            yield from self.desk.sleep(began + share * seconds - self.now())
            self.abandoned = self._in_vain
            if self.abandoned:
                break
            for low in lows:
                assert ready is not None
                ready(low)
        self._computed = self.now()
        self._counters.compute_s += self._computed - began

    def updating(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def send(self, server: int, header: Request, payload: np.ndarray | None) -> None:
        self._post(self.virtual_servers.server_sites[server], header, payload)

    def lap(self) -> dict[str, float]:
        now = self.now()
        self._counters.wait_s += now - self._computed
        times = {"start_s": self._began, "step_s": now - self._began}
        return times | vars(self._counters)

    def record(self, step: int, columns: dict[str, float]) -> None:
        self.virtual_servers.record_step(self.place, step, columns)
