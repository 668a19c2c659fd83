"""Ranks on a network in virtual time: several all-reduces in flight, links shared in order of time.

A `Cluster` owns the time line of every rank. A rank is given one *activity* after the other:

- `compute(rank, seconds, looks)`: so much work, with looks after these amounts, or `interrupt`;
- `wait(rank, collective)`: until this rank's part of a collective is done;
- `listen(rank)`: until `wake(rank)`;
- `linger(rank)`: nothing but looks, for good or until it is given something else.

`next()` plays until an activity ends and says whose and when; then that rank is given its next.
`start(rank, collective)` and `send(...)` begin something at the rank's present time and return.

A rank makes progress only when it *looks*. A waiting, listening or lingering rank looks all the
time, a computing one at its looks, an idle one never. A look answers handshakes, adds what has
arrived and enters the next round of every collective in flight, in the order in which they were
started, for as long as it finds something to do; the seconds that takes lengthen a computation.
With progress "perfect" an engine beside the rank looks all the time, and costs the rank nothing.

A rank may have several *processes*, each with a time line, and between them nothing takes time;
`rank` is then the number of a process everywhere here.

Events are played in order of time, then of kind, then of rank; or, of processes, as planned.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any

from allreduce.errors import AllreduceError, Stalled
from allreduce.network import Network
from allreduce.schedule import Schedule
from allreduce.simulate.program import Sizes
from allreduce.simulate.records import (
    ANSWERED,
    ARRIVED,
    ASKED,
    END,
    FLOWS,
    LEFT,
    LINK,
    LOOK,
    WOKEN,
    Collective,
    Event,
    Line,
    Message,
)
from allreduce.simulate.traffic import Traffic
from allreduce.simulate.wires import Wires


class Cluster:
    """`ranks` ranks on `network`, all idle at time `began` (s).

    `seed`: of the network's noise; `made`: collectives made before, by clusters that this one
    continues, or how many clusters; `processes`: the rank of each process.
    """

    def __init__(
        self, network: Network, ranks: int, seed: int = 0, *, began: float = 0.0, made: int = 0,
        processes: Sequence[int] | None = None,
    ):  # fmt: skip
        if ranks < 1:
            raise AllreduceError(f"a cluster needs at least 1 rank, got {ranks}")
        self.network, self.time = network, began
        self._places = range(ranks) if processes is None else processes
        self.size = len(self._places)
        self._perfect = network.progress == "perfect"
        self._lines = [Line() for _ in self._places]
        for line in self._lines:
            line.watching, line.now = self._perfect, began
        self._traffic = Traffic(network, ranks, self._places, seed, made)
        self._carried = 0  # messages of no collective on their way
        self._wires = Wires(network, ranks, self._push)
        self._heap: list[tuple[float, int, int, int, Any]] = []
        self._order = count()
        self._turn = 0 if processes else 1 << 40  # times the rank, at equal times

    def collective(self, schedule: Schedule, nbytes: Sizes, **how: Any) -> Collective:
        """An all-reduce of `nbytes` bytes, to be started by each rank. `how`: as of `prepare`."""
        return self._traffic.collective(schedule, nbytes, **how)

    def now(self, rank: int) -> float:
        """The present time of a rank (s)."""
        return max(self._lines[rank].now, self.time)

    @property
    def quiet(self) -> bool:
        """Whether no message of `send` is on its way, and no rank computes or is about to go on."""
        return not self._carried and not any(
            line.looks is not None or line.leaving for line in self._lines
        )

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

    def overhead(self, one: int, other: int) -> float:
        """Seconds that a message between them takes either of the two."""
        return self.network.overhead_s if self._places[one] != self._places[other] else 0.0

    def send(self, rank: int, to: int, nbytes: int, put: Callable[[float], object]) -> None:
        """Call `put(time)` when `nbytes` bytes have got to `to`."""
        line = self._begin(rank)
        message = self._traffic.message(rank, to, nbytes, put)
        overhead = self.overhead(rank, to)
        if self._perfect:
            departs = self._occupy(rank, overhead)
        else:
            departs = line.now = self.now(rank) + overhead
        program, at_once = message.program, departs <= self.time
        if at_once and program.free:
            put(self.time)
            return
        self._carried += 1
        direct = at_once and program.path[0] and not program.handshake[0]
        (self._wires.reach if direct else self._wires.post)(message, departs)

    def compute(self, rank: int, seconds: float, looks: Iterable[float] = ()) -> None:
        """Work for `seconds`; `looks`: after how many seconds of that work it looks, ascending."""
        if not seconds >= 0:
            raise AllreduceError(f"rank {rank} computes for {seconds} s: at least 0")
        line = self._begin(rank)
        line.now = self.now(rank)
        line.looks, line.seconds, line.worked, line.looked = iter(looks), seconds, 0.0, 0.0
        self._work_on(rank, line.now)

    def looked(self, rank: int) -> float:
        """Seconds that looks, and the sums made there, have taken its computation so far."""
        return self._lines[rank].looked

    def interrupt(self, rank: int, at: float = 0.0) -> None:
        """Its computation, if it is at one, ends now, or `at` a later time; no look is planned."""
        line = self._lines[rank]
        if line.looks is not None:
            line.now = max(self.now(rank), at)
            line.busy = line.busy if self._perfect else line.now
            self._end(rank, line.now, WOKEN)

    def wait(self, rank: int, collective: Collective) -> None:
        """Until the rank's part of `collective` is done."""
        if not collective.started[rank]:
            raise AllreduceError(f"rank {rank} waits for a {collective.name} it never started")
        line = self._begin(rank)
        completion = collective.completion[rank]
        if completion is None:
            line.awaited = collective
            self._watch(rank)
        else:
            self._push(max(completion, self.now(rank)), END, rank, line.activity)

    def listen(self, rank: int, until: float = math.inf) -> None:
        """Until `wake`, at latest until the time `until` (s)."""
        line = self._begin(rank)
        line.listening = True
        self._watch(rank)
        if until < math.inf:
            self._push(max(until, line.now), END, rank, line.activity)

    def wake(self, rank: int) -> bool:
        """If it listens, it goes on now; whether it did."""
        line = self._lines[rank]
        if not line.listening:
            return False
        self._end(rank, max(self.now(rank), 0.0 if self._perfect else line.busy), WOKEN)
        return True

    def linger(self, rank: int) -> None:
        """Do nothing but look."""
        self._begin(rank)
        self._watch(rank)

    def next(self, until_quiet: bool = False) -> Event | None:
        """Plays until an activity ends, or all is quiet; None if none has. Stalled if none can."""
        while self._heap and not (until_quiet and self.quiet):
            if (event := self.play()) is not None:
                return event
        if until_quiet and self.quiet:
            return None
        for rank, line in enumerate(self._lines):
            if line.awaited is not None or line.listening:
                what = line.awaited.name if line.awaited is not None else "a message"
                raise Stalled(f"rank {rank} waits for {what}, and nothing is on its way")
        return None

    def play(self) -> Event | None:
        """Plays one event, of which there must be one; the activity it ended, if it ended one."""
        time, kind, _, rank, subject = heappop(self._heap)
        self.time = time
        if kind == FLOWS:
            self._wires.passed(time, subject)
            return None
        line = self._lines[rank]
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
            if line.leaving:
                line.leaving = False
            else:
                line.finish(self._perfect)
            line.now = time
            return Event(time, rank)
        return None

    # Activities

    def _begin(self, rank: int) -> Line:
        """The line of a rank that must be idle."""
        line = self._lines[rank]
        if line.looks is not None or line.awaited is not None or line.listening:
            raise AllreduceError(f"rank {rank} is still busy")
        return line

    def _work_on(self, rank: int, time: float) -> None:
        """Plan the next look of a computation, or its end."""
        line = self._lines[rank]
        assert line.looks is not None
        line.since = time
        look = next(line.looks, None) if line.running else None
        if look is None or look > line.seconds or self._perfect:
            self._push(time + (line.seconds - line.worked), END, rank, line.activity)
            if line.asked and not line.running:
                self._plan_look(rank)
            return
        if look < line.worked:
            raise AllreduceError(f"rank {rank} looks at {look} s, after {line.worked} s of work")
        begins = time + (look - line.worked)
        line.worked = look
        line.busy = begins + self.network.look_s
        line.looked += self.network.look_s
        self._push(line.busy, LOOK, rank, line.activity)

    def _plan_look(self, rank: int) -> None:
        """Something has come that costs nothing: a computing rank sees it at its next look."""
        line = self._lines[rank]
        assert line.looks is not None
        times = (line.since + (look - line.worked) for look in line.looks if look <= line.seconds)
        found = next((time for time in times if time >= self.time), None)
        if found is not None:
            line.planned = True
            self._push(found, LOOK, rank, line.activity)

    def _watch(self, rank: int) -> None:
        line = self._lines[rank]
        line.now, line.watching = self.now(rank), True
        if not self._perfect and (line.running or line.asked):
            self._push(line.now, LOOK, rank, line.activity)

    def _end(self, rank: int, time: float, kind: int = END) -> None:
        """The rank looks no more, and its activity ends."""
        line = self._lines[rank]
        line.finish(self._perfect)
        line.leaving = True
        self._push(time, kind, rank, line.activity)

    # Looks

    def _notify(self, rank: int) -> None:
        """Something has come for a rank; if it is busy it looks when it has finished."""
        line = self._lines[rank]
        if line.watching:
            if line.busy <= self.time:
                self._look(rank, self.time)
        elif line.looks is not None and not (line.running or line.planned):
            self._plan_look(rank)

    def _look(self, rank: int, time: float) -> None:
        line = self._lines[rank]
        if line.busy > time:
            return  # a look is planned for when it is not
        while line.asked:
            kind, message = line.asked.pop(0)
            if kind == ASKED:
                self._wires.answer(message, time)
            else:
                self._wires.depart(message, time)
        for collective in tuple(line.running):
            activity, cost = line.activity, self._advance(rank, collective, time)
            line.busy = time + cost
            line.looked += 0.0 if self._perfect else cost
            if activity != line.activity and not self._perfect:
                return  # it was waiting for this, and leaves
            if cost:
                self._push(line.busy, LOOK, rank, line.activity)
                return
        if line.planned:
            line.planned = False
        elif line.looks is not None and not self._perfect:
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
            cost += network.sum_s_per_B * program.sum_bytes[step] + program.decode_s[step]
            collective.step[rank] = step + 1
            collective.entered[rank] = False
            if step + 1 == program.first[rank + 1]:
                self._arrive(rank, collective, time + cost)
                return cost
            if cost:
                return cost

    def _arrive(self, rank: int, collective: Collective, time: float) -> None:
        line = self._lines[rank]
        collective.finish(rank, time)
        line.running.remove(collective)
        if line.awaited is collective:
            self._end(rank, time)

    def _enter(self, rank: int, collective: Collective, time: float) -> float:
        """Post the messages of a rank's step; the seconds that takes the rank."""
        step = collective.step[rank]
        collective.entered[rank] = True
        for message in collective.asking.pop(step, ()):
            self._wires.answer(message, time)
        program, overhead = collective.program, self.network.overhead_s
        coding = program.begin_s if step == program.first[rank] else 0.0
        for index, number in enumerate(program.sends[step], 1):
            coding += program.encode_s[number]
            message = Message(program, number, collective.factors[number], collective, None)
            self._wires.post(message, time + index * overhead + coding)
        return len(program.sends[step]) * overhead + coding

    # Messages

    def _shake(self, rank: int, kind: int, message: Message) -> None:
        collective = message.collective
        if kind == ASKED and collective is not None:
            step = message.program.destination_step[message.number]
            if collective.step[rank] < step or not collective.entered[rank]:
                collective.asking.setdefault(step, []).append(message)
                return
        self._lines[rank].asked.append((kind, message))
        self._notify(rank)

    def _complete(self, rank: int, kind: int, message: Message) -> None:
        """One end of a message is done."""
        collective, program = message.collective, message.program
        if collective is None:
            self._take(rank, message)
            return
        steps = program.source_step if kind == LEFT else program.destination_step
        step = steps[message.number]
        collective.missing[step] -= 1
        if not collective.missing[step] and collective.step[rank] == step:
            self._notify(rank)

    def _take(self, rank: int, message: Message) -> None:
        """A message of no collective is there; an engine takes it before the rank hears of it."""
        overhead = self.overhead(message.program.source[0], rank)
        if self._perfect and overhead and not message.taken:
            message.taken = True
            self._push(self._occupy(rank, overhead), ARRIVED, rank, message)
            return
        self._carried -= 1
        message.put(self.time)

    def _occupy(self, rank: int, seconds: float) -> float:
        """The engine beside the rank is busy for so long; until when."""
        line = self._lines[rank]
        line.busy = max(line.busy, self.now(rank)) + seconds
        self._push(line.busy, LOOK, rank, None)
        return line.busy

    def _push(self, time: float, kind: int, rank: int, subject: Any) -> None:
        heappush(self._heap, (time, kind, self._turn * rank + next(self._order), rank, subject))
