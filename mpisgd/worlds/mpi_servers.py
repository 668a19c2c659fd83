"""Servers and workers as real ranks: sites over channels."""

import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from typing import Any, Protocol

import numpy as np

from mpisgd.mpi import tags
from mpisgd.servers.evaluation import FINAL, Evaluator, facts
from mpisgd.servers.messages import LEADER, Answer, Message, Request, Verdict, restored, saved
from mpisgd.servers.roles import Builder
from mpisgd.servers.server import Server
from mpisgd.worlds.channels import Channel, Notices
from mpisgd.worlds.mpi import CommunicatorSite
from mpisgd.worlds.scheduler import Scheduler
from mpisgd.worlds.server_channels import Snapshots, Verdicts

Steps = Generator[None, None, None]


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


class MpiSite:
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


class MpiServerSite(MpiSite):
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
        most, flat = builder.most(number), builder.parameters.flat
        ranks = builder.roles.workers
        self.steps = [0] * len(ranks)  # of the last message of each worker
        self.verdicts = Verdicts(inner.comm, builder, number, self.now)
        self.channel = Channel(
            inner.comm, [(rank, most) for rank in ranks], flat.dtype, Request,
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

    def send(self, worker: int, header: Answer, payload: np.ndarray | None) -> None:
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


class Pause:
    """Around what does not count as training, and may take long."""

    def __init__(self, inner: CommunicatorSite):
        self.inner, self.began = inner, time.perf_counter()

    def __enter__(self) -> None:
        self.began, self.inner.evaluating = time.perf_counter(), True

    def __exit__(self, *error: object) -> None:
        self.inner.evaluating = False
        self.inner.paused_s += time.perf_counter() - self.began
