"""Images of a batch as planes with zero borders, and the scratch that networks work in.

Channels come first, then samples: a layer's output is one matrix product, and a channel's values
lie together for sums over the batch. Each image has one line and one column of zeros behind it,
which are the border of its successor as well, so that a pixel's neighbours lie at fixed distances
and all shifted images are one contiguous piece of memory.
"""

import math
import threading
from collections.abc import Callable
from typing import Any

from allreduce import arrays

# NumPy's or CuPy's: what is done to them are ufuncs, methods and slices, which both have.
Array = Any


class Planes:
    """(channels, rows, height, width) pixels in one buffer.

    padded: (channels, rows, height + 1, width + 1), the last line and column zero; inner: the
    pixels in it; flat and matrix: `padded` as (elements,) and as (channels, elements of a channel).
    """

    def __init__(self, buffer: Array, channels: int, rows: int, height: int, width: int) -> None:
        """`buffer`: of `elements((channels, ...))` elements, of any content."""
        self.channels, self.rows, self.height, self.width = channels, rows, height, width
        self.margin = width + 2  # the border before the first image and behind the last
        self.buffer = buffer
        self.flat = self.shifted(0, 0)
        self.padded = self.flat.reshape(channels, rows, height + 1, width + 1)
        self.inner = self.padded[:, :, :height, :width]
        self.matrix = self.flat.reshape(channels, -1)

    @staticmethod
    def elements(shape: tuple[int, ...]) -> int:
        """How many elements a buffer for (channels, rows, height, width) needs."""
        channels, rows, height, width = shape
        return channels * rows * (height + 1) * (width + 1) + 2 * (width + 2)

    @property
    def pixels(self) -> int:
        """Of one channel in all rows."""
        return self.rows * self.height * self.width

    def shifted(self, down: int, right: int) -> Array:
        """`flat` as seen from so many lines further down and columns to the right, each -1 .. 1."""
        start = self.margin + down * (self.width + 1) + right
        return self.buffer[start : len(self.buffer) - 2 * self.margin + start]

    def clear(self) -> None:
        """Zero the borders, which products and sums over whole planes have filled."""
        self.padded[:, :, self.height] = 0
        self.padded[:, :, :, self.width] = 0
        self.buffer[: self.margin] = 0
        self.buffer[len(self.buffer) - self.margin :] = 0


class Workspace(threading.local):
    """Scratch by name, kept between calls: fresh memory costs more than most work on it.

    One for each thread and shared by its models, so that many virtual ranks need the memory, and
    the cache, of one. Nothing in it outlives the call that wrote it.
    """

    def __init__(self) -> None:
        self._storage: dict[tuple[Any, ...], Array] = {}
        self._made: dict[tuple[Any, ...], dict[tuple[int, ...], Any]] = {}

    def array(self, name: str, shape: tuple[int, ...], like: Array, flags: bool = False) -> Array:
        """An array of undefined content, of the module and dtype of `like`; or of `flags`."""

        def make(flat: Array) -> Array:
            return flat.reshape(shape)

        return self._get(name, shape, like, flags, math.prod, make)

    def planes(
        self, name: str, channels: int, rows: int, height: int, width: int, like: Array
    ) -> Planes:
        """Planes of undefined content, borders included."""
        shape = (channels, rows, height, width)

        def make(flat: Array) -> Planes:
            return Planes(flat, *shape)

        return self._get(name, shape, like, False, Planes.elements, make)

    def _get(
        self,
        name: str,
        shape: tuple[int, ...],
        like: Array,
        flags: bool,
        count: Callable[[tuple[int, ...]], int],
        make: Callable[[Array], Any],
    ) -> Any:
        module = module_of(like)
        key = (name, module, "?" if flags else like.dtype.char)
        made = self._made.setdefault(key, {})
        found = made.get(shape)
        if found is None:
            needed, storage = count(shape), self._storage.get(key)
            if storage is None or len(storage) < needed:
                storage = self._storage[key] = module.empty(needed, bool if flags else like.dtype)
                made.clear()
            found = made[shape] = make(storage[:needed])
        return found


WORKSPACE = Workspace()


def module_of(array: Array) -> Any:
    """NumPy or CuPy, whichever `array` is of."""
    return arrays.of(array).module
