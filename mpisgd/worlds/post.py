"""Processes that compute and write messages, in virtual time: who goes on next, and when.

A process is a generator. It says what it waits for by a method of its Desk and yields; the Post
plays the events in order of time (first come, first served at equal times) and resumes it.
"""

import heapq
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from math import inf
from typing import Any

import numpy as np

from allreduce.errors import Stalled
from allreduce.network import Network, bursts, paths
from allreduce.simulate.links import Fair, Queues

Process = Generator[None, None, None]


class Post:
    """`desk(rank, generator)` adds a process, `run()` plays until all have ended.

    Messages go over `network` between ranks, one link after the other as network.py says, and take
    its overhead twice; those longer than its eager limit shake hands first. No time within a rank.
    """

    def __init__(self, network: Network, ranks: int, seed: int = 0):
        self.network, self.ranks, self.now = network, ranks, 0.0
        self.desks: list[Desk] = []
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._ready: deque[tuple[Desk, int]] = deque()
        self._count = 0
        self._open: set[Desk] = set()
        self._routes: dict[tuple[int, int], tuple[float, list[tuple[int, float]]]] = {}
        self._idle_links()
        self._seed, self.restarts = seed, 0
        self._random = np.random.default_rng((seed, 0x6C74))
        self._carried = 0  # messages on their way
        self._dead: set[Desk] = set()
        self.quiet: Callable[[], object] | None = None  # called once nothing is on its way

    def desk(self, rank: int) -> "Desk":
        """A place for a process of that rank; give it its `generator` before the run."""
        self.desks.append(Desk(self, rank))
        return self.desks[-1]

    def run(self) -> None:
        """Until every process has ended or died.

        When nothing is on its way any more, who waits for a message gets None. Stalled if nobody
        does; processes may raise it themselves.
        """
        self._open = set(self.desks)
        if not self._ready:
            self._ready.extend((desk, desk.token) for desk in self.desks)
        ready, events = self._ready, self._events
        while self._open:
            if ready:
                desk, token = ready.popleft()
                if desk.token == token:
                    self._resume(desk)
            elif self.quiet is not None and self._is_quiet():
                quiet, self.quiet = self.quiet, None
                quiet()
            elif events:
                self.now, _, play, subject = heapq.heappop(events)
                play(subject)
            else:
                self._give_up()

    def restart(self, now: float, restarts: int) -> None:
        """All processes begin, at that time, with new generators; nothing is on its way.
        `restarts`: how often that has happened, which decides the noise to come."""
        self.now, self.restarts = now, restarts
        self._random = np.random.default_rng((self._seed, 0x6C74, restarts))
        self._idle_links()
        self._events.clear()
        self._ready.clear()
        for desk in self.desks:
            desk.token += 1
            desk.listening = desk.computing = desk.told = False
        self._open = set(self.desks)
        self._ready.extend((desk, desk.token) for desk in self.desks)

    def _idle_links(self) -> None:
        credit = bursts(self.network, self.ranks)
        self._queues = Queues(credit)
        self._fair = Fair(credit) if self.network.sharing == "fair" else None

    def is_dead(self, desk: "Desk") -> bool:
        """Whether its process has died."""
        return desk in self._dead

    def _is_quiet(self) -> bool:
        """Whether no message is on its way and nobody at work: all wait for `quiet`."""
        return not self._carried and not any(desk.computing for desk in self._open)

    def at(self, time: float, play: Callable[[Any], None], subject: Any) -> None:
        """Call play(subject) at that time."""
        self._count += 1
        heapq.heappush(self._events, (time, self._count, play, subject))

    def wake(self, named: tuple["Desk", int]) -> None:
        """Resume a process, unless something else has resumed it since."""
        desk, token = named
        if desk.token == token:
            self._resume(desk)

    def carry(self, source: int, to: "Desk", nbytes: int, put: Callable[[], None]) -> None:
        """Call `put`, which lays something on a desk, when so many bytes have got there."""
        if source == to.rank:
            put()
            return
        self._carried += 1
        put = partial(self._land, put)
        latency, links = self._route(source, to.rank)
        factor = 1.0
        if self.network.noise:
            sigma = self.network.noise
            factor = float(self._random.lognormal(-(sigma**2) / 2, sigma))
        if links:
            shakes = 2 * latency * factor if nbytes > self.network.eager_limit_B else 0.0
            parcel = _Parcel(put, links, latency * factor, nbytes * factor)
            if shakes:
                self.at(self.now + shakes, self._hop, parcel)
            else:
                self._hop(parcel)
        elif latency:
            self.at(self.now + latency * factor, _put, put)
        else:
            put()

    def _land(self, put: Callable[[], None]) -> None:
        self._carried -= 1
        put()

    def died(self, desk: "Desk") -> None:
        """Its process is never resumed."""
        self._dead.add(desk)
        desk.token += 1
        self._open.discard(desk)

    def resume_soon(self, desk: "Desk") -> None:
        self._ready.append((desk, desk.token))

    def _resume(self, desk: "Desk") -> None:
        desk.token += 1
        desk.listening = desk.computing = False
        try:
            next(desk.generator)
        except StopIteration:
            self._open.discard(desk)

    def _give_up(self) -> None:
        waiting = [desk for desk in self.desks if desk in self._open and desk.listening]
        if not waiting or all(desk.told for desk in waiting):
            raise Stalled(f"{len(self._open)} virtual processes wait for what nobody sends")
        for desk in waiting:
            if not desk.told:
                desk.told = True
                self.resume_soon(desk)

    def _route(self, source: int, to: int) -> tuple[float, list[tuple[int, float]]]:
        found = self._routes.get((source, to))
        if found is None:
            path = paths(self.network, np.array([source]), np.array([to]), self.ranks)
            pairs = zip(path.links[0].tolist(), path.seconds_per_byte[0].tolist(), strict=True)
            latency = float(path.latency[0]) + 2 * self.network.overhead_s
            found = latency, [(link, cost) for link, cost in pairs if link >= 0]
            self._routes[source, to] = found
        return found

    def _hop(self, parcel: "_Parcel") -> None:
        """It queues at its next link, and goes on to the one after it when it is served; or it
        begins to share them all."""
        if self._fair is not None:
            self._fair.add(parcel, parcel.links, parcel.nbytes, self.now)
            self.at(self.now, self._pass, self._fair.version)
            return
        while parcel.at < len(parcel.links):
            link, cost = parcel.links[parcel.at]
            begins, ends = self._queues.hop(link, cost, parcel.nbytes, self.now)
            parcel.end = max(parcel.end, ends)
            parcel.at += 1
            if begins > self.now and parcel.at < len(parcel.links):
                self.at(begins, self._hop, parcel)
                return
        self.at(parcel.end + parcel.latency, _put, parcel.put)

    def _pass(self, version: int) -> None:
        """What has got through shared links arrives, unless something has changed since."""
        fair = self._fair
        if fair is None or version != fair.version:
            return
        for parcel in fair.finished(self.now):
            self.at(self.now + parcel.latency, _put, parcel.put)
        if (end := fair.next_end()) < inf:
            self.at(end, self._pass, fair.version)


class Desk:
    """One process's place: what has come for it, and what it waits for."""

    __slots__ = (
        "computing", "generator", "inbox", "listening", "post", "rank", "token", "told",
    )  # fmt: skip

    def __init__(self, post: Post, rank: int):
        self.post, self.rank = post, rank
        self.generator: Process = iter(())  # type: ignore[assignment]
        self.inbox: deque[Any] = deque()
        self.token = 0  # counts resumptions: an event for an earlier one is void
        self.listening = self.computing = self.told = False

    def receive(self, until: float | None = None) -> Generator[None, None, Any]:
        """The next thing in the inbox; None at the time `until`, or if nothing will ever come."""
        if not self.inbox:
            post = self.post
            if until is not None:
                if until <= post.now:
                    return None
                post.at(until, post.wake, (self, self.token))
            self.listening = True
            yield
        return self.inbox.popleft() if self.inbox else None

    def sleep(self, seconds: float) -> Process:
        """For so long, or until `interrupt`."""
        if seconds > 0:
            post = self.post
            post.at(post.now + seconds, post.wake, (self, self.token))
            self.computing = True
            yield

    def put(self, thing: Any) -> None:
        """Into the inbox; whoever listens goes on."""
        self.inbox.append(thing)
        self.told = False
        if self.listening:
            self.post.resume_soon(self)

    def interrupt(self) -> None:
        """End its sleep now."""
        if self.computing:
            self.post.resume_soon(self)

    def die(self) -> Process:
        """Never go on."""
        self.post.died(self)
        yield


class _Parcel:
    """Something under way: which link comes next, and when the slowest so far has let it go."""

    __slots__ = ("at", "end", "latency", "links", "nbytes", "put")

    def __init__(self, put: Any, links: list, latency: float, nbytes: float):
        self.put, self.links, self.latency, self.nbytes = put, links, latency, nbytes
        self.at, self.end = 0, 0.0


def _put(put: Callable[[], None]) -> None:
    put()
