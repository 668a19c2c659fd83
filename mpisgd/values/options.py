"""Values that users give, as text on a command line or typed in TOML: read, checked, explained."""

import math
from collections.abc import Callable, Iterable
from operator import index
from typing import Any, NamedTuple

from mpisgd.values.errors import UsageError, nearest
from mpisgd.values.units import LONGEST_S, parse_size, plain, seconds

LARGEST = 2**63 - 1  # whole number, where no other bound is named


class TooLarge(ValueError):
    """A bound that nobody names until it is met."""


class Kind(NamedTuple):
    """How a value is read: `parse` returns it or raises ValueError; `allowed` says what may be,
    `names` which words."""

    allowed: str
    parse: Callable[[Any], Any]
    names: tuple[str, ...] = ()

    def read(self, place: str, value: Any) -> Any:
        """The value; UsageError naming `place` if it is not allowed."""
        try:
            return self.parse(value)
        except UsageError:  # it knows better what is wrong
            raise
        except TooLarge:
            raise UsageError(place, value, f"{self.allowed}, at most {LARGEST}") from None
        except (ValueError, TypeError, OverflowError):
            close = nearest(value, self.names)
            raise UsageError(place, value, f"{self.allowed}{close}") from None


def whole(low: int, high: int | None = None) -> Kind:
    """A whole number within bounds."""
    allowed = f"a whole number >= {low}" if high is None else f"a whole number in {low}..{high}"

    def parse(value: Any) -> int:
        _require(not isinstance(value, bool))
        number = int(plain(value)) if isinstance(value, str) else index(value)
        if high is None and number > LARGEST:
            raise TooLarge
        _require(low <= number and (high is None or number <= high))
        return number

    return Kind(allowed, parse)


def or_word(kind: Kind, word: str) -> Kind:
    """`kind`, or one word."""
    return Kind(f"{kind.allowed}, or {word}", lambda v: v if v == word else kind.parse(v))


def number(low: float, high: float = math.inf, *, above: bool = False, below: bool = False) -> Kind:
    """A finite number within bounds; `above`: greater than `low`; `below`: less than `high`."""
    allowed = f"a finite number {'>' if above else '>='} {low:g}"
    if not math.isinf(high):
        allowed += f" and {'<' if below else '<='} {high:g}"

    def parse(value: Any) -> float:
        _require(not isinstance(value, bool))
        result = float(plain(value))
        _require(math.isfinite(result) and (result > low if above else result >= low))
        _require(result < high if below else result <= high)
        return result

    return Kind(allowed, parse)


def duration(low: float = 0.0, *, above: bool = False) -> Kind:
    """Seconds as units.seconds reads them, at least `low`; `above`: greater than it."""

    def parse(value: Any) -> float:
        result = seconds(value)
        _require(result > low if above else result >= low)
        return result

    least = f"more than {low:g} s" if above else f"at least {low:g} s"
    allowed = f"a time such as 20ms, 1.5s or 2min, {least}, at most {LONGEST_S:g} s"
    return Kind(allowed, parse)


def size() -> Kind:
    """Bytes of messages, as `mpisgd bench` reads them: 1M is 1 MiB."""

    def parse(value: Any) -> int:
        try:
            nbytes = parse_size(str(value))
        except UsageError:  # it cannot name the place
            raise ValueError from None
        if nbytes < 1:
            raise ValueError
        return nbytes

    return Kind("a size such as 256K, 1M or 25MB, at least 1 byte", parse)


def one_of(names: Iterable[str]) -> Kind:
    """One of a few words."""
    known = tuple(names)

    def parse(value: Any) -> str:
        _require(value in known)
        return value

    return Kind(f"one of {', '.join(known)}", parse, known)


def wholes(low: int, high: int | None = None) -> Kind:
    """Whole numbers, as `64,32` or a list; may be empty."""
    each = whole(low, high)

    def parse(value: Any) -> tuple[int, ...]:
        parts = value.split(",") if isinstance(value, str) else list(value)
        return () if parts == [""] else tuple(each.parse(part) for part in parts)

    allowed = each.allowed.replace("a whole number", "whole numbers")
    return Kind(f"{allowed} with commas, such as 64,32", parse)


def text() -> Kind:
    """Any text."""

    def parse(value: Any) -> str:
        _require(isinstance(value, str) and value != "" and "\0" not in value)
        return value

    return Kind("a text that is not empty", parse)


def words() -> Kind:
    """A list of texts."""
    each = text()
    return Kind("a list of texts", lambda value: tuple(each.parse(word) for word in list(value)))


def switch() -> Kind:
    """True or false."""

    def parse(value: Any) -> bool:
        if isinstance(value, str):
            value = {"true": True, "false": False}[value.lower()] if value in _WORDS else value
        _require(isinstance(value, bool))
        return value

    return Kind("true or false", parse)


_WORDS = ("true", "false", "True", "False")


def _require(holds: bool) -> None:
    if not holds:
        raise ValueError
