"""Times, sizes and rates as users write them: `20ms`, `102M`, `64KiB`, `4:64M`, `20Gbps`.

Sizes in bytes: kB, MB, GB are powers of 1000, KiB, MiB, GiB powers of 1024, always. A bare K, M or
G is what the command says: 1024 where messages are measured (`bench`, as in the OSU benchmarks),
1000 where a model of published figures is asked (`simulate`, `predict`: 102M is 102,000,000).
"""

import math
import re
from typing import Any

from mpisgd.values.errors import UsageError

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
LONGEST_S = 1e9  # 30 years: longer, and sums of times stop being exact

_SIZE = re.compile(r"(\d{1,30}(?:\.\d*)?)\s*(?:([kKMG])(i?B)?|B)?", re.ASCII)
_RATE = re.compile(r"(\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*(?:([kKMGT]?)(bps|bit|B/s|Bps))?", re.ASCII)
_POWERS = {None: 0, "": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}


def plain(value: Any) -> Any:
    """`value`, unless it is a text that only Python takes for a number: 1_000, other scripts'
    digits. Raises ValueError."""
    if isinstance(value, str) and not (value.isascii() and "_" not in value):
        raise ValueError
    return value


def seconds(value: Any) -> float:
    """From `20ms`, `0.5s`, `2min`, `30ns`, or a number of seconds that is no text; a text says its
    unit, unless it is 0. Raises ValueError for what is no time, or longer than LONGEST_S."""
    text = str(value).strip()
    unit = next((u for u in sorted(SECONDS, key=len, reverse=True) if text.endswith(u)), "")
    result = float(plain(text.removesuffix(unit))) * SECONDS.get(unit, 1.0)
    untold = isinstance(value, str) and not unit and result != 0
    if isinstance(value, bool) or untold or not result <= LONGEST_S:
        raise ValueError
    return result


def parse_size(text: str, place: str = "size", *, thousand: int = 1024) -> int:
    """A number of bytes >= 0. `thousand`: what a bare K stands for. Raises UsageError."""
    match = _SIZE.fullmatch(text.strip())
    allowed = "a whole number of bytes, with K, M, G, kB, MB, GB, KiB, MiB or GiB behind it"
    if match is None:
        raise UsageError(place, text, allowed)
    number, prefix, unit = match.groups()
    base = {None: thousand, "B": 1000, "iB": 1024}[unit]
    size = float(number) * base ** _POWERS[prefix]
    if size > 2**62 or size != int(size):
        raise UsageError(place, text, allowed)
    return int(number) * base ** _POWERS[prefix] if number.isdigit() else int(size)


def parse_sizes(text: str, place: str = "sizes", *, thousand: int = 1024) -> list[int]:
    """Sizes separated by commas; LOW:HIGH doubles from LOW, up to HIGH. Raises UsageError.

    `4:64M` is 4, 8, ..., 67108864 with `thousand` 1024. Each size comes once, in order of mention.
    """
    sizes: list[int] = []
    for part in text.split(","):
        first, colon, last = part.partition(":")
        size = parse_size(first, place, thousand=thousand)
        if not colon:
            sizes.append(size)
            continue
        high = parse_size(last, place, thousand=thousand)
        if not 0 < size <= high:
            raise UsageError(place, part, "a range LOW:HIGH with 0 < LOW <= HIGH")
        while size <= high:
            sizes.append(size)
            size *= 2
    return list(dict.fromkeys(sizes))


def parse_rate(text: str, place: str = "rate") -> float:
    """Bytes a second > 0, infinity included. Decimal: `20Gbps` is 2.5e9, `16GB/s` 16e9; a number
    alone is in bytes/s. Raises UsageError."""
    allowed = "a rate > 0, as 20Gbps, 200Mbit, 16GB/s, inf"
    if text.strip() == "inf":
        return math.inf
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise UsageError(place, text, allowed)
    number, prefix, unit = match.groups()
    rate = float(number) * 1000 ** _POWERS[prefix] / (8 if unit in ("bps", "bit") else 1)
    if not 0 < rate < math.inf:
        raise UsageError(place, text, allowed)
    return rate
