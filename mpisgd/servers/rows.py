"""Rows of an embedding in messages: those that a batch touches, with their numbers, and no others.

A request begins with two counts, of the rows whose gradients it brings and of those that its answer
is to bring, ALL if it is all; then come their numbers, then the gradient's elements in their order
in the shard. An answer has elements alone: who asked knows which. What of a shard is no embedding
always travels.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

NUMBER_B = 8  # bytes of a count, and of a row's number
ALL = -1


class Layout:
    """Where the rows of an embedding lie in a shard, which may begin or end inside one."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], embedding: str, shard: slice):
        """`shapes`: of all parameters, in their order in the flat buffer that is cut in shards."""
        names = list(shapes)
        before = sum(math.prod(shapes[name]) for name in names[: names.index(embedding)])
        height, self.width = shapes[embedding]
        self.size, self.begin = shard.stop - shard.start, before - shard.start
        ends = (self.begin, self.begin + height * self.width)
        low, high = (min(max(end, 0), self.size) for end in ends)
        self._head, self._tail = np.arange(low), np.arange(high, self.size)
        self.most_rows = (high - low) // self.width + 2  # no fewer than have an element here

    def here(self, rows: np.ndarray) -> np.ndarray:
        """Those of the rows (count,) of which any element is in the shard."""
        starts = self.begin + rows * self.width
        return rows[(starts > -self.width) & (starts < self.size)]

    def elements(self, rows: np.ndarray) -> np.ndarray:
        """Where in the shard these rows lie, and all that is no row: ascending, if `rows` are."""
        starts = self.begin + rows * self.width
        inside = (starts[:, None] + np.arange(self.width)).ravel()
        inside = inside[(inside >= 0) & (inside < self.size)]
        return np.concatenate([self._head, inside, self._tail])


class Read(NamedTuple):
    """A request as the server sees it. gradient: (elements,), of the elements `at`; wanted: the
    elements that its answer is to bring. None: all, in their order."""

    gradient: np.ndarray
    at: np.ndarray | None
    wanted: np.ndarray | None


class Rows(NamedTuple):
    """What travels as rows: gradients (`pushed`), parameters (`pulled`), or both. `of`: the rows
    that inputs touch; `layouts`: of the shards."""

    of: Callable[[np.ndarray], np.ndarray]
    layouts: tuple[Layout, ...]
    dtype: np.dtype
    pushed: bool
    pulled: bool

    def request(
        self, server: int, part: np.ndarray | None, own: np.ndarray, following: np.ndarray
    ) -> np.ndarray:
        """The payload (elements,) of a request, of the gradient's dtype.

        part: (shard,) the gradient, None if it was given up; own, following: the rows of its batch
        and of the next one.
        """
        layout = self.layouts[server]
        values = np.empty(0, self.dtype) if part is None else part
        numbers, counts = [], [ALL, ALL]
        if part is not None and self.pushed:
            numbers.append(layout.here(own))
            counts[0], values = numbers[0].size, part[layout.elements(numbers[0])]
        if self.pulled:
            numbers.append(layout.here(following))
            counts[1] = numbers[-1].size
        parts = [np.array(counts), *numbers, values]
        return np.concatenate([each.view(np.uint8) for each in parts]).view(self.dtype)

    def read(self, server: int, payload: np.ndarray) -> Read:
        """What such a payload says."""
        layout, octets = self.layouts[server], payload.view(np.uint8)
        found, edge = [], 2 * NUMBER_B
        for count in octets[:edge].view(np.int64).tolist():
            low, edge = edge, edge + max(count, 0) * NUMBER_B
            rows = octets[low:edge].view(np.int64)
            found.append(None if count == ALL else layout.elements(rows))
        return Read(octets[edge:].view(self.dtype), *found)

    def most(self, server: int) -> int:
        """Elements of the longest payload."""
        layout = self.layouts[server]
        octets = NUMBER_B * (2 + 2 * layout.most_rows)
        return layout.size + -(-octets // self.dtype.itemsize)
