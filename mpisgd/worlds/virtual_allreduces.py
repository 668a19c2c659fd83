"""All-reduces of virtual ranks: evaluated once those have started it whose values it needs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from allreduce.compress import sent
from allreduce.evaluate import evaluate
from allreduce.pairs import PAIR, matching
from allreduce.schedule import Schedule
from allreduce.simulate.records import Collective
from allreduce.wire import Wire
from mpisgd.worlds.flights import Flight

if TYPE_CHECKING:
    from mpisgd.worlds.virtual import Clock


class Group:
    """The same plan of all ranks: evaluated as soon as the last one has started it."""

    def __init__(self, clock: "Clock", mean: bool, wire: Wire | None):
        self.clock, self.mean, self.wire = clock, mean, wire
        self.results: dict[int, np.ndarray] = {}
        self.errors: dict[int, np.ndarray] = {}
        self.collective: Collective | None = None

    def start(self, rank: int, result: np.ndarray, error: np.ndarray | None) -> Collective:
        """The rank's part begins, with its input in `result`."""
        clock = self.clock
        if self.collective is None:
            self.collective = clock.collective(self.wire, result)
        collective = self.collective
        clock.cluster.start(rank, collective)
        assert rank not in self.results, f"rank {rank} starts what is in flight"
        self.results[rank] = result
        if error is not None:
            self.errors[rank] = error
        if len(self.results) == clock.size:
            vectors = [self.results[rank] for rank in range(clock.size)]
            errors = [self.errors[rank] for rank in sorted(self.errors)] or None
            evaluate(clock.schedule, vectors, mean=self.mean, wire=self.wire, errors=errors)
            self.results, self.collective = {}, None
        return collective


class VirtualAllreduce(Flight):
    """One rank's end of a plan."""

    def __init__(self, group: Any, rank: int, buffer: np.ndarray, error: Any):
        self.group, self.rank, self.buffer, self.error = group, rank, buffer, error
        self.collective: Collective | None = None  # None: it has arrived before a rest
        self.began_s = self.ended_s = 0.0

    def start(self) -> None:
        self.began_s = self.group.clock.times[self.rank]
        if self.group.mean:  # else it is no average
            self.sent_bytes = self._sent(self.group.clock.schedule)[self.rank]
        self.collective = self.group.start(self.rank, self.buffer, self.error)

    def _sent(self, schedule: Schedule) -> tuple[int, ...]:
        return sent(self.group.wire, schedule, self.buffer.size, self.buffer.itemsize)

    def restore(self, state: Mapping[str, float]) -> None:
        super().restore(state)
        self.collective = None


class Pairing:
    """Means of pairs, several rounds of which may be under way: each pair's is evaluated as soon as
    both have started it, and a round's messages are one collective of all."""

    def __init__(self, clock: "Clock", mean: bool, wire: Wire | None):
        self.clock, self.mean, self.wire = clock, mean, wire
        self.rounds: dict[int, Collective] = {}
        self.waiting: dict[tuple[int, int], tuple[np.ndarray, Any]] = {}  # by round and rank

    def start(
        self, rank: int, number: int, met: np.ndarray, result: np.ndarray, error: Any
    ) -> Collective:
        """The rank's part in round `number`, in which ranks meet as `met` says."""
        clock, other = self.clock, int(met[rank])
        if number not in self.rounds:
            self.rounds[number] = clock.collective(self.wire, result, matching(met))
        collective = self.rounds[number]
        clock.cluster.start(rank, collective)
        if all(collective.started):
            del self.rounds[number]
        if (number, other) in self.waiting:
            theirs, left = self.waiting.pop((number, other))
            errors = None if error is None else [error, left]
            evaluate(PAIR, [result, theirs], mean=self.mean, wire=self.wire, errors=errors)
        elif other != rank:
            self.waiting[number, rank] = result, error
        return collective


class VirtualPair(VirtualAllreduce):
    """One rank's end of means of pairs."""

    def meet(self, number: int, met: np.ndarray) -> None:
        """Whom each rank meets at the next start, which is of round `number`."""
        self.number, self.met = number, met

    def start(self) -> None:
        self.began_s = self.group.clock.times[self.rank]
        meets = self.met[self.rank] != self.rank
        self.sent_bytes = self._sent(PAIR)[0] if meets else 0
        self.collective = self.group.start(
            self.rank, self.number, self.met, self.buffer, self.error
        )
