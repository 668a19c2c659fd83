"""What an averaging algorithm may ask for, whichever world it runs in."""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np

from mpisgd.data import Dataset
from mpisgd.data.shards import Sampler
from mpisgd.models import Model
from mpisgd.optim import EMA, Optimiser
from mpisgd.parameters import Parameters
from mpisgd.worlds import Flight, Site

CONTROL = 2
"""Elements behind every averaged buffer, [not finite, asked to stop]: each mean carries them, so
that all ranks learn of a NaN or a signal at the same merge, without a message of its own."""

Steps = Generator[None, None, None]


class NotFinite(ArithmeticError):
    """A loss or gradient was not finite; every rank stops before the merge that would spread it."""


class Worker:
    """One rank's model, data and optimiser.

    `parameters`, `gradient`: Parameters with CONTROL extra elements. `step`: the last step begun,
    counted from 1; `last`: where to stop.
    """

    def __init__(
        self,
        site: Site,
        model: Model,
        dataset: Dataset,
        sampler: Sampler,
        optimiser: Optimiser,
        rate: Callable[[int], float],
        steps: int,
        parameters: Parameters,
        ema: EMA | None = None,
        evaluate_every: int = 0,
    ):
        self.site, self.rank, self.size = site, site.rank, site.size
        self.model, self.dataset, self.sampler = model, dataset, sampler
        self.optimiser, self.rate, self.ema = optimiser, rate, ema
        self.parameters, self.gradient = parameters, parameters.like()
        self.step, self.last = 0, steps
        self.evaluate_every = evaluate_every
        self.stopping = False
        self.equal = True  # all ranks hold the same parameters, by construction
        self.mean_gradient = False  # `gradient` holds the mean over ranks
        self.loss, self.samples = 0.0, 0
        self.first_not_finite = 0  # the step, 0 while all is finite
        self.loss_sum, self.loss_samples = 0.0, 0  # since the last evaluation
        self.clip: float | None = None  # the largest norm of a rank's gradient
        self.past: deque[Parameters] = deque()  # earlier parameters, see `remember`
        self.age = 0  # of the last gradient, in updates

    def steps(self) -> Iterator[int]:
        """The numbers of the steps to do."""
        while self.step < self.last and not self.stopping:
            self.step += 1
            self.site.begin_step(self.step)
            yield self.step

    def compute_gradient(
        self, weighted: bool = False, age: int = 0, ready: Callable[[int], object] | None = None
    ) -> Steps:
        """The mean gradient of this step's batch, at `parameters`, into `gradient`.

        `weighted`: times this batch's share of the global one, so that the mean over ranks is the
        mean over samples. `age`: at the parameters of so many updates ago, see `remember`.
        `ready(low)`: called during the backward pass, whenever `gradient.flat[low:]` is final;
        it cannot go with `clip`, which needs the whole.
        """
        parameters = self.past[-1 - age] if age else self.parameters
        inputs, targets = self.dataset.batch(self.indices())

        def work(progress: Callable[[float], object], told: Callable[[int], object] | None) -> None:
            self.loss = self.model.gradient(
                parameters, inputs, targets, self.gradient, progress, told
            )

        if ready is not None and weighted:
            ready = self._weighing(ready)
        yield from self.site.compute(work, len(targets), ready)
        self.samples, self.mean_gradient = len(targets), False
        self.loss_sum += self.loss * self.samples
        self.loss_samples += self.samples
        if not self.first_not_finite and not self._finite():
            self.first_not_finite = self.step
        if self.clip is not None:
            clip(self.gradient.flat, self.clip)
        self.age = age
        if weighted and ready is None:
            self._weigh(self.gradient.flat)

    def remember(self, most: int) -> None:
        """Keep the parameters as they are, and those of the `most` times before."""
        copy = self.past.popleft() if len(self.past) > most else self.parameters.like()
        copy.flat[...] = self.parameters.flat
        self.past.append(copy)

    def indices(self) -> np.ndarray:
        """The samples of this step's batch."""
        return self.sampler.indices(self.step, self.rank)

    def update(self, gradient: np.ndarray) -> None:
        """One optimiser step with `gradient` (flat)."""
        self.equal = self.equal and self.mean_gradient
        with self.site.updating():
            self.optimiser.step(self.parameters.flat, gradient, self.rate(self.step))
            if self.ema is not None:
                self.ema.update(self.parameters.flat)

    def adopt(self, mean: np.ndarray) -> None:
        """Go on from the average of all ranks' parameters, which was found to be finite."""
        with self.site.updating():
            self.parameters.flat[...] = mean
        self.equal = True

    def merge(self, rule: Callable[..., None], mean: np.ndarray, started: Any, xi: float) -> None:
        """Let a delayed average enter the parameters, by one of merges.MERGES."""
        self.equal = False
        with self.site.updating():
            rule(self.parameters.flat, mean, started, xi)

    def end_step(self) -> Steps:
        """Record the step; evaluate if it is due. Here nothing but `step` is in a local variable
        of the algorithm."""
        columns = {"staleness": self.age} if self.past else {}
        self.site.end_step(
            loss=self.loss, samples=self.samples, rate=self.rate(self.step), **columns
        )
        every = self.evaluate_every
        if (every and self.step % every == 0) or self.step == self.last or self.stopping:
            yield from self.site.evaluate(self)
            self.loss_sum, self.loss_samples = 0.0, 0

    def mean(
        self, source: Parameters, *, in_place: bool = False, keep_started: bool = False
    ) -> "Mean":
        """An average of `source` over all ranks, to be started as often as needed. Name it once,
        before the loop, in the same order on every rank."""
        return Mean(self, source, in_place, keep_started)

    def _finite(self) -> bool:
        """A sum of finite numbers is finite, but for overflow: then look at each."""
        flat = self.gradient.flat
        with np.errstate(over="ignore", invalid="ignore"):
            quick = np.isfinite(self.loss) and np.isfinite(flat.sum())
        return bool(quick or (np.isfinite(self.loss) and np.isfinite(flat).all()))

    def _weigh(self, part: np.ndarray) -> None:
        sizes = self.sampler.batch_sizes(self.step)
        if len(set(sizes)) > 1:
            share = sizes[self.rank] * self.size / sum(sizes)
            np.multiply(part, np.asarray(share, part.dtype), out=part)

    def _weighing(self, ready: Callable[[int], object]) -> Callable[[int], object]:
        """`ready`, after the part that is new has been weighed."""
        high = self.gradient.size

        def weighed(low: int) -> None:
            nonlocal high
            self._weigh(self.gradient.flat[low:high])
            high = low
            ready(low)

        return weighed


def clip(flat: np.ndarray, most: float) -> None:
    """Scale `flat` down, in place, to the norm `most` if its own is larger."""
    with np.errstate(over="ignore", invalid="ignore"):
        norm = float(np.sqrt(np.dot(flat, flat)))
    if most < norm < np.inf:
        np.multiply(flat, flat.dtype.type(most / norm), out=flat)


class Mean:
    """The average of one buffer over all ranks: `start()`, later `yield from wait()`.

    `started`: with `keep_started`, this rank's own values when it was started.
    """

    def __init__(self, worker: Worker, source: Parameters, in_place: bool, keep_started: bool):
        self.worker, self.source = worker, source
        self.result = source if in_place else source.like()
        self.started = np.empty_like(source.flat) if keep_started else None
        self.flight: Flight = worker.site.plan(
            source.buffer, None if in_place else self.result.buffer
        )

    def start(self) -> None:
        """Copy the source and begin; it may be changed at once unless the mean is in place."""
        worker = self.worker
        self.source.extra[:] = worker.first_not_finite > 0, worker.site.asked_to_stop
        if self.started is not None:
            self.started[...] = self.source.flat
        self.flight.start()

    def wait(self) -> Generator[None, None, np.ndarray]:
        """The flat average. NotFinite on every rank if any of them was not finite when it
        started; `worker.stopping` is set on every rank if any was asked to stop."""
        yield from self.worker.site.wait(self.flight)
        not_finite, stop = self.result.extra.tolist()
        if not_finite > 0:
            worker = self.worker
            steps = yield from worker.site.gather(worker.first_not_finite)
            first, rank = min((step, rank) for rank, step in enumerate(steps) if step)
            raise NotFinite(f"loss or gradient not finite on rank {rank} at step {first}")
        if stop > 0:
            self.worker.stopping = True
        self.worker.equal |= self.result is self.worker.parameters
        self.worker.mean_gradient |= self.result is self.worker.gradient
        return self.result.flat
