"""A cluster whose network takes no time: an all-reduce arrives when its last rank has started."""

import heapq
from collections.abc import Hashable, Sequence

from allreduce.schedule import Schedule


class InstantCluster:
    """See clock.Cluster. Ranks whose actions end together go on in order of rank."""

    def __init__(self, size: int):
        self.size = size
        self.times = [0.0] * size
        self._events: list[tuple[float, int]] = []
        self._started: dict[Hashable, list[float]] = {}
        self._waiting: dict[Hashable, list[int]] = {}

    def compute(self, rank: int, seconds: float, looks: Sequence[float]) -> None:
        heapq.heappush(self._events, (self.times[rank] + seconds, rank))

    def start(self, rank: int, flight: Hashable, schedule: Schedule, nbytes: int) -> None:
        started = self._started.setdefault(flight, [])
        started.append(self.times[rank])
        if len(started) == self.size:
            for waiting in self._waiting.pop(flight, []):
                self._arrive(waiting, flight)

    def wait(self, rank: int, flight: Hashable) -> None:
        if len(self._started[flight]) == self.size:
            self._arrive(rank, flight)
        else:
            self._waiting.setdefault(flight, []).append(rank)

    def next(self) -> tuple[float, int] | None:
        if not self._events:
            return None
        time, rank = heapq.heappop(self._events)
        self.times[rank] = time
        return time, rank

    def _arrive(self, rank: int, flight: Hashable) -> None:
        heapq.heappush(self._events, (max(self.times[rank], *self._started[flight]), rank))
