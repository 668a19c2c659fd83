"""What a server takes an optimiser step with: the mean of some gradients, in a fixed order."""

from collections.abc import Sequence

import numpy as np

from mpisgd.servers.messages import Push


def mean(
    ordered: Sequence[Push], weights: Sequence[float] | None, total: np.ndarray, scratch: np.ndarray
) -> np.ndarray:
    """Over samples, (shard,), in that order of gradients; a single one is taken as it is.

    `weights`: as `weights` gives them; `total`, `scratch`: (shard,) to compute in.
    """
    if ordered[0].at is not None:
        return _of_parts(ordered, weights, total)
    if weights is not None:
        total[...] = 0
        for push, weight in zip(ordered, weights, strict=True):
            np.multiply(push.gradient, weight, out=scratch)
            np.add(total, scratch, out=total)
        return total
    first, *others = (push.gradient for push in ordered)
    if not others:
        return first
    np.add(first, others[0], out=total)
    for other in others[1:]:
        np.add(total, other, out=total)
    return np.divide(total, total.dtype.type(len(ordered)), out=total)


def _of_parts(
    ordered: Sequence[Push], weights: Sequence[float] | None, total: np.ndarray
) -> np.ndarray:
    """The same of gradients that are zero but for some elements: equal sums, in the same order."""
    total[...] = 0
    for push, weight in zip(ordered, weights or [1.0] * len(ordered), strict=True):
        total[push.at] += push.gradient * total.dtype.type(weight)
    if weights is None and len(ordered) > 1:
        np.divide(total, total.dtype.type(len(ordered)), out=total)
    return total


def weights(ordered: Sequence[Push], version: int, by_staleness: bool) -> list[float] | None:
    """What each counts at a shard of that version; a stale one may count less. None: all the same,
    and their sum is 1."""
    samples = [push.samples for push in ordered]
    total = sum(samples)
    found = [count / total for count in samples] if len(set(samples)) > 1 else None
    if not by_staleness:
        return found
    shares = found or [1 / len(ordered)] * len(ordered)
    ages = (max(1, version - push.version) for push in ordered)
    return [share / age for share, age in zip(shares, ages, strict=True)]
