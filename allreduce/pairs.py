"""Means of pairs: which ranks meet in a round, the schedule of that, and a vector that meets
others in turn."""

from functools import partial
from typing import Any

import numpy as np

from allreduce.compress import sent
from allreduce.errors import ScheduleError
from allreduce.lowering import TAGS_PER_PLAN, lower
from allreduce.phases import Phase, Work
from allreduce.plan import Runner
from allreduce.schedule import Schedule, transfers
from allreduce.wire import Wire

DRAWS = 8  # tells the draws of pairs from all others of the seed
PAIR = Schedule(2, 1, (transfers([0, 1], [1, 0]),), "pair")


def partners(seed: int, number: int, size: int) -> np.ndarray:
    """Whom each rank meets in round `number`: (size,) int64, itself for the one that is left over
    where `size` is odd. Each perfect matching is as likely as any other; all ranks draw alike."""
    order = np.random.default_rng((seed, DRAWS, number)).permutation(size)
    one, other = order[: size - 1 : 2], order[1::2]
    met = np.arange(size)
    met[one], met[other] = other, one
    return met


def heard_by_all(seed: int, number: int, size: int, rank: int) -> int:
    """The round at whose end all know what `rank` tells in round `number`, if in each round after
    that whoever knows it tells it on."""
    knows = np.arange(size) == rank
    while True:
        knows |= knows[partners(seed, number, size)]
        if knows.all():
            return number
        number += 1


def matching(met: np.ndarray) -> Schedule:
    """Each rank and whom it meets add up what both hold; a message each way."""
    rank = np.arange(met.size)
    if not np.array_equal(met[met], rank):
        raise ScheduleError(f"pairs: {met.tolist()} are not mutual")
    rank = rank[met != rank]
    return Schedule(met.size, 1, (transfers(rank, met[rank]),), "its partner")


def across(size: int) -> np.ndarray:
    """Pairs that are half of the ranks apart, and so on other nodes where there are several."""
    half, met = size // 2, np.arange(size)
    met[:half], met[half : 2 * half] = met[half : 2 * half].copy(), met[:half].copy()
    return met


class Pairs(Runner):
    """A Plan whose sum, or mean, is over this rank and whom it `meet`s: say so before each start.

    Arguments and errors are Plan's, but that nothing is compared at the first start: ranks that
    are not met are not waited for. A rank that meets nobody keeps its values. Both of a pair end
    with the same bits. Requests and scratch are made anew for another partner.
    """

    def __init__(
        self,
        comm: Any,
        source: Any,
        result: Any = None,
        *,
        mean: bool = False,
        tag: int = 0,
        chunks: int = 1,
        deadline: float = 60.0,
        cuda_aware: bool = False,
        wire: Wire | None = None,
        error: Any = None,
    ):
        super().__init__(
            comm, "pairs", source, result, mean=mean, tag=tag, chunks=chunks, deadline=deadline
        )
        self._how = tag * TAGS_PER_PLAN, chunks, False, cuda_aware, wire, error
        self._mean = mean
        self._message_bytes = sent(wire, PAIR, self._target.size, self._target.itemsize)[0]
        self.sent_bytes = 0
        self._met = self._next = np.arange(self.size)

    def meet(self, met: np.ndarray) -> None:
        """Whom each rank meets from the next start on: (ranks,), as of `partners`."""
        self._next = met

    def post(self) -> None:
        if self._next[self.rank] != self._met[self.rank]:
            for phase in self._body:
                phase.free()
            self._body = self._phases = self._lowered(self._next)
        self._met = self._next
        self.sent_bytes = self._message_bytes if self._met[self.rank] != self.rank else 0
        super().post()

    def close(self) -> None:
        """Give all requests back; messages in flight are cancelled. Only this rank's affair."""
        self._discard(self._body)

    def _lowered(self, met: np.ndarray) -> list[Phase]:
        """This rank's part in `matching(met)`: none where it meets nobody."""
        if met[self.rank] == self.rank:
            return []
        target, memory = self._target, self._memory
        phases = lower(self.comm, matching(met), target, memory, *self._how)
        if self._mean:
            phases.append(Work(memory, [partial(memory.divide, target, PAIR.size)]))
        return phases

    def _stall(self, seconds: float) -> str:
        peers = self._phases[self._position].pending()
        waiting = "; ".join(f"{p.action} rank {p.rank}, {p.octets} B" for p in peers[:4])
        return (
            f"rank {self.rank} has waited {seconds:.3g} s for rank {self._met[self.rank]}, which "
            f"it meets ({waiting or 'device work'})"
        )


def meeting(comm: Any, source: Any, **how: Any) -> Pairs:
    """A Maker of means of `across`: to time them."""
    pairs = Pairs(comm, source, mean=True, **how)
    pairs.meet(across(pairs.size))
    return pairs
