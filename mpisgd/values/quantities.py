"""Numbers as users write them (`102M`, `20ms`, `1,2,4:8`), checked where they enter."""

import math
from collections.abc import Iterable
from typing import Any

from mpisgd.values.errors import UsageError
from mpisgd.values.options import plain
from mpisgd.values.sizes import parse_size

# Beyond these no quantity of a computer lies, and the arithmetic of a model stays finite.
SMALLEST, LARGEST = 1e-30, 1e15
LONGEST_S = 1e9
LARGEST_BYTES = 2.0**62
MOST_RANKS = 1_000_000
MOST_COUNTS = 10_000  # of ranks in one list

TIME_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


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
    try:
        result = float(plain(value))
    except (TypeError, ValueError, OverflowError):
        result = math.nan
    if open_low and 0 < result < SMALLEST:
        raise UsageError(place, value, f"too small: at least {SMALLEST:g}")
    above = result > low if open_low else result >= low
    if not (math.isfinite(result) and above and result <= high):
        raise UsageError(place, value, _range_text("a number", low, high, open_low))
    return result


def whole(place: str, value: Any, *, low: int = 1, high: float = 1e12) -> int:
    """`value` as an integer in [low, high]; UsageError naming `place` for anything else."""
    try:
        result = number(place, value, low=low, high=high)
    except UsageError:
        result = math.nan
    if not result.is_integer():
        raise UsageError(place, value, _range_text("a whole number", low, high, False))
    return int(result)


def scaled(place: str, value: Any, units: dict[str, float], **limits: Any) -> float:
    """`value` with one of `units` behind it, as in `102M` or `20ms`. Raises UsageError."""
    text = str(value).strip()
    for unit in sorted(units, key=len, reverse=True):
        if unit and text.endswith(unit):
            text, scale = text[: -len(unit)], units[unit]
            break
    else:
        scale = 1.0
    try:
        result = float(plain(text)) * scale
    except ValueError:
        names = ", ".join(name for name in units if name)
        allowed = f"a number, with one of {names} behind it or none"
        raise UsageError(place, value, allowed) from None
    try:
        return number(place, result, **limits)
    except UsageError:
        low, high = limits.get("low", 0.0), limits.get("high", LARGEST)
        if limits.get("open_low") and 0 < result < SMALLEST:
            low = SMALLEST
        allowed = _range_text("a number", low, high, limits.get("open_low", False))
        raise UsageError(place, value, allowed) from None


def size(place: str, value: Any) -> float:
    """Bytes > 0, as sizes.parse_size reads them, bare K, M, G decimal. Raises UsageError."""
    return number(
        place, parse_size(str(value), place, thousand=1000), high=LARGEST_BYTES, open_low=True
    )


def duration(place: str, value: Any, *, open_low: bool = False) -> float:
    """Seconds >= 0 (> 0 when `open_low`), with the units s, ms, us, ns. Raises UsageError."""
    return scaled(place, value, TIME_UNITS, high=LONGEST_S, open_low=open_low)


def ranks(place: str, text: str, most: int = MOST_RANKS) -> list[int]:
    """Rank counts up to `most`: `1,2,4` and ranges `5:8` (with both ends), in the order given."""
    counts: list[int] = []
    for part in str(text).split(","):
        first, colon, last = part.partition(":")
        low = whole(place, first, high=most)
        high = whole(place, last, low=low, high=most) if colon else low
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
        if name not in names:
            raise UsageError(place, name, f"choose from all, {', '.join(names)}")
    return list(dict.fromkeys(chosen))


def _range_text(what: str, low: float, high: float, open_low: bool) -> str:
    parts = []
    if low > -math.inf:
        parts.append(f"{'>' if open_low else '>='} {low:g}")
    if high < math.inf:
        parts.append(f"<= {high:g}")
    return f"{what} {' and '.join(parts)}".rstrip()
