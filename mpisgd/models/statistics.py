"""What normalising layers remember of the batches, over all ranks.

A model's `statistics` are Parameters with NAME.mean and NAME.variance (channels,) and NAME.count
(1,), the samples seen, for each normalising layer NAME; None for models without such layers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from mpisgd.data import Dataset
from mpisgd.training.parameters import Parameters

# Where no rank's statistics are at hand, they are made from at most so many training samples, in
# batches.
ESTIMATE_BATCHES, ESTIMATE_ROWS = 16, 64
POOLED = "all ranks' means and variances, law of total variance, weighted by samples"


def forget(statistics: Parameters) -> None:
    """As if no batch had been seen: means zero, variances one, counts zero."""
    for name, view in statistics.views.items():
        view[...] = name.endswith(".variance")


def remembered(model: Any) -> dict[str, np.ndarray]:
    """Copies of a model's statistics, by name; none for a model without."""
    kept = getattr(model, "statistics", None)
    if kept is None:
        return {}
    return {name: np.array(kept.memory.get(view)) for name, view in kept.views.items()}


def moments(model: Any) -> np.ndarray:
    """Sums whose sums over ranks are those of all ranks: count mean, count (variance + mean^2) and
    count of each layer, (size,) float64 where they lie; empty for a model without statistics."""
    kept = getattr(model, "statistics", None)
    if kept is None:
        return np.zeros(0)
    sums = kept.like()
    for name in _layers(kept):
        mean, count = kept[f"{name}.mean"], kept[f"{name}.count"]
        sums[f"{name}.mean"][...] = count * mean
        sums[f"{name}.variance"][...] = count * (kept[f"{name}.variance"] + mean * mean)
        sums[f"{name}.count"][...] = count
    return sums.flat


@contextmanager
def pooled(model: Any, sums: np.ndarray) -> Iterator[None]:
    """Inside, the model has the statistics of all ranks, whose added `moments` are `sums`.

    Law of total variance: variance = mean of (variance_j + mean_j^2) - (mean of mean_j)^2, where
    means over ranks j are weighted by their counts. Layers that saw nothing stay as they are.
    """
    kept = getattr(model, "statistics", None)
    if kept is None:
        yield
        return
    own = kept.flat.copy()
    total = kept.like()
    kept.memory.put(total.flat, sums)
    for name in _layers(kept):
        count = total[f"{name}.count"]
        if count[0] > 0:
            mean = total[f"{name}.mean"] / count
            spread = total[f"{name}.variance"] / count - mean * mean
            kept[f"{name}.mean"][...] = mean
            kept[f"{name}.variance"][...] = kept.memory.module.maximum(spread, 0)
            kept[f"{name}.count"][...] = count
    try:
        yield
    finally:
        kept.flat[...] = own


@contextmanager
def estimated(model: Any, dataset: Dataset, parameters: Parameters) -> Iterator[None]:
    """Inside, the model has the statistics of the first training samples at `parameters`."""
    kept = getattr(model, "statistics", None)
    if kept is None:
        yield
        return
    own, scratch = kept.flat.copy(), parameters.like()
    forget(kept)
    try:
        for number in range(ESTIMATE_BATCHES):
            low = number * ESTIMATE_ROWS
            rows = np.arange(low, min(low + ESTIMATE_ROWS, dataset.samples))
            if len(rows):
                model.gradient(parameters, *dataset.batch(rows), scratch, lambda share: None)
        yield
    finally:
        kept.flat[...] = own


def estimate_of(dataset: Dataset) -> str:
    """What `estimated` does with `dataset`, in words."""
    samples = min(ESTIMATE_BATCHES * ESTIMATE_ROWS, dataset.samples)
    return f"estimated from {samples} training samples"


def described(model: Any, method: str) -> dict[str, str]:
    """What a result file says of them: `normalisation`, if the model has any."""
    return {} if getattr(model, "statistics", None) is None else {"normalisation": method}


def _layers(kept: Parameters) -> Iterator[str]:
    return (name.removesuffix(".count") for name in kept.views if name.endswith(".count"))
