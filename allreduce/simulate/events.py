"""Ranks on a network in virtual time: several all-reduces in flight, links shared in order of time.

A `Cluster` owns the time line of every rank. A rank is given one *activity* after the other:

- `compute(rank, seconds, looks)`: so much work, with looks after the given amounts of it;
- `wait(rank, collective)`: until this rank's part of a collective is done;
- `listen(rank)`: until a message is in its inbox.

`next()` plays until an activity ends and says whose and when; then that rank is given its next.
`start(rank, collective)` and `send(...)` begin something at the rank's present time and return.

A rank makes progress only when it *looks*. A waiting or listening rank looks all the time, a
computing one at its looks, an idle one never. A look answers handshakes, adds what has arrived
and enters the next round of every collective in flight, in the order in which they were started,
for as long as it finds something to do; the seconds that takes lengthen a computation. With
progress "perfect" an engine beside the rank looks all the time, and costs the rank nothing.

Events are played in order of time, then of their kind, then of rank: equal runs are equal.
"""

import heapq
import math
from collections.abc import Iterable
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from allreduce.errors import AllreduceError, Stalled
from allreduce.network import Network
from allreduce.schedule import Schedule
from allreduce.simulate.columns import lognormal
from allreduce.simulate.program import Program, prepare, single
from allreduce.simulate.records import (
    ANSWERED,
    ARRIVED,
    ASKED,
    END,
    FLOWS,
    LEFT,
    LINK,
    LOOK,
    Collective,
    Line,
    Message,
)
from allreduce.simulate.wires import Wires

_LETTERS = 2**32 - 1  # the noise of messages that belong to no collective


class Event(NamedTuple):
    """An activity of `rank` has ended at `time` (s)."""

    time: float
    rank: int


class Cluster:
    """`ranks` ranks on `network`, all idle at time `began` (s).

    `seed` is that of the network's noise; `made`: collectives made before, by the cluster that
    this one continues.
    """

    def __init__(
        self, network: Network, ranks: int, seed: int = 0, *, began: float = 0.0, made: int = 0
    ):
        if ranks < 1:
            raise AllreduceError(f"a cluster needs at least 1 rank, got {ranks}")
        self.network, self.size, self.time = network, ranks, began
        self._perfect = network.progress == "perfect"
        self._ranks = [Line() for _ in range(ranks)]
        for rank in self._ranks:
            rank.watching, rank.now = self._perfect, began
        self._seed, self._made = seed, count(made)
        self._letters = np.random.default_rng([seed, _LETTERS])
        self._any_letters = False
        self._programs: dict[tuple, Program] = {}
        self._wires = Wires(network, ranks, self._push)
        self._heap: list[tuple[float, int, int, int, Any]] = []
        self._order = count()

    def collective(
        self, schedule: Schedule, nbytes: int, *, itemsize: int = 1, chunks: int = 1
    ) -> Collective:
        """An all-reduce of `nbytes` bytes in elements of `itemsize`, to be started by each rank."""
        if schedule.size != self.size:
            raise AllreduceError(f"{schedule.name} is for {schedule.size} ranks, not {self.size}")
        key = (schedule, nbytes, itemsize, chunks)
        if key not in self._programs:
            self._programs[key] = prepare(schedule, nbytes, self.network, itemsize, chunks)
        program = self._programs[key]
        generator = np.random.default_rng([self._seed, next(self._made)])
        factors = lognormal(generator, self.network.noise, len(program.source)).tolist()
        return Collective(program, factors, schedule.name)

    def now(self, rank: int) -> float:
        """The present time of a rank (s)."""
        return max(self._ranks[rank].now, self.time)

    def inbox(self, rank: int) -> list[Any]:
        """The tokens of messages that have come to a rank since it last asked, in their order."""
        line = self._ranks[rank]
        tokens, line.inbox = line.inbox, []
        return tokens

    def start(self, rank: int, collective: Collective) -> None:
        """The rank enters the first round now."""
        if collective.started[rank]:
            raise AllreduceError(f"rank {rank} has already started this {collective.name}")
        collective.started[rank] = True
        line, now = self._begin(rank), self.now(rank)
        if collective.step[rank] == collective.program.first[rank + 1]:
            collective.finish(rank, now)
            return
        line.running.append(collective)
        if self._perfect:
            self._push(now, LOOK, rank, None)
        else:
            line.now = now + self._enter(rank, collective, now)

    def send(self, rank: int, to: int, nbytes: int, token: Any) -> None:
        """`token` is put into the inbox of rank `to` when `nbytes` bytes have got there."""
        line = self._begin(rank)
        self._any_letters = True
        key = (rank, to, nbytes)
        if key not in self._programs:
            self._programs[key] = single(rank, to, nbytes, self.network, self.size)
        program = self._programs[key]
        factor = float(lognormal(self._letters, self.network.noise, 1)[0])
        line.now = self.now(rank) + self.network.overhead_s
        self._post(Message(program, 0, factor, None, token), line.now)

    def compute(self, rank: int, seconds: float, looks: Iterable[float] = ()) -> None:
        """Work for `seconds`; `looks`: after how many seconds of that work it looks, ascending."""
        if not seconds >= 0:
            raise AllreduceError(f"rank {rank} computes for {seconds} s: at least 0")
        line = self._begin(rank)
        line.now = self.now(rank)
        line.looks, line.seconds, line.worked = iter(looks), seconds, 0.0
        self._work_on(rank, line.now)

    def wait(self, rank: int, collective: Collective, until: float = math.inf) -> None:
        """Until the rank's part of `collective` is done, at latest until the time `until` (s)."""
        if not collective.started[rank]:
            raise AllreduceError(f"rank {rank} waits for a {collective.name} it never started")
        line = self._begin(rank)
        completion = collective.completion[rank]
        if completion is None:
            line.awaited = collective
        self._watch(rank, completion, until)

    def listen(self, rank: int, until: float = math.inf) -> None:
        """Until the inbox of the rank is not empty, at latest until the time `until` (s)."""
        line = self._begin(rank)
        line.listening = not line.inbox
        self._watch(rank, self.now(rank) if line.inbox else None, until)

    def next(self) -> Event | None:
        """Plays until an activity ends; None if no rank has one. Stalled if none can ever end."""
        while self._heap:
            event = self.play()
            if event is not None:
                return event
        for rank, line in enumerate(self._ranks):
            if line.awaited is not None or line.listening:
                what = line.awaited.name if line.awaited is not None else "a message"
                raise Stalled(f"rank {rank} waits for {what}, and nothing is on its way")
        return None

    def play(self) -> Event | None:
        """Plays one event, of which there must be one; the activity it ended, if it ended one."""
        time, kind, rank, _, subject = heapq.heappop(self._heap)
        self.time = time
        if kind == FLOWS:
            self._wires.passed(time, subject)
            return None
        line = self._ranks[rank]
        if kind == LINK:
            self._wires.reach(subject, time)
        elif kind in (LEFT, ARRIVED):
            self._complete(rank, kind, subject)
        elif kind in (ASKED, ANSWERED):
            self._shake(rank, kind, subject)
        elif kind == LOOK:
            if self._perfect or subject == line.activity:
                self._look(rank, time)
        elif subject == line.activity:
            if line.busy > time and not self._perfect:
                self._push(line.busy, END, rank, subject)  # a time-out during a sum
                return None
            self._finish(line)
            line.now = time
            return Event(time, rank)
        return None

    # Activities

    def _begin(self, rank: int) -> Line:
        """The line of a rank that must be idle."""
        line = self._ranks[rank]
        if line.looks is not None or line.awaited is not None or line.listening:
            raise AllreduceError(f"rank {rank} is still busy")
        return line

    def _finish(self, line: Line) -> None:
        """The rank is idle: nothing planned for it is valid any more."""
        line.activity += 1
        line.looks = line.awaited = None
        line.listening = False
        line.watching = self._perfect

    def _work_on(self, rank: int, time: float) -> None:
        """Plan the next look of a computation, or its end."""
        line = self._ranks[rank]
        assert line.looks is not None
        idle = not line.running and not self._any_letters
        look = None if self._perfect or idle else next(line.looks, None)
        if look is None or look > line.seconds:
            self._push(time + (line.seconds - line.worked), END, rank, line.activity)
            return
        if look < line.worked:
            raise AllreduceError(f"rank {rank} looks at {look} s, after {line.worked} s of work")
        begins = time + (look - line.worked)
        line.worked = look
        cost = self.network.look_s if line.running else 0.0
        line.busy = begins + cost
        self._push(line.busy, LOOK, rank, line.activity)

    def _watch(self, rank: int, end: float | None, until: float) -> None:
        line = self._ranks[rank]
        line.now = self.now(rank)
        if end is not None or until < math.inf:
            soonest = until if end is None else min(end, until)
            self._push(max(soonest, line.now), END, rank, line.activity)
        if end is None and not self._perfect:
            line.watching = True
            self._push(line.now, LOOK, rank, line.activity)

    def _end(self, rank: int, time: float) -> None:
        """The rank has what it was waiting for: it looks no more, and its activity ends."""
        line = self._ranks[rank]
        self._finish(line)
        self._push(time, END, rank, line.activity)

    # Looks

    def _notify(self, rank: int) -> None:
        """Something has come for a rank; if it is busy it looks when it has finished."""
        line = self._ranks[rank]
        if line.watching and line.busy <= self.time:
            self._look(rank, self.time)

    def _look(self, rank: int, time: float) -> None:
        line = self._ranks[rank]
        if line.busy > time:
            return  # a look is planned for when it is not
        while line.asked:
            kind, message = line.asked.pop(0)
            if kind == ASKED:
                self._answer(message, time)
            else:
                self._wires.depart(message, time)
        for collective in tuple(line.running):
            activity, cost = line.activity, self._advance(rank, collective, time)
            line.busy = time + cost
            if activity != line.activity and not self._perfect:
                return  # it was waiting for this, and leaves
            if cost:
                self._push(line.busy, LOOK, rank, line.activity)
                return
        if line.looks is not None and not self._perfect:
            self._work_on(rank, time)

    def _advance(self, rank: int, collective: Collective, time: float) -> float:
        """Do what can be done for one collective, up to the first thing that takes time: its
        seconds."""
        program, network = collective.program, self.network
        while True:
            step = collective.step[rank]
            if not collective.entered[rank]:
                cost = self._enter(rank, collective, time)
                if cost:
                    return cost
            if collective.missing[step]:
                return 0.0
            cost = network.overhead_s * program.receives[step]
            cost += network.sum_s_per_B * program.sum_bytes[step]
            collective.step[rank] = step + 1
            collective.entered[rank] = False
            if step + 1 == program.first[rank + 1]:
                self._arrive(rank, collective, time + cost)
                return cost
            if cost:
                return cost

    def _arrive(self, rank: int, collective: Collective, time: float) -> None:
        line = self._ranks[rank]
        collective.finish(rank, time)
        line.running.remove(collective)
        if line.awaited is collective:
            self._end(rank, time)

    def _enter(self, rank: int, collective: Collective, time: float) -> float:
        """Post the messages of a rank's step; the seconds that takes the rank."""
        step = collective.step[rank]
        collective.entered[rank] = True
        for message in collective.asking.pop(step, ()):
            self._answer(message, time)
        sends, overhead = collective.program.sends[step], self.network.overhead_s
        for index, number in enumerate(sends, 1):
            factor = collective.factors[number]
            message = Message(collective.program, number, factor, collective, None)
            self._post(message, time + index * overhead)
        return len(sends) * overhead

    # Messages

    def _post(self, message: Message, time: float) -> None:
        if message.program.handshake[message.number]:
            self._wires.later(message, time, ASKED, message.program.destination)
        else:
            self._wires.depart(message, time)

    def _shake(self, rank: int, kind: int, message: Message) -> None:
        collective = message.collective
        if kind == ASKED and collective is not None:
            step = message.program.destination_step[message.number]
            if collective.step[rank] < step or not collective.entered[rank]:
                collective.asking.setdefault(step, []).append(message)
                return
        self._ranks[rank].asked.append((kind, message))
        self._notify(rank)

    def _answer(self, message: Message, time: float) -> None:
        self._wires.later(message, time, ANSWERED, message.program.source)

    def _complete(self, rank: int, kind: int, message: Message) -> None:
        """One end of a message is done."""
        collective, program = message.collective, message.program
        if collective is None:
            if kind == ARRIVED:
                line = self._ranks[rank]
                line.inbox.append(message.token)
                if line.listening:
                    self._end(rank, max(self.time, line.busy) + self.network.overhead_s)
            return
        steps = program.source_step if kind == LEFT else program.destination_step
        step = steps[message.number]
        collective.missing[step] -= 1
        if not collective.missing[step] and collective.step[rank] == step:
            self._notify(rank)

    def _push(self, time: float, kind: int, rank: int, subject: Any) -> None:
        heapq.heappush(self._heap, (time, kind, rank, next(self._order), subject))
