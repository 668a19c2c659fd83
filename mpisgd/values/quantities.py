"""Numbers that a model is given, checked where they enter."""

from collections.abc import Iterable
from typing import Any

from mpisgd.values import options
from mpisgd.values.errors import UsageError, among
from mpisgd.values.units import parse_size

# Beyond these no quantity of a computer lies, and the arithmetic of a model stays finite.
SMALLEST, LARGEST = 1e-30, 1e15
LARGEST_BYTES = 2.0**62
MOST_RANKS = 1_000_000
MOST_COUNTS = 10_000  # of ranks in one list


def number(
    place: str,
    value: Any,
    *,
    low: float = 0.0,
    high: float = LARGEST,
    open_low: bool = False,
) -> float:
    """`value` as a finite float in [low, high]; when `open_low`, in (low, high], from SMALLEST up.

    Raises UsageError naming `place` for anything else, nan and infinities included.
    """
    result = options.number(low, high, above=open_low).read(place, value)
    return _not_tiny(place, value, result) if open_low else result


def whole(place: str, value: Any, *, low: int = 1, high: float = 1e12) -> int:
    """`value` as an integer in [low, high], also written as 1e6. Raises UsageError."""
    kind = options.number(low, high)
    allowed = kind.allowed.replace("a finite number", "a whole number")
    result = options.Kind(allowed, kind.parse).read(place, value)
    if not result.is_integer():
        raise UsageError(place, value, allowed)
    return int(result)


def size(place: str, value: Any) -> float:
    """Bytes > 0, as units.parse_size reads them, bare K, M, G decimal. Raises UsageError."""
    nbytes = parse_size(str(value), place, thousand=1000)
    return number(place, nbytes, high=LARGEST_BYTES, open_low=True)


def duration(place: str, value: Any, *, open_low: bool = False) -> float:
    """Seconds >= 0 (> 0 when `open_low`), as units.seconds reads them. Raises UsageError."""
    result = options.duration(above=open_low).read(place, value)
    return _not_tiny(place, value, result) if open_low else result


def ranks(place: str, text: str, most: int = MOST_RANKS) -> list[int]:
    """Rank counts up to `most`: `1,2,4` and ranges `5:8` (with both ends), in the order given."""
    one = options.whole(1, most)
    allowed = f"numbers of ranks such as 8, 1:64 or 1:17,127, each in 1..{most}"
    counts: list[int] = []
    for part in str(text).split(","):
        first, colon, last = part.partition(":")
        try:
            low = one.parse(first)
            high = one.parse(last) if colon else low
        except ValueError:
            raise UsageError(place, text, allowed) from None
        if high < low:
            raise UsageError(place, text, f"{part} goes down; write {high}:{low}")
        if len(counts) + high - low >= MOST_COUNTS:
            raise UsageError(place, text, f"at most {MOST_COUNTS} numbers of ranks")
        counts += range(low, high + 1)
    return list(dict.fromkeys(counts))


def choices(place: str, text: str, known: Iterable[str]) -> list[str]:
    """Names separated by commas, or `all`. Raises UsageError for a name that is not in `known`."""
    names = list(known)
    if text == "all":
        return names
    chosen = [name.strip() for name in text.split(",")]
    for name in chosen:
        among(place, name, ["all", *names])
    return list(dict.fromkeys(chosen))


def _not_tiny(place: str, value: Any, result: float) -> float:
    if result < SMALLEST:
        raise UsageError(place, value, f"too small: at least {SMALLEST:g}")
    return result
