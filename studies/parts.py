"""Training, validation and test samples of a study: the same in every run, whatever its seed."""

from dataclasses import replace

import numpy as np

from mpisgd.data import Dataset

SPLIT_SEED = 1


def parts(whole: Dataset, validation: int, samples: int) -> tuple[Dataset, Dataset]:
    """(`samples` training samples of `whole` with `validation` others as their test set, the same
    training samples with the test set of `whole`)."""
    order = np.random.default_rng(SPLIT_SEED).permutation(whole.samples)
    valid, train = order[:validation], order[validation : validation + samples]
    inputs, targets = whole.train_inputs, whole.train_targets
    final = replace(whole, train_inputs=inputs[train], train_targets=targets[train])
    return replace(final, test_inputs=inputs[valid], test_targets=targets[valid]), final
