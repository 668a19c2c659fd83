"""Numbers as users write them (`102M`, `20ms`, `1,2,4:8`), checked where they enter."""

import math
from collections.abc import Iterable
from typing import Any

from mpisgd.errors import UsageError
from mpisgd.sizes import parse_size

TIME_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def number(
    place: str,
    value: Any,
    *,
    low: float = 0.0,
    high: float = math.inf,
    open_low: bool = False,
) -> float:
    """`value` as a finite float in [low, high], or (low, high] when `open_low`.

    Raises UsageError naming `place` for anything else, nan and infinities included.
    """
    try:
        result = float(value)
    except (TypeError, ValueError):
        result = math.nan
    above = result > low if open_low else result >= low
    if not (math.isfinite(result) and above and result <= high):
        raise UsageError(place, value, _range_text("a number", low, high, open_low))
    return result


def whole(place: str, value: Any, *, low: int = 1, high: float = math.inf) -> int:
    """`value` as an integer in [low, high]; UsageError naming `place` for anything else."""
    result = number(place, value, low=-math.inf)
    if result != int(result) or not low <= result <= high:
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
        result = float(text) * scale
    except ValueError:
        names = ", ".join(name for name in units if name)
        allowed = f"a number, with one of {names} behind it or none"
        raise UsageError(place, value, allowed) from None
    try:
        return number(place, result, **limits)
    except UsageError:
        low, high = limits.get("low", 0.0), limits.get("high", math.inf)
        allowed = _range_text("a number", low, high, limits.get("open_low", False))
        raise UsageError(place, value, allowed) from None


def size(place: str, value: Any) -> float:
    """Bytes > 0, as sizes.parse_size reads them, bare K, M, G decimal. Raises UsageError."""
    return number(place, parse_size(str(value), place, thousand=1000), open_low=True)


def duration(place: str, value: Any, *, open_low: bool = False) -> float:
    """Seconds >= 0 (> 0 when `open_low`), with the units s, ms, us, ns. Raises UsageError."""
    return scaled(place, value, TIME_UNITS, open_low=open_low)


def ranks(place: str, text: str) -> list[int]:
    """Rank counts: `1,2,4` and ranges `5:8` (both ends included), in the order given."""
    counts: list[int] = []
    for part in str(text).split(","):
        first, colon, last = part.partition(":")
        low = whole(place, first)
        high = whole(place, last, low=low, high=1_000_000) if colon else low
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
