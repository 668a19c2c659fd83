"""Workers of parameter servers as real ranks."""

import time
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from math import isinf
from typing import Any

import numpy as np

from allreduce.plan import wait_until
from mpisgd.experiment import stragglers
from mpisgd.experiment.stragglers import StepTimer
from mpisgd.mpi import tags
from mpisgd.servers.messages import Answer, Message, Request
from mpisgd.servers.roles import Builder
from mpisgd.servers.worker import Reads, ServedWorker
from mpisgd.training.site import Ready, Work
from mpisgd.worlds.channels import Channel, Notices
from mpisgd.worlds.marks import Marks
from mpisgd.worlds.mpi import LOOK_BESIDE, LOOK_EVERY, CommunicatorSite
from mpisgd.worlds.mpi_servers import MpiSite, Part
from mpisgd.worlds.scheduler import Scheduler
from mpisgd.worlds.step import Abandoned, Counters

LOOK_AWAY = 0.05  # seconds between looks for a signal, of a rank that is not there
NOTICED = Answer._fields.index("noticed")
Steps = Generator[None, None, None]


class MpiWorkerSite(MpiSite):
    """A worker's place. `rank` and `size` are those among the workers."""

    def __init__(
        self,
        inner: CommunicatorSite,
        number: int,
        scheduler: Scheduler,
        builder: Builder,
        step_timer: StepTimer,
        part: Part | None = None,
    ):
        super().__init__(inner, number, scheduler, part)
        self.rank, self.size, self.step_timer = number, len(builder.roles.workers), step_timer
        self.abandoned = False
        self.reads: Reads | None = None
        self._forward: list[tuple[float, list[float], int]] = []  # of the last padded gradient
        self._marks: Marks | None = None
        self._reading_s, self._took_s = 0.0, 0.0  # in this step; the last gradient alone
        sizes = [builder.most(index) for index in range(len(builder.shards))]
        ranks = builder.roles.servers
        self.channel = Channel(
            inner.comm, list(zip(ranks, sizes, strict=True)), builder.parameters.dtype, Answer,
            self.now, sends=tags.PUSHES, receives=tags.REPLIES, deadline=inner.deadline,
        )  # fmt: skip
        self.reported = 0  # steps whose rows are on their way to the file
        self._notified = (
            Notices(inner.comm, ranks, tags.NOTICES, False, inner.deadline)
            if builder.policy.abandon
            else None
        )
        experiment = builder.experiment
        # Messages move only while somebody looks: those that are under way during a computation.
        self._mailing = experiment.push == "layerwise" or bool(experiment.prefetch)
        self._busy_looking = builder.policy.abandon or bool(experiment.colocated) or self._mailing
        self._watched: set[int] = set()
        self._step, self._began, self._waiting_s = 0, 0.0, 0.0
        self._counters = Counters(rested=-1)

    def expect(self, worker: ServedWorker) -> None:
        """Who writes first, at the start of the run or where it goes on."""
        if self.part is not None:
            self.part.join(worker)
        self.channel.expect(sorted(worker.awaited))

    def state(self) -> dict[str, Any]:
        """At a rest of several servers, while it waits."""
        times = {"step": self._step, "began_s": self._began, "waiting_s": self._waiting_s}
        return {
            "times": times, "abandoned": self.abandoned, "reported": self.reported,
            "counters": vars(self._counters),
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there: before it works."""
        times = state["times"]
        self._step, self._began = times["step"], times["began_s"]
        self._waiting_s, self._counters = times["waiting_s"], Counters(**state["counters"])
        self.abandoned, self.reported = bool(state["abandoned"]), state["reported"]

    def begin_step(self, step: int) -> None:
        self._step, self._began = step, self.now()
        self._counters = Counters(rested=-1)

    def watch(self, servers: set[int]) -> None:
        self._watched = set(servers)

    def unwatch(self, server: int) -> None:
        self._watched.discard(server)

    def compute(self, work: Work, samples: int, ready: Ready | None = None) -> Steps:
        began, counters = time.perf_counter(), self._counters
        self.inner.computing, self.abandoned, self._reading_s = True, False, 0.0
        parts = ready is not None or self.reads is not None
        stretches = parts and self.step_timer.stretches(self.number, self._step)
        marks = self._marks = Marks(self.progress) if stretches else None
        away_s = self.step_timer.away(self.number, self._step)
        try:
            self._stay_away(began + away_s)
            self._read_forward(began)
            self._took_s = self._do(work, ready)
            seconds = self.step_timer(self.number, self._step, self._took_s)
            if isinf(seconds):
                stragglers.die(f"worker {self.number}, rank {self.inner.rank},", self._step)
            start = began + self._reading_s
            if marks is not None and ready is not None:
                marks.deliver(lambda share: self._pad(start + share * seconds), ready)
            self._pad(start + seconds)
        except Abandoned:
            self.abandoned = True
        finally:
            self.inner.computing = False
        passed = time.perf_counter() - began - away_s
        counters.compute_s += passed - self._reading_s - counters.poll_s
        counters.wait_s += self._reading_s
        self._waiting_s = self.now()
        yield from ()

    def _stay_away(self, until: float) -> None:
        """Preempted, if that is to come: then what was to be computed is given up. Whoever shares
        the rank goes on."""
        away = False
        while (left := until - time.perf_counter()) > 0 and not self.asked_to_stop:
            away = True
            self.scheduler.look(self)
            time.sleep(min(left, LOOK_EVERY if self._busy_looking else LOOK_AWAY))
        if away:
            raise Abandoned

    def _do(self, work: Work, ready: Ready | None) -> float:
        """The gradient, and how long it took without what was waited for."""
        began, before, marks = time.perf_counter(), self._reading_s, self._marks
        if marks is None:
            done = work(self.progress, ready)
        else:
            done = work(marks.progress, None if ready is None else marks.ready)
            self._forward = marks.forward()
        while done is not None and not done():  # on a device: at most once in LOOK_BESIDE
            self.progress()
            time.sleep(LOOK_BESIDE)
        return time.perf_counter() - began - (self._reading_s - before)

    def needs(self, high: int) -> None:
        if self._marks is not None:
            self._marks.needs(high)
        else:
            self._read(high)

    def read(self) -> Generator[None, None, Message | None]:
        return self.channel.receive()

    def waiting(self, run: Steps) -> Steps:
        began = self.now()
        yield from run
        self._counters.wait_s += self.now() - began

    def _read_forward(self, began: float) -> None:
        """Where a step is padded: each layer's parameters when it would begin, as in the last."""
        if self.reads is not None and self._forward:
            seconds = self.step_timer(self.number, self._step, self._took_s)
            for share, _, high in self._forward if not isinf(seconds) else ():
                self._pad(began + self._reading_s + share * seconds)
                self._read(high)

    def _read(self, high: int) -> None:
        """Pull what is needed, and wait for it."""
        assert self.reads is not None
        began, run = time.perf_counter(), self.reads(high)

        def came() -> bool:
            self.progress()
            return next(run, self) is self

        wait_until(came)
        self._reading_s += time.perf_counter() - began

    def progress(self, share: float = 0.0) -> None:
        """Look at what else this rank has to do, and whether the work is in vain."""
        if not self._busy_looking:
            return
        began = time.perf_counter()
        self.scheduler.look(self)
        if self._mailing:
            self.channel.look()
        notices, watched = self._notified, self._watched
        in_vain = notices is not None and bool(watched) and all(map(notices.came, watched))
        self._counters.look(time.perf_counter() - began)
        if in_vain:
            raise Abandoned

    def updating(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def receive(self, until: float | None = None) -> Generator[None, None, Message | None]:
        message = yield from self._letter(until)
        if message is not None and message.header[NOTICED] and self._notified is not None:
            while not self._notified.came(message.source):
                yield  # it was sent before the reply
            self._notified.rearm(message.source)
        return message

    def send(self, server: int, header: Request, payload: np.ndarray | None) -> None:
        self.channel.send(server, header, payload)

    def lap(self) -> dict[str, float]:
        now = self.now()
        self._counters.wait_s += max(0.0, now - self._waiting_s)
        times = {"start_s": self._began, "step_s": now - self._began}
        return times | vars(self._counters)

    def record(self, step: int, columns: dict[str, float]) -> None:
        self.reported = step
        self.inner.recorder.step(step, columns)

    def close(self) -> None:
        """Give all requests back."""
        self.channel.close()
        if self._notified is not None:
            self._notified.close()

    def _pad(self, until: float) -> None:
        """Stand in for an accelerator at work."""
        while (left := until - time.perf_counter()) > 0:
            self.progress()
            time.sleep(min(left, LOOK_EVERY) if self._busy_looking else left)
