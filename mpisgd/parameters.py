"""All parameters of a model in one flat buffer, so that one all-reduce averages them."""

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import DTypeLike

from mpisgd.errors import UsageError

DTYPES = ("float32", "float64")


class Parameters:
    """Named arrays that share one contiguous buffer, with room for `extra` elements behind them.

    buffer: (size + extra,), what an all-reduce averages; flat: its first `size` elements;
    extra: its last ones (the run's signals); views: name -> array of its shape, inside `flat`.
    """

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], dtype: DTypeLike = "float32", extra: int = 0
    ):
        """Zeros. Raises UsageError for a dtype that is not one of DTYPES."""
        self.dtype = np.dtype(dtype)
        if self.dtype.name not in DTYPES:
            raise UsageError("dtype of the parameters", self.dtype.name, " or ".join(DTYPES))
        self.shapes = MappingProxyType({name: tuple(shape) for name, shape in shapes.items()})
        self.size = sum(math.prod(shape) for shape in self.shapes.values())
        self.buffer = np.zeros(self.size + extra, self.dtype)
        self.flat = self.buffer[: self.size]
        self.extra = self.buffer[self.size :]
        self.views: dict[str, np.ndarray] = {}
        start = 0
        for name, shape in self.shapes.items():
            stop = start + math.prod(shape)
            self.views[name] = self.flat[start:stop].reshape(shape)
            start = stop

    def __getitem__(self, name: str) -> np.ndarray:
        return self.views[name]

    def like(self) -> "Parameters":
        """Zeroed parameters of the same shapes, dtype and extra: the gradient's home."""
        return Parameters(self.shapes, self.dtype, self.extra.size)
