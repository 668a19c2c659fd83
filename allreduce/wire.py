"""Formats in which an all-reduce sends its values: fewer bytes, and the same rounding on all ranks.

Three rules keep the ranks' bits equal: a rank rounds its own span when it sends it; sums are made
in the type of the vector; at the end every rank rounds all. Rounding is a projection (twice is
once), so that it does not matter who had sent what. `verify(rounded=True)` plays these rules.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

LOST = np.int16(32767)  # the exponent of a block with what is not finite


class Format(NamedTuple):
    """`octets`: of so many elements in so many blocks. `encode`: those elements into these octets;
    `decode`: back, as that type; `starts`: where blocks begin. `block`: elements of one, from the
    beginning of a segment on."""

    octets: Callable[[int, int], int]
    encode: Callable[[np.ndarray, np.ndarray, np.ndarray], None]
    decode: Callable[[np.ndarray, np.ndarray, int, np.dtype], np.ndarray]
    block: int = 1 << 62  # a whole segment


def _cast(name: str) -> Format:
    kind = np.dtype(name)

    def encode(values: np.ndarray, starts: np.ndarray, octets: np.ndarray) -> None:
        with np.errstate(over="ignore"):
            octets.view(kind)[...] = values

    def decode(octets: np.ndarray, starts: np.ndarray, count: int, dtype: np.dtype) -> np.ndarray:
        return octets.view(kind).astype(dtype)

    return Format(lambda count, blocks: count * kind.itemsize, encode, decode)


def _encode_bfloat16(values: np.ndarray, starts: np.ndarray, octets: np.ndarray) -> None:
    """The upper half of a float32, to the nearest, ties to even; what is no number stays none."""
    with np.errstate(over="ignore"):
        bits = values.astype(np.float32).view(np.uint32)
    upper = bits >> 16
    upper &= 1
    upper += 0x7FFF
    upper += bits
    upper >>= 16
    octets.view(np.uint16)[...] = upper
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isnan(np.dot(values, values)):  # some are none, which is rare, and quickly seen
            octets.view(np.uint16)[np.isnan(values)] = 0x7FC0


def _decode_bfloat16(
    octets: np.ndarray, starts: np.ndarray, count: int, dtype: np.dtype
) -> np.ndarray:
    bits = octets.view(np.uint16).astype(np.uint32) << 16
    return bits.view(np.float32).astype(dtype)


def _encode_int8(values: np.ndarray, starts: np.ndarray, octets: np.ndarray) -> None:
    """Whole multiples, -127 .. 127, of the least power of two that reaches a block's largest."""
    largest = np.maximum.reduceat(np.abs(values), starts) if values.size else values
    fraction, exponent = np.frexp(largest)
    exponent = exponent - 7 + (fraction > 127 / 128)
    exponent = exponent.clip(-126, np.finfo(values.dtype).maxexp - 7).astype(np.int16)
    fine = np.isfinite(largest)
    exponents, multiples = octets[: 2 * starts.size], octets[2 * starts.size :]
    exponents.view(np.int16)[...] = np.where(fine, exponent, LOST)
    scale = np.ldexp(values.dtype.type(1), np.where(fine, -exponent, 0))
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = values * np.repeat(scale, _lengths(starts, values.size))
        np.rint(scaled, out=scaled)
        multiples.view(np.int8)[...] = np.clip(scaled, -127, 127, out=scaled)


def _decode_int8(octets: np.ndarray, starts: np.ndarray, count: int, dtype: np.dtype) -> np.ndarray:
    exponents = octets[: 2 * starts.size].view(np.int16).astype(np.int32)
    values = octets[2 * starts.size :].view(np.int8).astype(dtype)
    lengths = _lengths(starts, count)
    scale = np.ldexp(dtype.type(1), np.where(exponents == LOST, 0, exponents))
    scale[exponents == LOST] = np.nan
    values *= np.repeat(scale, lengths)
    return values


def _lengths(starts: np.ndarray, count: int) -> np.ndarray:
    return np.diff(starts, append=count)


FORMATS = {
    "float32": _cast("float32"),
    "bfloat16": Format(lambda count, blocks: 2 * count, _encode_bfloat16, _decode_bfloat16),
    "float16": _cast("float16"),
    "int8": Format(lambda count, blocks: count + 2 * blocks, _encode_int8, _decode_int8, 256),
}


class Wire(NamedTuple):
    """How a vector travels: by a name of FORMATS or of `compress`, but for its elements [low,
    high), which are at one of its ends and travel as they are. `shapes`: of what it holds beside
    these, in order, for what goes by matrices."""

    format: str
    low: int = 0
    high: int = 0
    shapes: tuple[tuple[int, ...], ...] = ()


class Coder:
    """One vector's spans on their way. `edges`: where its schedule's segments begin and end."""

    def __init__(self, wire: Wire, edges: Sequence[int], dtype: np.dtype):
        self.format, self.raw, self.dtype = FORMATS[wire.format], wire[1:3], np.dtype(dtype)
        low, high = self._coded(0, edges[-1])
        cuts = sorted({low, *(edge for edge in edges if low < edge < high)})
        ends = [*cuts[1:], high]
        blocks = [np.arange(a, b, self.format.block) for a, b in zip(cuts, ends, strict=True)]
        self._starts = np.concatenate(blocks)

    def octets(self, begin: int, end: int) -> int:
        """Bytes of the elements [begin, end), a span of whole segments."""
        low, high = self._coded(begin, end)
        raw = end - begin - (high - low)
        return self.format.octets(high - low, self._within(low, high).size) + raw * self.itemsize

    @property
    def itemsize(self) -> int:
        """Bytes of an element that travels as it is."""
        return self.dtype.itemsize

    def send(self, vector: np.ndarray, begin: int, end: int, octets: np.ndarray) -> None:
        """Those elements into `octets`; in the vector they are rounded to what was sent."""
        low, high = self._coded(begin, end)
        count = octets.size - (end - begin - (high - low)) * self.itemsize
        self.format.encode(vector[low:high], self._within(low, high), octets[:count])
        vector[low:high] = self._decoded(octets[:count], low, high)
        raw = vector[high:end] if low == begin else vector[begin:low]
        octets[count:] = raw.view(np.uint8)

    def receive(self, octets: np.ndarray, begin: int, end: int) -> Any:
        """What was sent of these elements."""
        low, high = self._coded(begin, end)
        count = octets.size - (end - begin - (high - low)) * self.itemsize
        raw = octets[count:].copy().view(self.dtype)
        parts = [self._decoded(octets[:count], low, high), raw]
        return np.concatenate(parts if low == begin else parts[::-1])

    def round(self, vector: np.ndarray) -> None:
        """All of it, in place."""
        octets = np.empty(self.octets(0, vector.size), np.uint8)
        self.send(vector, 0, vector.size, octets)

    def feed(self, vector: np.ndarray, error: np.ndarray) -> None:
        """Add what rounding has left out before, round, and keep what it leaves out now (error
        feedback: Karimireddy et al. 2019, arXiv 1901.09847). Of what a rank contributes: what
        rounding leaves out of sums on their way is in nobody's account."""
        vector += error
        error[...] = vector
        self.round(vector)
        np.subtract(error, vector, out=error)

    def _coded(self, begin: int, end: int) -> tuple[int, int]:
        """The part of a span that is not sent as it is."""
        low, high = self.raw
        if high <= begin or low >= end or low == high:
            return begin, end
        return (min(high, end), end) if low <= begin else (begin, max(begin, low))

    def _within(self, low: int, high: int) -> np.ndarray:
        """Where blocks begin in [low, high), from `low` on."""
        first, last = np.searchsorted(self._starts, (low, high))
        return self._starts[first:last] - low

    def _decoded(self, octets: np.ndarray, low: int, high: int) -> np.ndarray:
        return self.format.decode(octets, self._within(low, high), high - low, self.dtype)


class Carried(NamedTuple):
    """As what a vector travels, for a price. `nbytes`: of messages, in elements of `itemsize`;
    `adds`: bytes of the vector's own type, in which sums are made, for each of these; `encodes`,
    `decodes`: bytes of that type that who sends one encodes, and who receives one decodes;
    `codes`: bytes that each rank encodes once beside."""

    nbytes: int
    itemsize: int
    adds: float = 1.0
    encodes: float = 0.0
    decodes: float = 0.0
    codes: float = 0.0


def carried(wire: Wire | None, count: int, itemsize: int) -> Carried:
    """Of `count` elements of `itemsize` bytes; what travels as it is counts like the rest."""
    if wire is None:
        return Carried(count * itemsize, itemsize)
    format = FORMATS[wire.format]
    width = format.octets(1, 0)
    nbytes = format.octets(count, -(-count // format.block)) // width * width
    whole = count * itemsize
    each = whole / max(nbytes, 1)
    coded = width != itemsize
    return Carried(nbytes, width, each, coded * each, coded * each, coded * whole)
