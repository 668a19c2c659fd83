"""The places of virtual servers and workers: what each may ask of the world it runs in."""

from bisect import bisect
from collections import deque
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from math import inf, isinf
from typing import TYPE_CHECKING, Any

import numpy as np

from mpisgd.servers.evaluation import FINAL, facts
from mpisgd.servers.messages import (
    HEADER_B,
    LEADER,
    Answer,
    Message,
    Request,
    Verdict,
    octets,
    restored,
    saved,
)
from mpisgd.servers.server import Server
from mpisgd.servers.worker import Reads
from mpisgd.training.site import Ready, Work
from mpisgd.worlds.marks import Marks
from mpisgd.worlds.step import Counters

if TYPE_CHECKING:
    from mpisgd.worlds.virtual_servers import VirtualServers

Steps = Generator[None, None, None]


class _VirtualSite:
    """What servers and workers have in common."""

    asked_to_stop = False
    paused_s = 0.0  # evaluations take no virtual time

    def __init__(self, virtual_servers: "VirtualServers", number: int, process: int):
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
        nbytes, number = octets(payload), self.number
        self.virtual_servers.cluster.send(
            self.process, to.process, nbytes,
            lambda time: to.put(Message(number, header, payload, time)),
        )  # fmt: skip


class VirtualServerSite(_VirtualSite):
    """A virtual server's place."""

    def __init__(self, virtual_servers: "VirtualServers", number: int):
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

    def send(self, worker: int, header: Answer, payload: np.ndarray | None) -> None:
        kept = None if payload is None else payload.copy()
        self._write(self.virtual_servers.worker_sites[worker], header, kept)

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

    def __init__(self, virtual_servers: "VirtualServers", number: int):
        super().__init__(virtual_servers, number, len(virtual_servers.server_sites) + number)
        self.rank = number
        self.abandoned = False
        self.reads: Reads | None = None
        self._forward: list[tuple[float, list[float], int]] = []  # of the last gradient
        self._marks = Marks()
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

    def needs(self, high: int) -> None:
        self._marks.needs(high)

    def read(self) -> Generator[None, None, Message | None]:
        return self.receive()

    def waiting(self, run: Steps) -> Steps:
        began = self.now()
        yield from run
        self._counters.wait_s += self.now() - began

    def compute(self, work: Work, samples: int, ready: Ready | None = None) -> Steps:
        seconds, began = self.virtual_servers.step_timer(self.number, self._step), self.now()
        if isinf(seconds):
            yield from self._die()
        away_s = self.virtual_servers.step_timer.away(self.number, self._step)
        if away_s > 0:  # preempted: what was to be computed is given up
            yield from self._spend(away_s)
            self.abandoned, self._computed = True, self.now()
            return
        self.abandoned, done, posting = False, 0.0, 0.0
        if self.reads is not None:
            done, posting = yield from self._read_forward(self.reads, seconds)
        reading, marks = posting, Marks()
        self._marks = marks
        work(marks.progress, None if ready is None else marks.ready)
        self._forward = marks.forward()
        for share, looks, lows in marks.pieces(done if self.reads else -1.0):
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
        self._counters.compute_s += self._computed - began - reading - self._counters.poll_s

    def _read_forward(self, reads: Reads, seconds: float) -> Generator[None, None, tuple]:
        """Until the last layer has its parameters: each asks when it begins, as in the step before.
        (the share of the step that is done, seconds of waiting)."""
        began, done, waited = self.now(), 0.0, 0.0
        for share, looks, high in self._forward:
            end = began + (waited + self._counters.poll_s + share * seconds)
            yield from self._work(end - self.now(), [(x - done) * seconds for x in looks])
            done, now = share, self.now()
            yield from self.waiting(reads(high))
            waited += self.now() - now
        return done, waited

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
