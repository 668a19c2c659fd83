"""The pieces that networks share: products in blocks, the loss, the count of work done."""

from collections.abc import Callable
from typing import Any

import numpy as np

from allreduce.arrays import HOST, Host
from mpisgd.models import Sums

# Multiply-adds in one block of a product: about a millisecond of a core. Smaller products are not
# cut. Fixed, and the same whether or not anybody listens: how a product is cut can change its bits.
BLOCK = 1 << 25
# A block is at least this long: thin ones would spend their time on moving the other factor.
SHORTEST = 64


class Meter:
    """Turns multiply-adds done into calls of `progress` with the share done."""

    def __init__(self, progress: Callable[[float], object] | None, total: int):
        """`total`: multiply-adds of the whole step; nobody listens when `progress` is None."""
        self._progress, self._total, self._done = progress, total, 0

    def advance(self, work: int) -> None:
        self._done += work
        if self._progress is not None:
            self._progress(min(1.0, self._done / self._total))


def multiply(
    left: Any, right: Any, out: Any, meter: Meter, matmul: Callable[..., Any] = np.matmul
) -> None:
    """out = left @ right for matrices, in blocks along the longer side of `out`; `matmul`: of the
    module that they are of, of which a device gets each product whole."""
    rows, columns = out.shape
    inner = left.shape[1]
    work = rows * inner * columns
    if work <= BLOCK or matmul is not np.matmul:
        matmul(left, right, out=out)
        meter.advance(work)
        return
    longer = max(rows, columns)
    blocks = max(1, min(-(-work // BLOCK), longer // SHORTEST))
    for i in range(blocks):
        part = slice(longer * i // blocks, longer * (i + 1) // blocks)
        if columns > rows:
            np.matmul(left, right[:, part], out=out[:, part])
        else:
            np.matmul(left[part], right, out=out[part])
        meter.advance(inner * min(rows, columns) * (part.stop - part.start))


def cross_entropy(logits: Any, targets: Any, memory: Host = HOST) -> tuple[Any, Any]:
    """Softmax cross-entropy of each row, stable for logits of any size.

    logits: (rows, classes), overwritten by the probabilities; targets: (rows,) int64.
    Returns the losses (rows,) and where in the flattened `logits` each target's value lies.
    """
    rows, classes = logits.shape
    flat = logits.reshape(-1)
    xp = memory.module
    positions = xp.arange(0, rows * classes, classes)
    positions += targets
    logits -= memory.largest(logits, axis=1, keepdims=True)
    chosen = flat[positions]
    xp.exp(logits, out=logits)
    total = memory.sum(logits, axis=1, keepdims=True)
    logits /= total
    return xp.log(total[:, 0]) - chosen, positions


def evaluated(
    logits_of: Callable[[slice], Any], targets: Any, rows: int, memory: Host = HOST
) -> Sums:
    """Sums over samples, of which so many `rows` at once have `logits_of`; a sample is correct when
    the largest output is its target's."""
    loss_sum, correct = 0.0, 0
    for start in range(0, len(targets), rows):
        part = slice(start, start + rows)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            logits, wanted = logits_of(part), targets[part]
            correct += int((logits.argmax(axis=1) == wanted).sum())
            losses, _ = cross_entropy(logits, wanted, memory)
            loss_sum += float(memory.sum(losses, dtype=np.float64))
    return Sums(loss_sum, correct, len(targets))


def mean_loss(losses: Any, rows: int, memory: Host) -> Any:
    """Their mean, from a sum in float64: a number, or on a device an array (), not waited for."""
    total = memory.sum(losses, dtype=np.float64)
    return (float(total) if memory is HOST else total) / rows


class Scratch:
    """Matrices of one row per sample that are kept between calls, for any number of rows."""

    def __init__(self, widths: tuple[int, ...]):
        """One matrix (rows, width) for each of `widths`."""
        self._widths = widths
        self._storage: list[Any] = []
        self._views: list[Any] = []

    def matrices(self, rows: int, dtype: np.dtype, memory: Host = HOST) -> list[Any]:
        """Matrices (rows, width) of undefined content, valid until the next call."""
        if self._views and len(self._views[0]) == rows and self._views[0].dtype == dtype:
            return self._views
        fits = self._storage and len(self._storage[0]) >= rows and self._storage[0].dtype == dtype
        if not fits:
            self._storage = [memory.empty((rows, width), dtype) for width in self._widths]
        self._views = [matrix[:rows] for matrix in self._storage]
        return self._views
