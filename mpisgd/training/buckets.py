"""The gradient cut in buckets, so that all-reduces begin while the backward pass goes on.

Backward fills the flat gradient from its end to its beginning. Buckets are cut there, in that
order, at the borders of the model's named parameters, so that all ranks cut alike without a word.
"""

import math
from collections.abc import Mapping

from mpisgd.training.parameters import Parameters

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


def exposed(parameters: Parameters, nbytes: int | None) -> dict[str, float]:
    """What a result file says of a run with buckets of `nbytes`; nothing of one without."""
    if nbytes is None:
        return {}
    return {"last_bucket_share": last_share(parameters.shapes, nbytes / parameters.dtype.itemsize)}
