"""Rounds that begin without those who are late: who begins one, and who hears of it.

The rank that begins a round tells its neighbours at the distances 1, 2, 4, .. around the ring of
ranks; each rank tells its own as soon as it has heard. So all hear after ceil(log2 M) messages in
a row at most, and from the first of several neighbours: one that computes, and hears at its next
look, holds up nobody but itself.
"""

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import numpy as np

from mpisgd.training.mean import CONTROL, Mean
from mpisgd.training.parameters import Parameters

if TYPE_CHECKING:
    from mpisgd.training.worker import Worker

Steps = Generator[None, None, None]
ALL, SOLO, MAJORITY, COUNT = "all", "solo", "majority", "count"
DRAWS = 7  # tells the draws of initiators from all others of the seed
COUNTER = 0  # the rank that counts who has come, where a number decides


class PartialMean(Mean):
    """The mean over the samples of those that contribute: each rank's place has how many its
    values stand for. `whole`: the samples of all batches of the round."""

    samples, whole = 0, 1

    def _sign(self, share: float) -> None:
        super()._sign(share)
        places = [
            self.samples if rank == self.worker.rank else 0 for rank in range(self.shares.size)
        ]
        self.source.memory.put(self._places, places)

    def _divide_by_shares(self, means: np.ndarray) -> None:
        self.shares[:] = np.rint(means * self.worker.size)
        scale(self.result.flat, self.whole, int(self.shares.sum()))


def scale(flat: Any, whole: int, samples: int) -> None:
    """From the sum of shares of a batch of `whole` samples to the mean over `samples` of them."""
    if samples not in (0, whole):
        flat *= flat.dtype.type(whole / samples)


class Rounds:
    """One rank's part in the beginnings of rounds, each named by its step: every `every`-th.

    What interrupts a computation at its looks: a round has begun. `answer` is the heirs'.
    """

    def __init__(
        self, worker: "Worker", values: Parameters, quorum: str | int, late: str | None,
        every: int = 1,
    ):  # fmt: skip
        """`values`: like what is averaged. `quorum`: solo, the first to come begins a round;
        majority, one drawn does; a number: it begins when so many have come; all: nobody is late.
        `late`: add, or drop."""
        rank, size = worker.rank, worker.size
        self.worker, self.every = worker, every
        self._began = self._told = worker.step // every * every  # the last: heard of, told on
        self._come = 0  # the last that this rank has come to in time
        self._needed = quorum if isinstance(quorum, int) else 0
        word = {0: quorum, 1: SOLO, size: ALL}.get(self._needed, COUNT)
        self.quorum = str(word) if size > 1 else ALL
        if self.quorum != ALL:
            away = [1 << power for power in range((size - 1).bit_length())]
            self._next = [(rank + each) % size for each in away]
            self._begins = worker.site.notices([(rank - each) % size for each in away], self._next)
            others = [other for other in range(size) if other != COUNTER]
            counts = rank == COUNTER
            self._comes = worker.site.notices(others if counts else [], [] if counts else [COUNTER])
            worker.site.interrupts = self
        extra = CONTROL + size
        self._sent = Parameters(values.shapes, values.dtype, extra, memory=values.memory)
        self.mean = worker.name(PartialMean(worker, self._sent, in_place=True))
        self._used = worker.samples_used = worker.keep("samples used", 0.0)
        adds = late == "add" and self.quorum != ALL
        self._begun_at = worker.parameters.like().buffer if adds else None

    def answer(self) -> Generator[None, None, bool]:
        """What is done at a look at which a round has begun; whether the computation goes on."""
        raise NotImplementedError

    def due(self) -> bool:
        """Whether a round has begun, as far as this rank has heard, that it has not told on."""
        if self._began == self._told:
            self._begins.look()
            self._comes.look()
            opens = self._told + self.every
            come = sum(heard >= opens for heard in self._comes.heard.values())
            counts = self.quorum == COUNT and self.worker.rank == COUNTER
            enough = counts and come + (self._come >= opens) >= self._needed
            began = opens if enough else self._told
            self._began = max(began, *self._begins.heard.values())
        return self._began > self._told

    def rested(self) -> None:
        """All ranks are at the end of this step, and no notice is on its way."""
        self._began = self._told = max(self._told, self.worker.step // self.every * self.every)

    def awaited(self) -> str:
        """Who waits for whom."""
        opens = self._told + self.every
        who = {SOLO: "any rank", MAJORITY: f"rank {self._initiator(opens)}, which was drawn,"}
        whom = who.get(self.quorum, f"{self._needed} of {self.worker.size} ranks")
        rank, number = self.worker.rank, opens // self.every
        return f"rank {rank} waits for {whom} to come to round {number}"

    def _arrive(self) -> None:
        """This rank has come to the round of this step, in time."""
        self._come = step = self.worker.step
        drawn = self.quorum == MAJORITY and self._initiator(step) == self.worker.rank
        if self.quorum == SOLO or drawn:
            self._began = step
        elif self.quorum == COUNT and self.worker.rank != COUNTER:
            self._comes.tell([COUNTER], step)

    def _tell(self) -> None:
        """The neighbours that a round has begun."""
        self._told = self._began
        self._begins.tell(self._next, self._told)

    def _initiator(self, step: int) -> int:
        draws = np.random.default_rng((self.worker.sampler.seed, DRAWS, step))
        return int(draws.integers(self.worker.size))
