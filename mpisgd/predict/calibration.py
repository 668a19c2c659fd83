"""The table [calibration] that `mpisgd calibrate` leaves in a network file: what to know of it.

A quantity is doubtful if its 95 % interval begins at 0, or spans more than a factor of two.
"""

import math
import sys
from collections.abc import Container
from typing import Any

from allreduce import files
from mpisgd.values.errors import UsageError

STEP = "step_s"  # seconds of a step at each of `batches`
INTERVAL = "_interval"


def table(network: str | None) -> dict[str, Any]:
    """The table; empty for a preset, and for a file without one or that cannot be read: whoever
    reads the network says what is wrong with it. UsageError for a table that makes no sense."""
    if network is None or not network.endswith(".toml"):
        return {}
    try:
        found = files.toml(network).get("calibration", {})
    except files.Unreadable:
        return {}
    _check(f"{network}: [calibration]", found)
    return found


def steps(found: Any) -> list[tuple[float, float]]:
    """(batch, seconds of its step), by batches. ValueError unless all are numbers above 0."""
    try:
        pairs = list(zip(found["batches"], found[STEP], strict=True))
        usable = bool(pairs) and all(_number(x) and x > 0 for pair in pairs for x in pair)
    except (KeyError, TypeError, ValueError):
        usable = False
    if not usable:
        raise ValueError(f"batches and {STEP} are equally many numbers above 0")
    return sorted((float(batch), float(seconds)) for batch, seconds in pairs)


def known(low: float | None) -> str:
    """How well a doubtful quantity is known, by the low end of its interval."""
    return "uncertain" if low is not None and low > 0 else "not known"


def doubts(network: str | None, unused: Container[str] = ()) -> list[str]:
    """One line for each doubtful quantity of the file; unused: fields of the network, or STEP, that
    are not looked at, or were given otherwise. UsageError as `table` raises it."""
    found = table(network)
    lines = []
    for key in found.get("doubtful", ()):
        low, high = _widest(found.get(f"{key}{INTERVAL}"))
        if key not in unused:
            told = "" if low is None else f": its 95 % interval is {low:.3g} to {high:.3g}"
            lines.append(
                f"{key} of {network} is {known(low)}{told}; calibrate again with more "
                "--repetitions, or on an idle machine"
            )
    return lines


def tell(network: str | None, unused: Container[str] = ()) -> None:
    """Say them on standard error, beside a result that takes the medians."""
    for line in doubts(network, unused):
        print(f"mpisgd: warning: {line}", file=sys.stderr)


def _check(place: str, found: Any) -> None:
    """UsageError for what `calibrate` would not write; other keys are nobody's business."""
    if not isinstance(found, dict):
        raise UsageError(place, found, "a table")
    if found.keys() & {"batches", STEP}:
        try:
            steps(found)
        except ValueError as error:
            raise UsageError(f"{place} {STEP}", found.get(STEP), str(error)) from None
    for key, bounds in found.items():
        pairs = bounds if key == STEP + INTERVAL else [bounds]
        if key.endswith(INTERVAL) and not (isinstance(pairs, list) and all(map(_ordered, pairs))):
            allowed = "[low, high], two numbers" + (", for each batch" * (key == STEP + INTERVAL))
            raise UsageError(f"{place} {key}", bounds, allowed)
    doubtful = found.get("doubtful", [])
    measured = _measured()
    if not isinstance(doubtful, list) or not all(key in measured for key in doubtful):
        allowed = f"a list of {', '.join(measured)}"
        raise UsageError(f"{place} doubtful", doubtful, allowed)


def _measured() -> list[str]:
    from dataclasses import fields

    from allreduce.network import Network

    return [*(each.name for each in fields(Network) if each.type in ("float", float)), STEP]


def _ordered(bounds: Any) -> bool:
    numbers = isinstance(bounds, list) and len(bounds) == 2 and all(map(_number, bounds))
    return numbers and bounds[0] <= bounds[1]


def _number(value: Any) -> bool:
    """Finite, also as a float."""
    try:
        return isinstance(value, int | float) and math.isfinite(value) and value is not True
    except OverflowError:
        return False


def _widest(bounds: Any) -> tuple[float | None, float]:
    """The interval, of several the one that says least: from 0, or with the largest ratio."""
    if not bounds:
        return None, math.nan
    pairs = bounds if isinstance(bounds[0], list) else [bounds]
    return max(pairs, key=lambda pair: pair[1] / pair[0] if pair[0] > 0 else math.inf)
