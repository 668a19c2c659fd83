"""Evaluating the averaged model: sums over samples, in an order that all worlds share."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mpisgd.data import Dataset
from mpisgd.models import Model
from mpisgd.training.effective import effective_steps
from mpisgd.training.parameters import Parameters

if TYPE_CHECKING:
    from mpisgd.training.worker import Worker

SUMS = ("loss", "correct", "samples", "ema_loss", "ema_correct", "train_loss", "train_samples")
TRAINING = slice(5, 7)  # the last two: this rank's batches since the last evaluation

BATCH = 256  # test samples evaluated at once: bounds the scratch


def shard_sums(
    model: Model,
    dataset: Dataset,
    parameters: Parameters,
    ema: Parameters | None,
    rank: int,
    size: int,
) -> np.ndarray:
    """Sums of rank's contiguous share of the test set: (len(SUMS),) float64, the last two zero."""
    low = dataset.test_samples * rank // size
    high = dataset.test_samples * (rank + 1) // size
    sums = np.zeros(len(SUMS))
    for start in range(low, high, BATCH):
        inputs, targets = dataset.test(start, min(start + BATCH, high))
        sums[:3] += model.evaluate(parameters, inputs, targets)
        if ema is not None:
            sums[3:5] += model.evaluate(ema, inputs, targets)[:2]
    return sums


def means(model: Model, dataset: Dataset, parameters: Parameters) -> tuple[float, float]:
    """(loss, accuracy) on the whole test set."""
    found = figures(shard_sums(model, dataset, parameters, None, 0, 1), dataset.classes > 0, False)
    return found["loss"], found["accuracy"]


def row(
    sums: np.ndarray, worker: "Worker", config: Mapping[str, Any], time_s: float, step: int
) -> dict[str, Any]:
    """One row of /evaluation from the sums over all ranks; `config`: the run's settings."""
    computed, whole = worker.samples_until(step), worker.sampler.samples_until(step)
    effective = effective_steps(config, step) * (computed / whole if whole else 1.0)
    counts = {
        "step": step,
        "samples_computed": computed,
        "samples_used": computed,
        "samples_effective": whole * effective / (step or 1),
        "steps_effective": effective,
        "time_s": time_s,
    }
    return counts | figures(sums, worker.dataset.classes > 0, worker.ema is not None)


def figures(sums: np.ndarray, classes: bool, ema: bool) -> dict[str, Any]:
    """The means in a row of /evaluation. `classes`, `ema`: whether there are any."""
    named = dict(zip(SUMS, sums.tolist(), strict=True))
    samples = named["samples"] or math.nan
    values = {
        "loss": named["loss"] / samples,
        "accuracy": named["correct"] / samples if classes else math.nan,
        "train_loss": named["train_loss"] / (named["train_samples"] or math.nan),
    }
    if ema:
        values["ema_loss"] = named["ema_loss"] / samples
        values["ema_accuracy"] = named["ema_correct"] / samples
    return values
