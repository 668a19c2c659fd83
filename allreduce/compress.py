"""Averages of less than all of a vector: its largest values, or factors of low rank.

Sums of such are not of their kind, so these are no formats of messages (see `wire`). An average is
a few *stages*: work of this rank's own, then a vector that travels by a schedule. What a rank has
left out is in its `memory` and goes into its next average (error feedback), and all ranks end
with the same bits: what they compute behind the last stage is the same.
"""

from collections.abc import Callable
from functools import lru_cache
from math import ceil, isqrt, prod
from typing import Any, NamedTuple, Protocol
from zlib import crc32

import numpy as np

from allreduce.algorithms import allgather
from allreduce.errors import AllreduceError
from allreduce.schedule import TRANSFER, Schedule, bounds, place
from allreduce.wire import FORMATS, Carried, Wire, carried

ALLOWED = f"one of {', '.join(FORMATS)}, topk:SHARE in (0, 1], powersgd:RANK >= 1"
INDEX = np.dtype(np.uint32)


class Stage(NamedTuple):
    """`prepare` fills this rank's `vector`, which is then all-reduced, or gathered, by `schedule`;
    `mean`: its mean over ranks."""

    prepare: Callable[[], None]
    vector: np.ndarray
    schedule: Schedule
    mean: bool


class Compressor(Protocol):
    """One rank's average of a vector, in place."""

    stages: list[Stage]

    def finish(self) -> None:
        """The result, from what the last stage has brought."""


def known(text: Any) -> str:
    """The one spelling of a format or of what compresses. ValueError for what is neither."""
    name, _, value = str(text).partition(":")
    if text in FORMATS:
        return name
    if name == "topk" and 0 < float(value) <= 1:
        return f"topk:{float(value)!r}"
    if name == "powersgd" and value.isdecimal() and 1 <= int(value) <= 1 << 20:
        return f"powersgd:{int(value)}"
    raise ValueError(ALLOWED)


def compresses(wire: str | None) -> bool:
    """Whether a name that is `known` stands for less than all values."""
    return wire is not None and wire not in FORMATS


def number(wire: Wire) -> int:
    """By which ranks tell each other how they send. AllreduceError for what there is not."""
    if wire.format in FORMATS:
        return 1 + list(FORMATS).index(wire.format)
    try:
        return 100 + crc32(known(wire.format).encode())
    except ValueError:
        allowed = f"no format {wire.format!r} of messages: {ALLOWED}"
        raise AllreduceError(allowed) from None


def memory(wire: Wire, count: int, dtype: Any) -> np.ndarray:
    """What a rank remembers from average to average, at the beginning: `count` elements that it
    has left out, then factors."""
    factors = []
    if _kind(wire) is PowerSGD:
        draw = np.random.default_rng(0).standard_normal
        factors = [draw(m.columns * m.rank) for m in matrices(wire, count)]
    return np.concatenate([np.zeros(count), *factors]).astype(dtype)


def compressor(
    wire: Wire, schedule: Schedule, rank: int, target: np.ndarray, memory: Any, mean: bool
) -> Compressor:
    """What averages `target` on one rank, with its `memory`, by a schedule of at least a round."""
    return _kind(wire)(wire, schedule, rank, target, memory, mean)


def priced(
    wire: Wire | None, schedule: Schedule, count: int, itemsize: int
) -> tuple[Schedule, Carried]:
    """By which schedule and as what `count` elements travel, for a price. Two stages stand as one
    schedule, each with half of the bytes of both."""
    if wire is None or not compresses(wire.format) or not schedule.rounds:
        coded = wire if wire is not None and not compresses(wire.format) else None
        return schedule, carried(coded, count, itemsize)
    if _kind(wire) is TopK:
        nbytes = schedule.size * _block(wire, count, itemsize)
        return allgather(schedule.size), Carried(nbytes, 1, decodes=1.0, codes=count * itemsize)
    sides = [(m.rows * m.columns, m.rank * (m.rows + m.columns)) for m in matrices(wire, count)]
    sent = count - sum(whole - few for whole, few in sides)
    how = Carried(sent * itemsize, itemsize, codes=count * itemsize)
    return twice(schedule) if sides else schedule, how


@lru_cache(maxsize=64)
def sent(wire: Wire | None, schedule: Schedule, count: int, itemsize: int) -> tuple[int, ...]:
    """Bytes that each rank sends in one average of `count` elements."""
    schedule, travelling = priced(wire, schedule, count, itemsize)
    edges = bounds(travelling.nbytes // travelling.itemsize, schedule.segments)
    moves = np.concatenate([np.empty(0, TRANSFER), *schedule.rounds])
    items = np.zeros(schedule.size, np.int64)
    np.add.at(items, moves["source"], edges[moves["high"]] - edges[moves["low"]])
    return tuple((items * travelling.itemsize).tolist())


@lru_cache(maxsize=64)
def twice(schedule: Schedule) -> Schedule:
    """One half of the data, then the other."""
    n = schedule.segments
    return (place(schedule, 2 * n, 0) + place(schedule, 2 * n, n)).named(schedule.name)


class TopK:
    """The share of a rank's values that is largest, as (index, value), to all ranks, each of which
    adds them in order of ranks. Aji, Heafield 2017 (arXiv 1704.05021); Lin et al. 2018, Deep
    Gradient Compression (arXiv 1712.01887), without its momentum correction.

    Bytes: 4 + itemsize for each value, p - 1 times.
    """

    def __init__(
        self, wire: Wire, schedule: Schedule, rank: int, target: Any, memory: Any, mean: bool
    ):
        coded, raw = _spans(wire, target.size)
        self.values, self.raw, self.error = target[coded], target[raw], memory[coded]
        self.target, self.mean, self.size = target, mean, schedule.size
        self.count = _pairs(wire, self.values.size)
        octets = np.zeros(schedule.size * _block(wire, target.size, target.itemsize), np.uint8)
        self.blocks = [self._views(block) for block in np.split(octets, schedule.size)]
        self.own = self.blocks[rank]
        self.stages = [Stage(self._choose, octets, allgather(schedule.size), False)]

    def finish(self) -> None:
        self.target[...] = 0
        for index, values, raw in self.blocks:
            self.values[index] += values
            self.raw += raw
        if self.mean:
            np.divide(self.target, self.target.dtype.type(self.size), out=self.target)

    def _choose(self) -> None:
        index, values, raw = self.own
        self.values += self.error
        if self.count:
            index[...] = np.sort(np.argpartition(np.abs(self.values), -self.count)[-self.count :])
        values[...], raw[...] = self.values[index], self.raw
        self.error[...] = self.values
        self.error[index] = 0

    def _views(self, block: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Indices, values, and what travels as it is, of one rank."""
        cuts = np.cumsum([self.count * INDEX.itemsize, self.count * self.target.itemsize])
        index, values, raw = np.split(block, cuts)
        return index.view(INDEX), values.view(self.target.dtype), raw.view(self.target.dtype)


class Matrix(NamedTuple):
    """Elements of a vector from `begin` on, that travel as two factors of `rank` columns."""

    begin: int
    rows: int
    columns: int
    rank: int


class PowerSGD:
    """Each matrix M of a rank as P Q^T: P = mean of M Q, orthogonalised; Q = mean of M^T P, from
    which the next average begins. Vogels, Karimireddy, Jaggi 2019 (arXiv 1905.13727), with QR for
    Gram-Schmidt. What has one dimension, or is no larger than its factors, travels as it is.

    Bytes: two all-reduces, of rank (rows + columns) values for each matrix together.
    """

    def __init__(
        self, wire: Wire, schedule: Schedule, rank: int, target: Any, memory: Any, mean: bool
    ):
        all_ = matrices(wire, target.size)
        inside = np.zeros(target.size, bool)
        for m in all_:
            inside[m.begin : m.begin + m.rows * m.columns] = True
        self.target, self.rest = target, np.flatnonzero(~inside)
        edges = np.cumsum([self.rest.size, *(m.rows * m.rank for m in all_)])
        first = np.empty(edges[-1], target.dtype)
        second = np.empty(memory.size - target.size, target.dtype)
        self.plain, self.factors = first[: edges[0]], []
        used = 0
        for m, low, high in zip(all_, edges[:-1], edges[1:], strict=True):
            whole = slice(m.begin, m.begin + m.rows * m.columns)
            part = slice(used, used + m.columns * m.rank)
            used = part.stop
            self.factors.append(
                _Factors(
                    target[whole].reshape(m.rows, m.columns),
                    memory[whole].reshape(m.rows, m.columns),
                    memory[target.size :][part].reshape(m.columns, m.rank),
                    first[low:high].reshape(m.rows, m.rank),
                    second[part].reshape(m.columns, m.rank),
                )
            )
        self.stages = [Stage(self._project, first, schedule, mean)]
        if all_:
            self.stages.append(Stage(self._factor, second, schedule, mean))

    def finish(self) -> None:
        self.target[self.rest] = self.plain
        for each in self.factors:
            np.matmul(each.left, each.right.T, out=each.matrix)
            each.begun[...] = each.right

    def _project(self) -> None:
        self.plain[...] = self.target[self.rest]
        for each in self.factors:
            np.add(each.matrix, each.error, out=each.matrix)
            np.matmul(each.matrix, each.begun, out=each.left)

    def _factor(self) -> None:
        for each in self.factors:
            each.left[...] = np.linalg.qr(each.left)[0]
            np.matmul(each.matrix.T, each.left, out=each.right)
            np.subtract(each.matrix, each.left @ each.right.T, out=each.error)


class _Factors(NamedTuple):
    """Of one matrix: what is left out, what it begins from, P, and Q: views of larger arrays."""

    matrix: np.ndarray
    error: np.ndarray
    begun: np.ndarray
    left: np.ndarray
    right: np.ndarray


def matrices(wire: Wire, count: int) -> list[Matrix]:
    """What of `count` elements travels as factors: of those of `wire.shapes`, from the first that
    does not travel as it is on; without shapes all are one matrix that is nearly square."""
    coded, _ = _spans(wire, count)
    begin, shapes, rank = coded.start, wire.shapes, int(_value(wire))
    if not shapes:
        rows = max(1, isqrt(coded.stop - coded.start))
        shapes = ((rows, (coded.stop - coded.start) // rows),)
    found = []
    for shape in shapes:
        rows, columns = (shape[0], prod(shape[1:])) if shape else (1, 1)
        if rank * (rows + columns) < rows * columns:
            found.append(Matrix(begin, rows, columns, rank))
        begin += rows * columns
    return found


def _kind(wire: Wire) -> Any:
    return TopK if wire.format.startswith("topk") else PowerSGD


def _value(wire: Wire) -> float:
    return float(wire.format.partition(":")[2])


def _pairs(wire: Wire, count: int) -> int:
    """Of `count` values, those that are sent: not none of some."""
    return min(count, ceil(_value(wire) * count - 1e-9))


def _block(wire: Wire, count: int, itemsize: int) -> int:
    """Bytes of one rank's part of a vector of `count` elements."""
    coded, raw = _spans(wire, count)
    pairs = _pairs(wire, coded.stop - coded.start)
    return pairs * (INDEX.itemsize + itemsize) + (raw.stop - raw.start) * itemsize


def _spans(wire: Wire, count: int) -> tuple[slice, slice]:
    """The elements that are compressed, and those that travel as they are, at one end."""
    low, high = wire.low, wire.high
    return (slice(0, low) if low else slice(high, count)), slice(low, high)
