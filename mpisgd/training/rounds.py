"""Rounds of gradients, of which each step is one: what each rank brings to it, and who counts."""

import math
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import numpy as np

from mpisgd.training.quorum import ALL, Rounds, scale

if TYPE_CHECKING:
    from mpisgd.training.worker import Worker

Steps = Generator[None, None, None]
Answer = Callable[[], Generator[None, None, bool]]


class GradientRounds(Rounds):
    """One rank's part in the rounds.

    `gradients`: that this rank brings to it; `age`: by how many updates the oldest is late.
    """

    def __init__(self, worker: "Worker", quorum: str | int, late: str):
        super().__init__(worker, worker.gradient, quorum, late)
        self.over = 0  # the last round that is over
        self._answer: Answer | None = None
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
        if self._come == self.worker.step:
            self._arrive()
        yield from self.worker.site.attend()

    def start(self) -> None:
        """With what there is; tell the neighbours."""
        if self.quorum != ALL:
            self._tell()
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

    def answer(self) -> Generator[None, None, bool]:
        """What the algorithm does at a look at which a round has begun."""
        assert self._answer is not None
        return (yield from self._answer())

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
