"""Training and test samples of data that come without a test set: the same split in every run."""

from dataclasses import replace

import numpy as np

from mpisgd.data import DataOptions, Dataset
from mpisgd.values.errors import UsageError

# Not the run's seed: runs with other seeds must be tested on the same samples.
SEED = 20200606
HELD_BACK = 0.1


def held_back(
    inputs: np.ndarray, targets: np.ndarray, options: DataOptions
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, str]:
    """(train_inputs, train_targets, test_inputs, test_targets, description of the split).

    The test samples are the end of a fixed permutation; both parts keep the files' order.
    """
    share = HELD_BACK if options.held_back is None else options.held_back
    samples = len(targets)
    count = max(1, round(share * samples))
    if count >= samples:
        allowed = "too few to hold some back for testing"
        raise UsageError(f"{samples} samples in {options.path}", None, allowed)
    order = np.random.default_rng(SEED).permutation(samples)
    train, test = np.sort(order[:-count]), np.sort(order[-count:])
    split = f"no test files: {count} of {samples} samples held back, fixed seed {SEED}"
    return inputs[train], targets[train], inputs[test], targets[test], split


def limited(dataset: Dataset, samples: int | None) -> Dataset:
    """`dataset` with its first `samples` training samples (all, if None); the test set stays."""
    if samples is None:
        return dataset
    if samples > dataset.samples:
        allowed = f"at most the {dataset.samples} training samples there are"
        raise UsageError("--data-samples", samples, allowed)
    # Copies: a view would keep the rest in memory.
    return replace(
        dataset,
        train_inputs=dataset.train_inputs[:samples].copy(),
        train_targets=dataset.train_targets[:samples].copy(),
    )
