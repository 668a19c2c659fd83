"""Servers and workers as real ranks: sites over channels."""

import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from math import isinf
from typing import Any, Protocol

import numpy as np

from mpisgd.experiment import stragglers
from mpisgd.experiment.stragglers import StepTimer
from mpisgd.mpi import tags
from mpisgd.servers.evaluation import FINAL, Evaluator, facts
from mpisgd.servers.messages import LEADER, Answer, Message, Request, Verdict, restored, saved
from mpisgd.servers.roles import Builder
from mpisgd.servers.server import Server
from mpisgd.servers.worker import ServedWorker
from mpisgd.training.site import Ready, Work
from mpisgd.worlds.channels import Channel, Notices
from mpisgd.worlds.marks import Marks
from mpisgd.worlds.mpi import LOOK_BESIDE, LOOK_EVERY, CommunicatorSite, Counters
from mpisgd.worlds.scheduler import Scheduler
from mpisgd.worlds.server_channels import Snapshots, Verdicts

NOTICED = Answer._fields.index("noticed")
Steps = Generator[None, None, None]


class Abandoned(Exception):
    """Raised inside a computation that is in vain."""


class Part(Protocol):
    """What a server or worker has to do for the whole run to be saved, while nothing comes."""

    def join(self, who: Any) -> None:
        """It is of that server or worker, which has not begun."""

    def called(self) -> bool:
        """Whether it is its turn."""

    def attend(self) -> Generator[None, None, bool]:
        """Do it; whether to wake who waits for a message, because it is to stop."""

    def conclude(self) -> Steps:
        """What is left to do for others when this one has ended."""


class _MpiSite:
    """What servers and workers have in common. `inner`: the process's place among all ranks."""

    channel: Channel

    def __init__(
        self, inner: CommunicatorSite, number: int, scheduler: Scheduler, part: Part | None
    ):
        """`part`: in the saving of a run of several servers."""
        self.inner, self.number, self.scheduler, self.part = inner, number, scheduler, part

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

    def _letter(self, until: float | None) -> Generator[None, None, Message | None]:
        """The next one, as `Port.receive` says; None, too, when it is to stop."""
        messages = self.channel.receive(until)
        while True:
            try:
                next(messages)
            except StopIteration as end:
                return end.value
            if self.part is not None and self.part.called():
                if (yield from self.part.attend()):
                    return None
                messages = self.channel.receive(until)
            yield

    def until_all_end(self, run: Steps) -> Steps:
        """That run, and what others may still want of this rank."""
        yield from run
        if self.part is not None:
            yield from self.part.conclude()


class MpiServerSite(_MpiSite):
    """A server's place. Server 0 has the `evaluator`, and `save`, which saves the run; `record`
    takes rows of /updates."""

    def __init__(
        self,
        inner: CommunicatorSite,
        number: int,
        scheduler: Scheduler,
        builder: Builder,
        record: Callable[[dict[str, float]], None],
        evaluator: Evaluator | None,
        save: Callable[[Server], Steps] | None = None,
        part: Part | None = None,
    ):
        super().__init__(inner, number, scheduler, part)
        self.record, self.evaluator, self.save = record, evaluator, save
        self.inbox: deque[Message] = deque()  # came while the run was saved
        shard, flat = builder.shards[number], builder.parameters.flat
        ranks = builder.roles.workers
        self.steps = [0] * len(ranks)  # of the last message of each worker
        self.verdicts = Verdicts(inner.comm, builder, number, self.now)
        self.channel = Channel(
            inner.comm, [(rank, shard.stop - shard.start) for rank in ranks], flat.dtype, Request,
            self.now, sends=tags.REPLIES, receives=tags.PUSHES, deadline=inner.deadline,
            beside=self.verdicts.next,
        )  # fmt: skip
        self._notified = (
            Notices(inner.comm, ranks, tags.NOTICES, True, inner.deadline)
            if builder.policy.abandon
            else None
        )
        self.snapshots = Snapshots(inner.comm, builder, number, inner.deadline)

    def expect(self, server: Server) -> None:
        """Who may write first, at the start of the run or where it goes on."""
        if self.part is not None:
            self.part.join(server)
        self.channel.expect(sorted(server.due - {message.source for message in self.inbox}))

    def receive(self, until: float | None) -> Generator[None, None, Message | None]:
        if self.inbox:
            return self.inbox.popleft()
        return (yield from self.next_letter(until))

    def next_letter(self, until: float | None) -> Generator[None, None, Message | None]:
        """The next one from a worker or server 0, behind those in the inbox."""
        message = yield from self._letter(until)
        if message is not None and message.source != LEADER:
            self.steps[message.source] = int(Request(*message.header).step)
        return message

    def state(self) -> dict[str, Any]:
        """At a rest of several servers: what has come."""
        return {"inbox": saved(self.inbox), "steps": np.array(self.steps)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there: before it serves."""
        self.inbox = deque(restored(state.get("inbox", {})))
        self.steps = state["steps"].tolist()

    def send(self, worker: int, header: Answer, payload: np.ndarray) -> None:
        self.channel.send(worker, header, payload, answered=not header.last)

    def notify(self, worker: int) -> None:
        assert self._notified is not None
        self._notified.rearm(worker)

    def announce(self, verdict: Verdict) -> None:
        self.verdicts.send(verdict)

    def busy(self, octets: int) -> Steps:
        """Here time is measured. Others' shards are looked for now and then."""
        self.take_in()
        yield from ()

    def rest(self, server: Server) -> Steps:
        if self.save is not None:
            yield from self.save(server)

    def evaluate(self, server: Server, final: bool) -> Steps:
        label = FINAL if final else server.step
        ema = None if server.ema is None else server.ema.average.copy()
        values = facts(server)
        if self.evaluator is None:
            self.snapshots.send(label, values, server.parameters, ema)
            return
        with Pause(self.inner):
            self.evaluator.add(label, 0, server.parameters.copy(), ema, values)
        began = time.monotonic()
        while final and self.evaluator.pending:
            self.take_in()
            if time.monotonic() - began > self.inner.deadline:
                return  # without it rather than not at all
            yield

    def close(self) -> None:
        """Give all requests back."""
        self.channel.close()
        self.verdicts.close()
        self.snapshots.close()
        if self._notified is not None:
            self._notified.close()

    def take_in(self) -> None:
        """The shards that others have handed in, on server 0."""
        evaluator = self.evaluator
        if evaluator is not None:
            for number, label, values, flat, ema in self.snapshots.arrived():
                with Pause(self.inner):
                    evaluator.add(label, number, flat, ema, values)


class MpiWorkerSite(_MpiSite):
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
        sizes = [shard.stop - shard.start for shard in builder.shards]
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
        self.inner.computing, self.abandoned = True, False
        marks = None
        if ready is not None and self.step_timer.stretches(self.number, self._step):
            marks = Marks(self.progress)
        try:
            if marks is None:
                done = work(self.progress, ready)
            else:
                done = work(marks.progress, marks.ready)
            while done is not None and not done():  # on a device: at most once in LOOK_BESIDE
                self.progress()
                time.sleep(LOOK_BESIDE)
            seconds = self.step_timer(self.number, self._step, time.perf_counter() - began)
            if isinf(seconds):
                stragglers.die()
            if marks is not None and ready is not None:
                marks.deliver(lambda share: self._pad(began + share * seconds), ready)
            self._pad(began + seconds)
        except Abandoned:
            self.abandoned = True
        finally:
            self.inner.computing = False
        counters.compute_s += time.perf_counter() - began - counters.poll_s
        self._waiting_s = self.now()
        yield from ()

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


class Pause:
    """Around what does not count as training, and may take long."""

    def __init__(self, inner: CommunicatorSite):
        self.inner, self.began = inner, time.perf_counter()

    def __enter__(self) -> None:
        self.began, self.inner.evaluating = time.perf_counter(), True

    def __exit__(self, *error: object) -> None:
        self.inner.evaluating = False
        self.inner.paused_s += time.perf_counter() - self.began
