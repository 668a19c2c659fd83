"""What every worker does, whoever keeps its parameters: its batch, and the gradient of that."""

import math
from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from allreduce import arrays
from allreduce.arrays import Poll
from mpisgd.data import Dataset
from mpisgd.data.augment import Augment
from mpisgd.data.device import There
from mpisgd.data.shards import Sampler
from mpisgd.models import Model
from mpisgd.training.parameters import Parameters
from mpisgd.training.report import GRADIENT, LOSS, Report

Steps = Generator[None, None, None]


class GradientWorker:
    """One rank's model, data and gradient.

    `step`: the last step begun, counted from 1; `loss`, `samples`: of the last batch.
    """

    def __init__(
        self,
        site: Any,
        model: Model,
        dataset: Dataset,
        sampler: Sampler,
        parameters: Parameters,
        clip: float | None = None,
        augment: Augment | None = None,
    ):
        """`clip`: the largest norm of a rank's gradient; `augment`: what is done to a batch before
        it is used."""
        self.site, self.rank, self.size = site, site.rank, site.size
        self.model, self.dataset, self.sampler = model, dataset, sampler
        self.parameters, self.gradient = parameters, parameters.like()
        self.clip, self.augment = clip, augment
        self.step, self.stopping = 0, False
        self.loss, self.samples = 0.0, 0
        self.first_not_finite = 0  # the step, 0 while all is finite
        self.loss_sum, self.loss_samples = 0.0, 0  # since the last evaluation
        memory = parameters.memory
        self.report = Report(memory) if isinstance(memory, arrays.Device) else None
        self._reading: dict[str, Any] = {}  # what else its model's gradient is to be told

    @property
    def batch_index(self) -> int:
        """Which batch is this step's."""
        return self.step

    def compute(
        self,
        parameters: Parameters,
        ready: Callable[[int], object] | None = None,
        share: float = 1.0,
    ) -> Steps:
        """The mean gradient of this step's batch at `parameters`, times `share`, into `gradient`.

        `ready(low)`: called during the backward pass, whenever `gradient.flat[low:]` is final;
        it cannot go with `clip`, which needs the whole.
        """
        inputs, targets = self.batch(self.batch_index)

        def work(progress: Callable[[float], object], told: Callable[[int], object] | None) -> Any:
            if self.report is not None:
                self.report.begin()
            loss = self.model.gradient(
                parameters, inputs, targets, self.gradient, progress, told, **self._reading
            )
            if self.report is not None:
                return self._queue(self.report, loss, told, share)
            self.loss = loss
            return None

        if ready is not None:
            ready = self._checking(ready, share)
        yield from self.site.compute(work, len(targets), ready)
        if self._given_up():
            return
        self.samples = len(targets)
        if self.report is not None and not getattr(self.site, "abandoned", False):
            self._take_report(self.report)
        self.loss_sum += self.loss * self.samples
        self.loss_samples += self.samples
        if self.report is None:
            self._note(np.isfinite(self.loss) and (ready is not None or finite(self.gradient.flat)))
            self._shape(share if ready is None else 1.0)

    def _given_up(self) -> bool:
        """Whether there is no gradient, and nothing is to be told of it."""
        return False

    def _shape(self, share: float) -> None:
        """Clip the gradient, if asked for, and weigh it."""
        if self.clip is not None:
            clip(self.gradient.flat, self.clip)
        weigh(self.gradient.flat, share)

    def _queue(
        self, report: Report, loss: Any, ready: Callable[[int], object] | None, share: float
    ) -> Poll:
        """On a device: what is behind the gradient of the step, and what it has to tell; meanwhile
        the next batch is fetched. Whether all of it is done."""
        if ready is None:
            report.finite(GRADIENT, self.gradient.flat)
            self._shape(share)
        report.put(LOSS, loss)
        self._bring()
        done = report.send()
        if isinstance(self.dataset, There):
            self.dataset.ahead(self.sampler.indices(self.batch_index + 1, self.rank))
        return done

    def _bring(self) -> None:
        """To the host, what of the gradient is needed there."""

    def _take_report(self, report: Report) -> None:
        """What the device has told with the gradient."""
        self.loss, gradient, parameters = report.read()
        self._judge(parameters, self.step - 1)
        self._note(gradient and math.isfinite(self.loss))

    def _judge(self, parameters_finite: bool, step: int) -> None:
        """Whether the parameters were finite at the end of `step`."""
        if not parameters_finite and not self.first_not_finite:
            self.first_not_finite = step

    def indices(self) -> np.ndarray:
        """The samples of this step's batch."""
        return self.sampler.indices(self.batch_index, self.rank)

    def batch(self, batch_index: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of this rank's batch of that number, augmented if asked for."""
        inputs, targets = self.dataset.batch(self.sampler.indices(batch_index, self.rank))
        return inputs if self.augment is None else self.augment(
            inputs, batch_index, self.rank
        ), targets

    def _note(self, all_finite: bool) -> None:
        """Remember the first step where something was not."""
        if not all_finite and not self.first_not_finite:
            self.first_not_finite = self.step

    def _checking(self, ready: Callable[[int], object], share: float) -> Callable[[int], object]:
        """`ready`, after the new part was checked and weighed: later, other ranks' values are in
        it."""
        high = self.gradient.size

        def checked(low: int) -> None:
            nonlocal high
            part = self.gradient.flat[low:high]
            if self.report is None:
                self._note(finite(part))
            else:
                self.report.finite(GRADIENT, part)
            weigh(part, share)
            high = low
            ready(low)

        return checked


def finite(flat: np.ndarray) -> bool:
    """Whether all of `flat` is. A sum of squares is then, but for overflow: then look at each.

    Squares, since BLAS sums them in half the time that a plain sum takes.
    """
    xp = arrays.of(flat).module
    with np.errstate(over="ignore", invalid="ignore"):
        return math.isfinite(xp.dot(flat, flat)) or bool(xp.isfinite(flat).all())


def weigh(flat: np.ndarray, share: float) -> None:
    """Multiply in place, unless by 1."""
    if share != 1.0:
        flat *= flat.dtype.type(share)


def clip(flat: np.ndarray, most: float) -> None:
    """Scale `flat` down, in place, to the norm `most` if its own is larger."""
    memory = arrays.of(flat)
    xp = memory.module
    with np.errstate(over="ignore", invalid="ignore"):
        norm = xp.sqrt(xp.dot(flat, flat))
    if memory is not arrays.HOST:  # nobody waits to see it
        norm = norm.astype(np.float64)
        scales = (most < norm) & (norm < math.inf)
        flat *= xp.where(scales, most / norm, 1.0).astype(flat.dtype)
    elif most < (norm := float(norm)) < math.inf:
        flat *= flat.dtype.type(most / norm)
