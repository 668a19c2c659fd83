"""Servers and workers as real ranks: sites over ports, and who goes on while others wait."""

import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from math import isinf
from typing import Any

import numpy as np

from allreduce.plan import wait_until
from mpisgd import stragglers
from mpisgd.evaluator import FACTS, FINAL, Evaluator, facts
from mpisgd.roles import Workshop
from mpisgd.server import Answer, Asked, Letter, Server
from mpisgd.stragglers import Pace
from mpisgd.worlds import Ready, Work
from mpisgd.worlds.communicator import LOOK_EVERY, CommunicatorSite, Counters
from mpisgd.worlds.ports import NOTICES, PUSHES, REPLIES, SNAPSHOTS, Bells, Port

NOTICED = Answer._fields.index("noticed")
Steps = Generator[None, None, None]


class Abandoned(Exception):
    """Raised inside a computation that is in vain."""


class Crew:
    """The servers and workers of this rank: one, or both of them if they share it.

    While one waits or computes, the others go on. `add` all, then `run`.
    """

    def __init__(self) -> None:
        self.sites: list[Any] = []
        self._runs: dict[Any, Steps] = {}
        self._failure: BaseException | None = None

    def add(self, site: Any, generator: Steps) -> None:
        """`site` has a port, whose `moves` say that something has happened."""
        self.sites.append(site)
        self._runs[site] = generator

    def run(self) -> None:
        """Until all have ended; then raise what one of them has raised."""
        while self._runs:
            before = self._moves()
            wait_until(partial(self._moved, before))
        if self._failure is not None:
            raise self._failure

    def look(self, busy: Any) -> None:
        """Let all but `busy` go on."""
        for site in [site for site in self._runs if site is not busy]:
            self._advance(site)

    def close(self) -> None:
        """Give all requests back."""
        for site in self.sites:
            site.close()

    def _moves(self) -> tuple[int, int]:
        return len(self._runs), sum(site.port.moves for site in self._runs)

    def _moved(self, before: tuple[int, int]) -> bool:
        for site in list(self._runs):
            self._advance(site)
        return self._moves() != before

    def _advance(self, site: Any) -> None:
        try:
            next(self._runs[site])
        except StopIteration:
            del self._runs[site]
        except ArithmeticError as failure:  # the others must still take their leave
            self._failure = failure
            del self._runs[site]


class _Bench:
    """What servers and workers have in common. `inner`: the process's place among all ranks."""

    port: Port

    def __init__(self, inner: CommunicatorSite, number: int, crew: Crew):
        self.inner, self.number, self.crew = inner, number, crew

    @property
    def asked_to_stop(self) -> bool:
        return self.inner.asked_to_stop

    @property
    def paused_s(self) -> float:
        return self.inner.paused_s

    @paused_s.setter
    def paused_s(self, seconds: float) -> None:
        self.inner.paused_s = max(self.inner.paused_s, seconds)

    def now(self) -> float:
        return self.inner.now()


class ServerBench(_Bench):
    """A server's place. Server 0 has the `evaluator`; `record` takes rows of /updates."""

    def __init__(
        self,
        inner: CommunicatorSite,
        number: int,
        crew: Crew,
        workshop: Workshop,
        record: Callable[[dict[str, float]], None],
        evaluator: Evaluator | None,
    ):
        super().__init__(inner, number, crew)
        self.record, self.evaluator = record, evaluator
        shard, flat = workshop.shards[number], workshop.parameters.flat
        ranks = workshop.roles.workers
        self.port = Port(
            inner.comm, [(rank, shard.stop - shard.start) for rank in ranks], flat.dtype, Asked,
            self.now, sends=REPLIES, receives=PUSHES, deadline=inner.deadline,
        )  # fmt: skip
        self._bells = Bells(inner.comm, ranks, NOTICES, True) if workshop.policy.abandon else None
        self._snapshots = _Snapshots(inner.comm, workshop, number)

    def receive(self, until: float | None) -> Generator[None, None, Letter | None]:
        return (yield from self.port.receive(until))

    def send(self, worker: int, header: Answer, payload: np.ndarray) -> None:
        self.port.send(worker, header, payload, answered=not header.last)

    def notify(self, worker: int) -> None:
        assert self._bells is not None
        self._bells.rearm(worker)

    def busy(self, octets: int) -> Steps:
        """Here time is measured. Others' shards are looked for now and then."""
        if self.evaluator is not None:
            self._take_in(self.evaluator)
        yield from ()

    def evaluate(self, server: Server, final: bool) -> Steps:
        label = FINAL if final else server.step
        ema = None if server.ema is None else server.ema.average.copy()
        values = facts(server)
        if self.evaluator is None:
            self._snapshots.send(label, values, server.parameters, ema)
            return
        with _Pause(self.inner):
            self.evaluator.add(label, 0, server.parameters.copy(), ema, values)
        began = time.monotonic()
        while final and self.evaluator.pending:
            self._take_in(self.evaluator)
            if time.monotonic() - began > self.inner.deadline:
                return  # without it rather than not at all
            yield

    def close(self) -> None:
        """Give all requests back."""
        self.port.close()
        self._snapshots.close()
        if self._bells is not None:
            self._bells.close()

    def _take_in(self, evaluator: Evaluator) -> None:
        for number, label, values, flat, ema in self._snapshots.arrived():
            with _Pause(self.inner):
                evaluator.add(label, number, flat, ema, values)


class WorkerBench(_Bench):
    """A worker's place. `rank` and `size` are those among the workers."""

    def __init__(
        self, inner: CommunicatorSite, number: int, crew: Crew, workshop: Workshop, pace: Pace
    ):
        super().__init__(inner, number, crew)
        self.rank, self.size, self.pace = number, len(workshop.roles.workers), pace
        self.abandoned = False
        sizes = [shard.stop - shard.start for shard in workshop.shards]
        ranks = workshop.roles.servers
        self.port = Port(
            inner.comm, list(zip(ranks, sizes, strict=True)), workshop.parameters.dtype, Answer,
            self.now, sends=PUSHES, receives=REPLIES, deadline=inner.deadline,
        )  # fmt: skip
        self.port.expect()
        self._bells = Bells(inner.comm, ranks, NOTICES, False) if workshop.policy.abandon else None
        self._busy_looking = workshop.policy.abandon or bool(workshop.experiment.colocated)
        self._watched: set[int] = set()
        self._step, self._began, self._waiting_s = 0, 0.0, 0.0
        self._counters = Counters()

    def begin_step(self, step: int) -> None:
        self._step, self._began = step, self.now()
        self._counters = Counters()

    def watch(self, servers: set[int]) -> None:
        self._watched = set(servers)

    def compute(self, work: Work, samples: int, ready: Ready | None = None) -> Steps:
        began, counters = time.perf_counter(), self._counters
        self.abandoned = False
        try:
            work(self.progress, ready)
            seconds = self.pace(self.number, self._step, time.perf_counter() - began)
            if isinf(seconds):
                stragglers.die()
            self._pad(began + seconds)
        except Abandoned:
            self.abandoned = True
        counters.compute_s += time.perf_counter() - began - counters.poll_s
        self._waiting_s = self.now()
        yield from ()

    def progress(self, share: float = 0.0) -> None:
        """Look at what else this rank has to do, and whether the work is in vain."""
        if not self._busy_looking:
            return
        began = time.perf_counter()
        self.crew.look(self)
        bells = self._bells
        in_vain = bells is not None and all(map(bells.came, self._watched))
        self._counters.look(time.perf_counter() - began)
        if in_vain:
            raise Abandoned

    def updating(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def receive(self, until: float | None = None) -> Generator[None, None, Letter | None]:
        letter = yield from self.port.receive(until)
        if letter is not None and letter.header[NOTICED] and self._bells is not None:
            while not self._bells.came(letter.source):
                yield  # it was sent before the reply
            self._bells.rearm(letter.source)
        return letter

    def send(self, server: int, header: Asked, payload: np.ndarray | None) -> None:
        self.port.send(server, header, payload)

    def end_step(self, **columns: float) -> None:
        now = self.now()
        self._counters.wait_s += max(0.0, now - self._waiting_s)
        times = {"start_s": self._began, "step_s": now - self._began}
        self.inner.recorder.step(self._step, columns | times | vars(self._counters))

    def close(self) -> None:
        """Give all requests back."""
        self.port.close()
        if self._bells is not None:
            self._bells.close()

    def _pad(self, until: float) -> None:
        """Stand in for an accelerator at work."""
        while (left := until - time.perf_counter()) > 0:
            self.progress()
            time.sleep(min(left, LOOK_EVERY) if self._busy_looking else left)


class _Pause:
    """Around what does not count as training."""

    def __init__(self, inner: CommunicatorSite):
        self.inner, self.began = inner, time.perf_counter()

    def __enter__(self) -> None:
        self.began = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self.inner.paused_s += time.perf_counter() - self.began


class _Snapshots:
    """Shards on their way to server 0, where they are evaluated."""

    def __init__(self, comm: Any, workshop: Workshop, number: int):
        self.comm, self.number, self.shards = comm, number, workshop.shards
        self.ranks, self.dtype = workshop.roles.servers, workshop.parameters.dtype
        self.parts = 1 if workshop.experiment.ema is None else 2
        self._sends: list[tuple[Any, np.ndarray]] = []

    def send(
        self, label: int, values: dict[str, float], flat: np.ndarray, ema: np.ndarray | None
    ) -> None:
        """To server 0; the arrays are copied."""
        letter = self._letter(self.number)
        head, body = self._split(letter)
        head[0] = label
        head[1:] = [values[name] for name in FACTS]
        body[0] = flat
        if ema is not None:
            body[1] = ema
        request = self.comm.Isend(letter, self.ranks[0], SNAPSHOTS + self.number % 400)
        self._sends = [(r, kept) for r, kept in self._sends if not r.Test()]
        self._sends.append((request, letter))

    def arrived(self) -> Generator[tuple, None, None]:
        """(server, label, facts, shard, its average or None) of what has come."""
        for number, rank in enumerate(self.ranks):
            tag = SNAPSHOTS + number % 400
            while number and self.comm.Iprobe(rank, tag):
                letter = self._letter(number)
                self.comm.Recv(letter, rank, tag)
                head, body = self._split(letter)
                values = dict(zip(FACTS, head[1:].tolist(), strict=True))
                yield number, int(head[0]), values, body[0], body[1] if len(body) > 1 else None

    def close(self) -> None:
        """Wait until all have left."""
        wait_until(lambda: all(request.Test() for request, _ in self._sends))

    def _letter(self, number: int) -> np.ndarray:
        shard = self.shards[number]
        octets = self.parts * (shard.stop - shard.start) * self.dtype.itemsize
        return np.zeros(8 * (1 + len(FACTS)) + octets, np.uint8)

    def _split(self, letter: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        edge = 8 * (1 + len(FACTS))
        return letter[:edge].view(np.float64), letter[edge:].view(self.dtype).reshape(
            self.parts, -1
        )
