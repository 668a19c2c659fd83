"""A user's data set: what a plug-in loads."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mpisgd.data import Dataset
from mpisgd.data.arrays import KEYS, check
from mpisgd.data.split import limited
from mpisgd.values.errors import UsageError
from mpisgd.values.plugins import Plugin


def load(plugin: Plugin, options: Mapping[str, Any], samples: int | None) -> Dataset:
    """The Dataset that `plugin` returns, with its first `samples` training samples.

    Raises UsageError for what it raises, and for what is no data set.
    """
    made = plugin(**options)
    if not isinstance(made, Dataset):
        raise UsageError(plugin.option, plugin.name, f"gives no Dataset but {type(made).__name__}")
    arrays = {f"{plugin.name}: {key}": np.asarray(getattr(made, key)) for key in KEYS}
    check(arrays, "inputs of more than one number a sample, uint8 or float32")
    for place, targets in list(arrays.items())[1::2]:
        if targets.max() >= max(1, made.classes):
            allowed = f"below the number of classes, {made.classes}"
            raise UsageError(place, targets.max(), allowed)
    return limited(made, samples)
