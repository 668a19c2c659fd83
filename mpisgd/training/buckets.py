"""The gradient cut in buckets, so that all-reduces begin while the backward pass goes on.

Backward fills the flat gradient from its end to its beginning. Buckets are cut there, in that
order, at the borders of the model's named parameters, so that all ranks cut alike without a word.
"""

import math
from collections.abc import Generator, Mapping

import numpy as np

from mpisgd.training.parameters import Parameters
from mpisgd.training.site import PendingAllreduce
from mpisgd.training.worker import CONTROL, Worker

MOST = 64  # buckets: each is a plan with tags of its own, and MPI promises tags for about a hundred


def borders(shapes: Mapping[str, tuple[int, ...]], elements: float, most: int = MOST) -> list[int]:
    """Where buckets begin in the flat gradient: falling, the last is 0.

    A bucket is full, and the next begins, as soon as it holds `elements`; one with fewer may be
    left for the end. Not more than `most` buckets: beyond that they hold more.
    """
    sizes = [math.prod(shape) for shape in shapes.values()]
    low = high = sum(sizes)
    full = max(elements, high / most)
    lows = []
    for size in reversed(sizes):
        low -= size
        if size and high - low >= full:
            lows.append(low)
            high = low
    return lows if lows and lows[-1] == 0 else [*lows, 0]


def last_share(shapes: Mapping[str, tuple[int, ...]], elements: float) -> float:
    """Share of the gradient in the last bucket, which backward ends with: it cannot be hidden."""
    highs = [sum(math.prod(shape) for shape in shapes.values()), *borders(shapes, elements)]
    return highs[-2] / max(1, highs[0])


def exposed(worker: Worker, nbytes: int | None) -> dict[str, float]:
    """What a result file says of a run with buckets of `nbytes`; nothing of one without."""
    if nbytes is None:
        return {}
    parameters = worker.parameters
    return {"last_bucket_share": last_share(parameters.shapes, nbytes / parameters.dtype.itemsize)}


class Buckets:
    """The average of a worker's gradient over all ranks, bucket by bucket, in place.

    `start_ready(low)` starts what lies in `flat[low:]`, all but the last bucket: that one carries
    the run's signals, which are known when all is computed; `start_last()` starts it. Then
    `yield from wait()`. Nothing is in flight at the end of a step.

    `lows`: where the buckets begin, in the order in which they start.
    """

    def __init__(self, worker: Worker, nbytes: int):
        """The worker's gradient gets a new home, whose signals come first: beside the last one."""
        shapes, dtype = worker.parameters.shapes, worker.parameters.dtype
        worker.gradient = Parameters(shapes, dtype, CONTROL, leading=True)
        self.worker, self.lows = worker, borders(shapes, nbytes / dtype.itemsize)
        highs = [worker.gradient.size, *self.lows]
        flat = worker.gradient.flat
        self._early: list[PendingAllreduce] = [
            worker.site.plan(flat[low:high], None)
            for low, high in zip(self.lows[:-1], highs, strict=False)
        ]
        self._last = worker.mean(worker.gradient.head(highs[-2]), in_place=True)
        self._started = 0

    def start_ready(self, low: int) -> None:
        """`gradient.flat[low:]` is final."""
        while self._started < len(self._early) and self.lows[self._started] >= low:
            self._early[self._started].start()
            self._started += 1

    def start_last(self) -> None:
        """The whole gradient is final."""
        assert self._started == len(self._early), "the gradient was never said to be final"
        self._last.start()

    def wait(self) -> Generator[None, None, np.ndarray]:
        """The flat average, once every bucket is there. Raises as Mean.wait does."""
        for pending in self._early:
            yield from self.worker.site.wait(pending)
        self._started = 0
        yield from self._last.wait()
        self.worker.mean_gradient = True
        return self.worker.gradient.flat
