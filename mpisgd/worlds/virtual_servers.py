"""Servers and workers as processes of a Cluster: the same generators, in virtual time.

A message costs what it would cost in an all-reduce: its sender and its receiver an overhead each,
and a long one a handshake for which both must look. Who waits looks all the time, and so does who
rests, has ended or has died; a worker that computes does so at the looks of its gradient, a server
that adds never (see `Cluster`). While a worker's push is not answered its looks have their price.
A notice needs no look: it ends a computation when it comes, and costs its overhead then. A server
and a worker on one rank work side by side, and between them nothing takes time.
"""

from bisect import bisect
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from math import inf, isinf
from typing import Any

import numpy as np

from allreduce.errors import Stalled
from allreduce.network import Network
from allreduce.simulate.events import Cluster
from mpisgd.algorithms.servers import serve, work
from mpisgd.checkpoint.rests import RUN, Rests
from mpisgd.checkpoint.state import flatten, unflatten
from mpisgd.experiment.stragglers import StepTimer
from mpisgd.servers.evaluation import FINAL, Evaluator, facts
from mpisgd.servers.messages import LEADER, Answer, Message, Request, Verdict, restored, saved
from mpisgd.servers.roles import Builder
from mpisgd.servers.server import Server
from mpisgd.training.site import Ready, Work
from mpisgd.worlds.marks import Marks
from mpisgd.worlds.mpi import Counters

HEADER_B = 80  # bytes of a message beside its shard
Steps = Generator[None, None, None]


class VirtualServers:
    """All servers and workers of one experiment on `network`, nothing begun.

    `record_update(row)`, `record_step(rank, step, columns)`: where rows go.
    """

    def __init__(
        self,
        network: Network,
        builder: Builder,
        step_timer: StepTimer,
        evaluator: Evaluator,
        record_update: Callable[[dict[str, float]], None] = lambda row: None,
        record_step: Callable[[int, int, dict[str, float]], None] = lambda rank, step, row: None,
        keep: Callable[[Mapping[str, Any]], object] | None = None,
        rests: Rests | None = None,
    ):
        """`keep` saves the run, at a rest; `rests`: when that is."""
        self.network, self.step_timer, self.evaluator = network, step_timer, evaluator
        self.record_update, self.record_step = record_update, record_step
        roles = builder.roles
        self.processes = [*roles.servers, *roles.workers]  # the rank of each
        self.server_sites = [VirtualServerSite(self, n) for n in range(len(roles.servers))]
        self.worker_sites = [VirtualWorkerSite(self, n) for n in range(len(roles.workers))]
        self.servers = [builder.server(site, site.number, rests) for site in self.server_sites]
        self.workers = [builder.worker(site, site.number) for site in self.worker_sites]
        self.policy = builder.policy
        self.keep = keep
        self.is_to_rest = False  # once nothing is on its way
        self.restarts = 0
        self.runs: list[Steps] = []  # by the number of the process
        self._going: set[int] = set()
        self._ranks, self._seed = builder.experiment.ranks, builder.experiment.seed
        self._begin(0.0)

    @property
    def sites(self) -> "list[VirtualServerSite | VirtualWorkerSite]":
        """By the number of their process."""
        return [*self.server_sites, *self.worker_sites]

    def run(self) -> None:
        """Until all have ended or died. Raises NotFinite.

        When nothing is on its way any more, who waits for a message gets None. Stalled if nobody
        waits but those who have been told so; processes may raise it themselves.
        """
        while self._going:
            if self._beginning:
                self._advance(self._beginning.popleft())
            elif self.is_to_rest and self.cluster.quiet:
                self.rest()
            else:
                self._go_on()

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
        for site in self.sites:
            site.asked_to_stop = True

    def leave(self, process: int) -> None:
        """It is never resumed. What is on its way from it, and to it, arrives."""
        self._going.discard(process)
        self.cluster.linger(process)

    def state(self) -> dict[str, dict[str, Any]]:
        """By section: RUN, and one for each server and worker. At a rest."""
        time_s = max(site.now() for site in self.sites)
        run = {
            "time_s": time_s, "restarts": self.restarts, "evaluator": self.evaluator.state()
        }  # fmt: skip
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
        self.restarts = run["restarts"] + 1
        rests = self.servers[0].rests
        if rests is not None:
            rests.rested(run["time_s"])
        self._begin(run["time_s"])

    def _begin(self, time_s: float) -> None:
        """All begin at that time, on a network where nothing is on its way. How often that has
        happened decides the noise to come."""
        self.is_to_rest = False
        self.cluster = Cluster(
            self.network, self._ranks, self._seed, began=time_s, made=self.restarts,
            processes=self.processes,
        )  # fmt: skip
        self.runs = [serve(server, self.policy) for server in self.servers]
        self.runs += map(work, self.workers)
        self._going = set(range(len(self.runs)))
        for site in self.sites:
            if site.is_dead:
                self.leave(site.process)
        self._beginning = deque(sorted(self._going))

    def _advance(self, process: int) -> None:
        try:
            next(self.runs[process])
        except StopIteration:
            self.leave(process)

    def _go_on(self) -> None:
        """Whose time is next; if it is nobody's, all are told so."""
        try:
            event = self.cluster.next(until_quiet=self.is_to_rest)
        except Stalled:
            self._give_up()
            return
        if event is not None:
            self._advance(event.rank)
        elif not (self.is_to_rest and self.cluster.quiet):
            self._give_up()

    def _give_up(self) -> None:
        waiting = [site for site in self.sites if not site.told and self.cluster.wake(site.process)]
        if not waiting:
            raise Stalled(f"{len(self._going)} virtual processes wait for what nobody sends")
        for site in waiting:
            site.told = True

    def _named(self) -> Iterator[tuple[str, Any]]:
        """Servers and workers by the names of their sections."""
        yield from ((f"server{server.index}", server) for server in self.servers)
        yield from ((f"worker{worker.rank}", worker) for worker in self.workers)

    def _failing(self) -> bool:
        """Whether anything that was not finite is known, or will be read: that is not saved."""
        messages = (
            message
            for site in self.server_sites
            for message in site.inbox
            if message.source != LEADER
        )
        failed = any(Request(*message.header).failed_step for message in messages)
        return failed or any(server.failed is not None for server in self.servers)


class _VirtualSite:
    """What servers and workers have in common."""

    asked_to_stop = False
    paused_s = 0.0  # evaluations take no virtual time

    def __init__(self, virtual_servers: VirtualServers, number: int, process: int):
        self.virtual_servers, self.number, self.process = virtual_servers, number, process
        self.place = virtual_servers.processes[process]  # its rank among all
        self.inbox: deque[Message] = deque()
        self.is_dead = False
        self.told = False  # that nothing will come, since the last message

    def state(self) -> dict[str, Any]:
        """What waits to be read."""
        return {"dead": self.is_dead, "inbox": saved(self.inbox)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.is_dead, self.told = bool(state["dead"]), False
        self.inbox = deque(restored(state.get("inbox", {})))

    def now(self) -> float:
        return self.virtual_servers.cluster.now(self.process)

    def receive(self, until: float | None = None) -> Generator[None, None, Message | None]:
        if not self.inbox:
            if until is not None and until <= self.now():
                return None
            self.virtual_servers.cluster.listen(self.process, inf if until is None else until)
            yield
        if not self.inbox:
            return None
        message = self.inbox.popleft()
        network = self.virtual_servers.network
        if network.overhead_s and network.progress != "perfect":  # else an engine has taken it
            source = self._process_of(message.source)
            yield from self._spend(self.virtual_servers.cluster.overhead(source, self.process))
        return message

    def put(self, message: Message) -> None:
        """It has come."""
        self.inbox.append(message)
        self.told = False
        self.virtual_servers.cluster.wake(self.process)

    def _process_of(self, source: int) -> int:
        """Of a message's sender."""
        raise NotImplementedError

    def _spend(self, seconds: float) -> Steps:
        """Busy with messages or sums, and with nothing else."""
        if seconds:
            self.virtual_servers.cluster.compute(self.process, seconds)
            yield

    def _write(self, to: "_VirtualSite", header: Any, payload: np.ndarray | None) -> None:
        nbytes, number = HEADER_B + (0 if payload is None else payload.nbytes), self.number
        self.virtual_servers.cluster.send(
            self.process, to.process, nbytes,
            lambda time: to.put(Message(number, header, payload, time)),
        )  # fmt: skip


class VirtualServerSite(_VirtualSite):
    """A virtual server's place."""

    def __init__(self, virtual_servers: VirtualServers, number: int):
        super().__init__(virtual_servers, number, number)
        self._verdicts: deque[Verdict] = deque()  # on their way here, which keep their order

    def announce(self, verdict: Verdict) -> None:
        for site in self.virtual_servers.server_sites[1:]:
            site.expect(verdict)
            self.virtual_servers.cluster.send(
                self.process, site.process, HEADER_B, site.take_verdict
            )

    def expect(self, verdict: Verdict) -> None:
        """It is on its way."""
        self._verdicts.append(verdict)

    def take_verdict(self, time: float) -> None:
        """The next one has come."""
        self.put(Message(LEADER, self._verdicts.popleft(), None, time))

    def send(self, worker: int, header: Answer, payload: np.ndarray) -> None:
        self._write(self.virtual_servers.worker_sites[worker], header, payload.copy())

    def notify(self, worker: int) -> None:
        site, number = self.virtual_servers.worker_sites[worker], self.number
        self.virtual_servers.cluster.send(
            self.process, site.process, HEADER_B, lambda time: site.take_notice(number)
        )

    def busy(self, octets: int) -> Steps:
        yield from self._spend(octets * self.virtual_servers.network.sum_s_per_B)

    def record(self, row: dict[str, float]) -> None:
        self.virtual_servers.record_update(row)

    def rest(self, server: Server) -> Steps:
        self.virtual_servers.is_to_rest = True
        self.virtual_servers.cluster.linger(self.process)
        yield  # for ever: the one who goes on after the rest is another

    def evaluate(self, server: Server, final: bool) -> Steps:
        label = FINAL if final else server.step
        ema = None if server.ema is None else server.ema.average.copy()
        flat = server.parameters.copy()
        self.virtual_servers.evaluator.add(label, server.index, flat, ema, facts(server))
        yield from ()

    def _process_of(self, source: int) -> int:
        return 0 if source == LEADER else self.virtual_servers.worker_sites[source].process


class VirtualWorkerSite(_VirtualSite):
    """A virtual worker's place. `rank` and `size` are those among the workers."""

    def __init__(self, virtual_servers: VirtualServers, number: int):
        super().__init__(virtual_servers, number, len(virtual_servers.server_sites) + number)
        self.rank = number
        self.abandoned = False
        self._computing = False
        self._unanswered = len(virtual_servers.server_sites)  # each writes first
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
            "unanswered": self._unanswered,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        times = state["times"]
        self._step, self._began = times["step"], times["began_s"]
        self._computed, self.abandoned = times["computed_s"], bool(state["abandoned"])
        self._counters = Counters(**state["counters"])
        self._watched = set(state["watched"].tolist())
        self._notices = set(state["notices"].tolist())
        self._unanswered, self._computing = state["unanswered"], False

    def begin_step(self, step: int) -> None:
        self._step, self._began = step, self.now()
        self._counters = Counters()

    def watch(self, servers: set[int]) -> None:
        self._watched = set(servers)
        self._notices -= servers

    def unwatch(self, server: int) -> None:
        self._watched.discard(server)

    def put(self, message: Message) -> None:
        self._unanswered -= 1
        super().put(message)

    def take_notice(self, server: int) -> None:
        """`server` has a newer version than what is being computed with."""
        self._notices.add(server)
        if self._computing and self._in_vain:
            self.virtual_servers.cluster.interrupt(self.process)

    @property
    def _in_vain(self) -> bool:
        return bool(self._watched) and self._watched <= self._notices

    def compute(self, work: Work, samples: int, ready: Ready | None = None) -> Steps:
        marks = Marks()
        work(marks.progress, None if ready is None else marks.ready)
        seconds, began = self.virtual_servers.step_timer(self.number, self._step), self.now()
        if isinf(seconds):
            yield from self._die()
        self.abandoned, done, posting = False, 0.0, 0.0
        for share, looks, lows in marks.pieces():
            end = began + (posting + self._counters.poll_s + share * seconds)
            yield from self._work(end - self.now(), [(x - done) * seconds for x in looks])
            done, now = share, self.now()
            self.abandoned = self._in_vain
            if self.abandoned:
                yield from self._spend(self.virtual_servers.network.overhead_s)
                break
            for low in lows:
                assert ready is not None
                ready(low)
            posting += self.now() - now
        self._computed = self.now()
        self._counters.compute_s += self._computed - began - self._counters.poll_s

    def updating(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def send(self, server: int, header: Request, payload: np.ndarray | None) -> None:
        self._unanswered += 1
        self._write(self.virtual_servers.server_sites[server], header, payload)

    def lap(self) -> dict[str, float]:
        now = self.now()
        self._counters.wait_s += now - self._computed
        times = {"start_s": self._began, "step_s": now - self._began}
        return times | vars(self._counters)

    def record(self, step: int, columns: dict[str, float]) -> None:
        self.virtual_servers.record_step(self.place, step, columns)

    def _work(self, seconds: float, looks: list[float]) -> Steps:
        """So much of a gradient, or until it is in vain."""
        cluster, began = self.virtual_servers.cluster, self.now()
        look_s = self._look_s
        if look_s:
            looks = [look + count * look_s for count, look in enumerate(looks, 1)]
            seconds += len(looks) * look_s
        if seconds > 0:
            self._computing = True
            cluster.compute(self.process, seconds, looks)
            yield
            self._computing = False
        if look_s:
            done = bisect(looks, self.now() - began) if self._in_vain else len(looks)
            self._counters.polls += done
            self._counters.poll_s += done * look_s

    @property
    def _look_s(self) -> float:
        """What a look costs: nothing if it waits for no server."""
        network = self.virtual_servers.network
        return network.look_s if self._unanswered > 0 and network.progress != "perfect" else 0.0

    def _die(self) -> Steps:
        self.is_dead = True
        self.virtual_servers.leave(self.process)
        yield

    def _process_of(self, source: int) -> int:
        return source
