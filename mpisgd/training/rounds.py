"""Rounds of a partial all-reduce: who begins one, who hears of it, what each brings, who counts.

A round begins without those who are late. The rank that begins it tells its neighbours at the
distances 1, 2, 4, .. around the ring of ranks; each rank tells its own as soon as it has heard. So
all hear after ceil(log2 M) messages in a row at most, and from the first of several neighbours:
one that computes, and hears at its next look, holds up nobody but itself.
"""

import math
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import numpy as np

from mpisgd.training.mean import CONTROL, Mean
from mpisgd.training.parameters import Parameters

if TYPE_CHECKING:
    from mpisgd.training.worker import Worker

Steps = Generator[None, None, None]
Answer = Callable[[], Generator[None, None, bool]]
ALL, SOLO, MAJORITY, COUNT = "all", "solo", "majority", "count"
DRAWS = 7  # tells the draws of initiators from all others of the seed
COUNTER = 0  # the rank that counts who has come, where a number decides


class PartialMean(Mean):
    """The mean over the samples of those that contribute: each rank's place has how many its
    values stand for. `whole`: the samples of all batches of the step."""

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
    """One rank's part in the rounds, of which each step is one.

    `gradients`: that this rank brings to it; `age`: by how many updates the oldest is late.
    """

    def __init__(self, worker: "Worker", quorum: str | int, late: str):
        """`quorum`: solo, the first to come begins a round; majority, one drawn does; a number: it
        begins when so many have come; all: nobody is late. `late`: drop or add."""
        rank, size = worker.rank, worker.size
        self.worker, self._began = worker, 0  # the last round that this rank has heard of
        self._needed = quorum if isinstance(quorum, int) else 0
        word = {0: quorum, 1: SOLO, size: ALL}.get(self._needed, COUNT)
        self.quorum = str(word) if size > 1 else ALL
        gradient = worker.gradient
        self._sent = Parameters(
            gradient.shapes, gradient.dtype, CONTROL + size, memory=gradient.memory
        )
        self.mean = PartialMean(worker, self._sent, in_place=True)
        worker.means.append(self.mean)
        self._used = worker.samples_used = worker.keep("samples used", 0.0)
        adds = late == "add" and self.quorum != ALL
        self._begun_at = worker.parameters.like().buffer if adds else None
        self.over, self._come = 0, 0  # the last round that is over; that it came to in time
        self._answer: Answer | None = None
        if self.quorum != ALL:
            away = [1 << power for power in range((size - 1).bit_length())]
            self._next = [(rank + each) % size for each in away]
            self._begins = worker.site.notices([(rank - each) % size for each in away], self._next)
            others = [other for other in range(size) if other != COUNTER]
            counts = rank == COUNTER
            self._comes = worker.site.notices(others if counts else [], [] if counts else [COUNTER])
            worker.site.interrupts = self
        self.gradients = self.samples = self.age = 0
        self.loss = math.nan

    def compute_gradient(self, answer: Answer) -> Steps:
        """The step's, or one of a step before that is late, and then the step's. `answer`: what is
        done at a look at which the round has begun, and whether the gradient is computed on."""
        worker, self._answer = self.worker, answer
        while True:
            begun, at = worker.step, self._begun_at
            if at is not None:
                at[: worker.parameters.size] = worker.parameters.flat
            yield from worker.compute_gradient(weighted=True, at=at)
            if worker.site.abandoned:
                return
            self._add(begun)
            if begun == worker.step:
                self._come = begun
                return

    def gather(self) -> Steps:
        """Until the round begins; this rank says that it has come, if it has."""
        if self.quorum == ALL:
            return
        step, rank = self.worker.step, self.worker.rank
        if self._come == step:
            if self.quorum == SOLO or (self.quorum == MAJORITY and self._initiator() == rank):
                self._began = step
            elif self.quorum == COUNT and rank != COUNTER:
                self._comes.tell([COUNTER], step)
        yield from self.worker.site.attend()

    def start(self) -> None:
        """With what there is; tell the neighbours."""
        if self.quorum != ALL:
            self._began = self.worker.step
            self._begins.tell(self._next, self._began)
        if not self.gradients:
            self._sent.flat[...] = 0
        sizes = self.worker.sampler.batch_sizes(self.worker.batch_index)
        self.mean.samples, self.mean.whole = self.samples, sum(sizes)
        self.mean.start()

    def wait(self) -> Generator[None, None, Any]:
        """The mean over those that contributed (flat)."""
        flat = yield from self.mean.wait()
        self.over, self.worker.mean_gradient = self.worker.step, True
        self._used += float(self.mean.shares.sum())
        return flat

    def end(self) -> dict[str, float]:
        """The columns of /steps that the round decides; the next round has none of it."""
        columns = {
            "samples": self.samples, "loss": self.loss, "gradients": self.gradients,
            "staleness": self.age if self.gradients else -1, "used": int(self.gradients > 0),
            "contributors": int(np.count_nonzero(self.mean.shares)),
        }  # fmt: skip
        self.gradients = self.samples = self.age = 0
        self.loss = math.nan
        return columns

    def due(self) -> bool:
        """Whether the round of this step has begun, as far as this rank has heard."""
        step = self.worker.step
        if self._began < step:
            self._begins.look()
            self._comes.look()
            come = sum(heard >= step for heard in self._comes.heard.values())
            counts = self.quorum == COUNT and self.worker.rank == COUNTER
            enough = counts and come + (self._come == step) >= self._needed
            if enough or max(self._begins.heard.values()) >= step:
                self._began = step
        return self._began >= step

    def answer(self) -> Generator[None, None, bool]:
        """What the algorithm does at a look at which a round has begun."""
        assert self._answer is not None
        return (yield from self._answer())

    def awaited(self) -> str:
        """Who waits for whom."""
        who = {SOLO: "any rank", MAJORITY: f"rank {self._initiator()}, which was drawn,"}
        whom = who.get(self.quorum, f"{self._needed} of {self.worker.size} ranks")
        return f"rank {self.worker.rank} waits for {whom} to come to round {self.worker.step}"

    def _initiator(self) -> int:
        seed, step = self.worker.sampler.seed, self.worker.step
        return int(np.random.default_rng((seed, DRAWS, step)).integers(self.worker.size))

    def _add(self, begun: int) -> None:
        """The gradient that has been computed goes into this round."""
        worker, sizes = self.worker, self.worker.sampler.batch_sizes
        lies, gradient = self._sent.flat, worker.gradient.flat
        scale(gradient, sum(sizes(begun)), sum(sizes(worker.step)))
        if self.gradients:
            lies += gradient
        else:
            lies[...] = gradient
        self.age = max(self.age, worker.step - begun)
        self.gradients += 1
        self.samples, self.loss = self.samples + worker.samples, worker.loss
