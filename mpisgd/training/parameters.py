"""All parameters of a model in one flat buffer, so that one all-reduce averages them."""

import hashlib
import math
from collections.abc import Mapping
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from allreduce import arrays
from allreduce.arrays import HOST, Host
from mpisgd.values.errors import UsageError

DTYPES = ("float32", "float64")


class Parameters:
    """Named arrays that share one contiguous buffer, with room for `extra` elements behind them.

    buffer: (size + extra,), what an all-reduce averages; flat: its first `size` elements;
    extra: its last ones (the run's signals); views: name -> array of its shape, inside `flat`.
    `leading`: the extra elements come first instead, beside what a backward pass ends with.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        dtype: DTypeLike = "float32",
        extra: int = 0,
        *,
        leading: bool = False,
        memory: Host = HOST,
        buffer: Any = None,
    ):
        """Zeros in that memory, or what is in `buffer`, wherever it lies. Raises UsageError for a
        dtype that is none of DTYPES."""
        self.dtype = np.dtype(dtype)
        if self.dtype.name not in DTYPES:
            raise UsageError("dtype of the parameters", self.dtype.name, " or ".join(DTYPES))
        self.shapes = MappingProxyType({name: tuple(shape) for name, shape in shapes.items()})
        self.size = sum(math.prod(shape) for shape in self.shapes.values())
        self.memory = memory if buffer is None else arrays.of(buffer)
        self.buffer = memory.zeros(self.size + extra, self.dtype) if buffer is None else buffer
        self.leading = leading
        first = extra if leading else 0
        self.flat = self.buffer[first : first + self.size]
        self.extra = self.buffer[:extra] if leading else self.buffer[self.size :]
        self.views: dict[str, np.ndarray] = {}
        start = 0
        for name, shape in self.shapes.items():
            stop = start + math.prod(shape)
            self.views[name] = self.flat[start:stop].reshape(shape)
            start = stop

    def __getitem__(self, name: str) -> np.ndarray:
        return self.views[name]

    def rows(self, count: int) -> Any:
        """Zeros for so many copies of the flat values: (count, size)."""
        return self.memory.zeros((count, self.size), self.dtype)

    def parts(self, count: int) -> list["Parameters"]:
        """`count` equal pieces of the flat values, over the same memory, each with a name of its
        own; as `source` of a mean, each has the room for signals that these have."""
        edges = [self.size * i // count for i in range(count + 1)]
        pieces = []
        for low, high in pairwise(edges):
            part = Parameters({"part": (high - low,)}, self.dtype, buffer=self.flat[low:high])
            part.extra = self.extra
            pieces.append(part)
        return pieces

    def within(self, low: int, high: int) -> tuple[tuple[int, ...], ...]:
        """The shapes of those that begin in [low, high) of the flat values, in order."""
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        begins = accumulate(sizes, initial=0)
        pairs = zip(self.shapes.values(), begins, strict=False)
        return tuple(shape for shape, begin in pairs if low <= begin < high)

    def to(self, memory: Host) -> "Parameters":
        """A copy in that memory; itself where it lies there."""
        if memory is self.memory:
            return self
        extra = self.extra.size
        moved = Parameters(self.shapes, self.dtype, extra, leading=self.leading, memory=memory)
        memory.put(moved.buffer, self.memory.get(self.buffer))
        return moved

    def like(self) -> "Parameters":
        """Zeroed parameters of the same shapes, dtype and extra: the gradient's home."""
        return Parameters(
            self.shapes, self.dtype, self.extra.size, leading=self.leading, memory=self.memory
        )


def digest(flat: np.ndarray) -> str:
    """Of the bits of some parameters."""
    return hashlib.sha256(np.ascontiguousarray(arrays.of(flat).get(flat)).tobytes()).hexdigest()
