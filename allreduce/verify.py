"""Is a schedule an all-reduce? Played symbolically, with messages matched as MPI matches them.

The values are expressions under a commutative, non-associative a + b. A schedule is right if
every rank ends with each contribution exactly once *and* all ranks end with the same expression:
then all hold the same bits, whatever arrives when. (Sets of contributions would not do: an
all-to-all in which each rank sums in its own order passes that test.)
"""

from collections.abc import Sequence
from itertools import pairwise

from allreduce.errors import ScheduleError
from allreduce.schedule import Message, Schedule, Step


def verify(schedule: Schedule, *, rounded: bool = False) -> None:
    """ScheduleError, naming rank, round and segment, unless `schedule` is an all-reduce.

    `rounded`: also where messages have a narrower format: a rank rounds what it sends, in place,
    and all is rounded at the end (see `wire`).
    """
    verify_programs(schedule.programs(), schedule.segments, rounded=rounded)


def verify_programs(
    programs: Sequence[Sequence[Step]], segments: int, *, rounded: bool = False
) -> None:
    """The same for the steps of all ranks, as each rank would run them.

    Sends are taken as rendezvous sends: they complete only when the receive is posted, so that
    whatever passes here does not deadlock.
    """
    size = len(programs)
    for rank, steps in enumerate(programs):
        for step in steps:
            _check_step(rank, step, size, segments)
    _Play(programs, segments, rounded).run()


class _Expressions:
    """Expressions by number: 0..size-1 are the contributions, sums are made once each."""

    def __init__(self, size: int):
        self.contributions = [1 << rank for rank in range(size)]  # bit masks
        self._sums: dict[tuple[int, int], int] = {}
        self._rounded: set[int] = set()

    def rounded(self, a: int) -> int:
        """The number of a rounded; to round twice is to round once."""
        key = (a, -1)
        if a in self._rounded:
            return a
        if key not in self._sums:
            self._sums[key] = len(self.contributions)
            self._rounded.add(self._sums[key])
            self.contributions.append(self.contributions[a])
        return self._sums[key]

    def add(self, a: int, b: int) -> int | None:
        """The number of a + b, None if they share a contribution."""
        key = (a, b) if a < b else (b, a)
        known = self._sums.get(key)
        if known is None:
            mask, other = self.contributions[a], self.contributions[b]
            if mask & other:
                return None
            known = self._sums[key] = len(self.contributions)
            self.contributions.append(mask | other)
        return known


class _Play:
    """All ranks at once, each at its own step, until none can move."""

    def __init__(self, programs: Sequence[Sequence[Step]], segments: int, rounded: bool):
        self.rounded = rounded
        self.programs, self.size, self.segments = programs, len(programs), segments
        self.expressions = _Expressions(self.size)
        self.values = [[rank] * segments for rank in range(self.size)]
        self.position = [-1] * self.size
        self.open = [0] * self.size  # messages of the current step not yet matched
        self.arrived: list[list[tuple[Message, list[int]]]] = [[] for _ in programs]
        self.sent: dict[tuple[int, int, int], list[tuple[Message, list[int]]]] = {}
        self.awaited: dict[tuple[int, int, int], list[Message]] = {}
        self.ready = list(range(self.size))

    def run(self) -> None:
        while self.ready:
            rank = self.ready.pop()
            if self.position[rank] >= 0:
                self._finish_step(rank)
            self.position[rank] += 1
            if self.position[rank] < len(self.programs[rank]):
                self._post(rank)
        self._check_everybody_left()
        for rank in range(self.size) if self.rounded else ():
            self._round(rank, 0, self.segments)
        self._check_values()

    def _post(self, rank: int) -> None:
        step = self.programs[rank][self.position[rank]]
        self.open[rank] = len(step.sends) + len(step.receives)
        if not self.open[rank]:
            self.ready.append(rank)
        for send in step.sends if self.rounded else ():
            self._round(rank, send.low, send.high)
        for send in step.sends:
            payload = self.values[rank][send.low : send.high]
            key = (rank, send.peer, send.tag)
            if self.awaited.get(key):
                self._match(key, send, payload, self.awaited[key].pop(0))
            else:
                self.sent.setdefault(key, []).append((send, payload))
        for receive in step.receives:
            key = (receive.peer, rank, receive.tag)
            if self.sent.get(key):
                self._match(key, *self.sent[key].pop(0), receive)
            else:
                self.awaited.setdefault(key, []).append(receive)

    def _round(self, rank: int, low: int, high: int) -> None:
        values = self.values[rank]
        values[low:high] = [self.expressions.rounded(value) for value in values[low:high]]

    def _match(self, key, send: Message, payload: list[int], receive: Message) -> None:
        source, destination, _ = key
        if (send.low, send.high) != (receive.low, receive.high):
            raise ScheduleError(
                f"rank {source} sends segments {send.low}:{send.high} where rank {destination} "
                f"takes {receive.low}:{receive.high} ({self._where(destination)})"
            )
        self.arrived[destination].append((receive, payload))
        for rank in (source, destination):
            self.open[rank] -= 1
            if not self.open[rank]:
                self.ready.append(rank)

    def _finish_step(self, rank: int) -> None:
        values = self.values[rank]
        for receive, payload in self.arrived[rank]:
            if not receive.reduce:
                values[receive.low : receive.high] = payload
                continue
            for segment, other in zip(range(receive.low, receive.high), payload, strict=True):
                total = self.expressions.add(values[segment], other)
                if total is None:
                    raise ScheduleError(
                        f"rank {rank} counts a contribution twice in segment {segment}, from rank "
                        f"{receive.peer} ({self._where(rank)})"
                    )
                values[segment] = total
        self.arrived[rank].clear()

    def _check_everybody_left(self) -> None:
        stuck = [r for r in range(self.size) if self.position[r] < len(self.programs[r])]
        if stuck:
            waiting = [f"rank {to} for rank {by}" for (by, to, _), m in self.awaited.items() if m]
            waiting += [
                f"rank {by} to send to rank {to}" for (by, to, _), m in self.sent.items() if m
            ]
            raise ScheduleError(
                f"deadlock: {len(stuck)} ranks never finish; waiting: {', '.join(waiting[:4])}"
            )

    def _check_values(self) -> None:
        everybody = (1 << self.size) - 1
        for rank, values in enumerate(self.values):
            for segment, value in enumerate(values):
                mask = self.expressions.contributions[value]
                if mask != everybody:
                    missing = [r for r in range(self.size) if not mask >> r & 1]
                    raise ScheduleError(
                        f"rank {rank} misses the contribution of rank {missing[0]} in segment "
                        f"{segment} ({len(missing)} missing)"
                    )
                if value != self.values[0][segment]:
                    raise ScheduleError(
                        f"ranks 0 and {rank} sum segment {segment} in different orders: "
                        "their bits may differ"
                    )

    def _where(self, rank: int) -> str:
        return f"round {self.programs[rank][self.position[rank]].round}"


def _check_step(rank: int, step: Step, size: int, segments: int) -> None:
    """The rules that one step keeps by itself: ranges, peers, tags, and no hazard."""
    where = f"rank {rank}, round {step.round}"
    for peer, low, high, _, _ in (*step.sends, *step.receives):
        if not 0 <= peer < size or peer == rank:
            raise ScheduleError(f"{where}: a message to or from rank {peer} of {size}")
        if not 0 <= low < high <= segments:
            raise ScheduleError(f"{where}: segments {low}:{high} of {segments}")
    for messages in (step.sends, step.receives):
        if len(messages) > 1 and len({(m.peer, m.tag) for m in messages}) < len(messages):
            raise ScheduleError(f"{where}: two messages between one pair share a tag")
    if len(step.receives) > 1:
        written = sorted((m.low, m.high) for m in step.receives)
        for (_, end), (begin, _) in pairwise(written):
            if begin < end:
                raise ScheduleError(f"{where}: two messages write segment {begin} at once (hazard)")
    for store in (m for m in step.receives if not m.reduce):
        for send in step.sends:
            if max(store.low, send.low) < min(store.high, send.high):
                segment = max(store.low, send.low)
                raise ScheduleError(f"{where}: segment {segment} is stored while sent (hazard)")
