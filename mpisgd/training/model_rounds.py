"""Rounds of models, one every tau steps: who is late joins with nothing, or with what it has."""

import math
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import numpy as np

from mpisgd.training.quorum import ALL, Rounds

if TYPE_CHECKING:
    from mpisgd.training.worker import Worker

Steps = Generator[None, None, None]
NO_GRADIENT = {"samples": 0, "loss": math.nan, "gradients": 0, "staleness": -1}


class ModelRounds(Rounds):
    """One rank's part in averages of parameters that begin without those who are late.

    A rank is late when a round has begun and it has not started its part. The steps that it has
    not done by then it skips. Its model counts by the samples behind it since it started the last
    one: with `late` = drop by none. `started`: the values that it came with, if they are kept.
    """

    def __init__(
        self, worker: "Worker", tau: int, quorum: str | int, late: str | None,
        keep_started: bool = False,
    ):  # fmt: skip
        super().__init__(worker, worker.parameters, quorum, late, tau)
        self.steps, self.late = worker.steps(), late
        self.started = worker.keep("started", worker.parameters.flat) if keep_started else None
        self._behind = worker.keep("samples of the round", 0.0)
        self._missed = 0.0  # samples, of the round whose mean has come in this step
        self._started = self._began  # the last round that this rank has a part in
        self._skipped = False  # a step since then
        self._met = 0  # the last step behind whose update nothing is left to do
        self._meet: Callable[[], Steps] | None = None
        self._row: dict[str, float] = dict(NO_GRADIENT)
        self._round: dict[str, float] = {}

    def compute_gradient(self, meet: Callable[[], Steps]) -> Generator[None, None, bool]:
        """That of this step, or with `add` one of a step before in place of it; whether there is
        one. `meet`: what follows on a step's update, also where a late rank skips the step."""
        worker, at, self._meet = self.worker, self._begun_at, meet
        if self.quorum != ALL and self.due():
            self._tell()
        if self._is_late:
            self._skip()
            return False
        begun = worker.step
        if at is not None:
            at[: worker.parameters.size] = worker.parameters.flat
        yield from worker.compute_gradient(at=at)
        if worker.site.abandoned:
            if self._met < worker.step:  # else the answer has skipped it, and met
                self._skip()
            return False
        self._take(worker.step - begun)
        return True

    def finish_step(self) -> Steps:
        """What follows on the step's update, unless that is done; the step's row."""
        assert self._meet is not None
        worker = self.worker
        if self._met < worker.step:
            self._met = worker.step
            yield from self._meet()
        until = worker.sampler.samples_until
        self._used += until(worker.step) - until(worker.step - 1) - self._missed
        self._missed = 0.0
        columns, self._row, self._round = self._row | self._round, dict(NO_GRADIENT), {}
        yield from worker.end_step(**columns)

    def start(self) -> None:
        """The round of this step, with what there is; who is not late says that it has come."""
        worker, flat = self.worker, self.worker.parameters.flat
        if self.quorum != ALL:
            if not self._is_late:
                self._arrive()
            if self.due():
                self._tell()
        counts = self.late == "add" or not self._skipped
        # Who has come in time without a sample counts as one: else there might be none at all.
        samples = int(self._behind[0]) if self._skipped else max(1, int(self._behind[0]))
        self.mean.samples, self.mean.whole = counts * samples, self._whole(worker.step)
        share = self.mean.samples * worker.size / self.mean.whole
        with worker.site.updating():
            if self.started is not None:
                self.started[...] = flat
            self._sent.memory.module.multiply(flat, flat.dtype.type(share), out=self._sent.flat)
        self._started, self._skipped, self._behind[0] = worker.step, False, 0.0
        self.mean.start()

    def wait(self, delay: int = 0) -> Generator[None, None, Any]:
        """The mean over those that have a part in the round of `delay` steps ago (flat)."""
        step = self.worker.step - delay
        while self.quorum != ALL and self._told < step and not self.mean.arrived:
            yield from self.worker.site.attend()
            self._tell()
        flat = yield from self.mean.wait()
        shares = self.mean.shares
        self._missed = self._whole(step) - float(shares.sum())
        self._round = {
            "used": int(shares[self.worker.rank] > 0),
            "contributors": int(np.count_nonzero(shares)),
        }
        return flat

    def answer(self) -> Generator[None, None, bool]:
        """Tell on that a round has begun. Who is late skips its steps up to that, and goes on with
        the gradient of `late` = add."""
        self._tell()
        while self._is_late:
            if self.late != "add" or self.worker.pauses():
                return False
            self._skip()
            self._met = self.worker.step
            assert self._meet is not None
            yield from self._meet()
            if self.worker.pauses():
                return False
            yield from self.finish_step()
            next(self.steps)
        return True

    @property
    def _is_late(self) -> bool:
        return self._began > self._started

    def _skip(self) -> None:
        self._skipped, self.worker.equal = True, False

    def _take(self, age: int) -> None:
        """The gradient of this step, begun `age` steps ago, is there."""
        worker = self.worker
        self._behind += worker.samples
        self._row = {
            "samples": worker.samples, "loss": worker.loss, "gradients": 1, "staleness": age
        }  # fmt: skip

    def _whole(self, step: int) -> int:
        """Samples of all batches of the round of that step."""
        until = self.worker.sampler.samples_until
        return until(step) - until(step - self.every)
