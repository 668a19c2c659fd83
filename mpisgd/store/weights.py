"""What a run has learned, as its result file keeps it: one column of numbers, and in /summary the
name and shape of each array in it. float32 and float64 are float64 without loss."""

import hashlib
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

COLUMN = "parameters/values"
ARRAYS = "arrays"  # of /summary: the dtype, and shapes by name of both kinds
KINDS, DTYPES = ("parameters", "statistics"), ("float32", "float64")


class Weights(NamedTuple):
    """The averaged model as it was evaluated last. `parameters`: name -> array; `statistics`: what
    normalising layers remember of all ranks' batches, NAME.mean, .variance and .count."""

    parameters: Mapping[str, np.ndarray]
    statistics: Mapping[str, np.ndarray] = {}

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """All of them, parameters first."""
        return {**self.parameters, **self.statistics}

    def values(self) -> np.ndarray:
        """One behind the other (elements,) float64."""
        flat = [np.ravel(array).astype(np.float64) for array in self.arrays.values()]
        return np.concatenate([np.zeros(0), *flat])

    def described(self) -> dict[str, Any]:
        """What /summary says of them."""
        dtype = next((str(array.dtype) for array in self.parameters.values()), "float32")
        shapes = {kind: {name: list(array.shape) for name, array in getattr(self, kind).items()}
                  for kind in KINDS}  # fmt: skip
        return {ARRAYS: {"dtype": dtype, **shapes}}


def digest_of(parameters: Mapping[str, np.ndarray]) -> str:
    """That of their bits one behind the other: `parameters_sha256` of /summary."""
    whole = hashlib.sha256()
    for array in parameters.values():
        whole.update(np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()


def restored(told: Any, values: np.ndarray) -> Weights | None:
    """From what /summary says of `values`; None where the two do not fit each other."""
    try:
        found: dict[str, dict[str, np.ndarray]] = {kind: {} for kind in KINDS}
        low, dtypes = 0, (DTYPES[DTYPES.index(told["dtype"])], "float64")
        for kind, dtype in zip(KINDS, dtypes, strict=True):
            for name, shape in told[kind].items():
                high = low + math.prod(shape)
                found[kind][str(name)] = values[low:high].reshape(shape).astype(dtype)
                low = high
        fits = low == len(values)
    except (LookupError, TypeError, ValueError, AttributeError):
        return None
    return Weights(**found) if fits else None
