"""The table [calibration] that `mpisgd calibrate` leaves in a network file: what to know of it."""

import sys
import tomllib
from collections.abc import Container
from pathlib import Path
from typing import Any


def table(network: str | None) -> dict[str, Any]:
    """The table; empty for a preset, and for a file without one or that cannot be read: whoever
    reads the network says what is wrong with it."""
    if network is None or not network.endswith(".toml"):
        return {}
    try:
        found = tomllib.loads(Path(network).read_text(encoding="utf-8")).get("calibration")
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def doubts(network: str | None, unused: Container[str] = ()) -> list[str]:
    """One line for each quantity of the file that may as well be nothing, by its 95 % interval;
    unused: fields of the network that are not looked at, or were given otherwise."""
    found = table(network)
    keys = found.get("doubtful")
    return [
        f"{key} of {network} is not known{_interval(found.get(f'{key}_interval'))}; calibrate "
        "again with more --repetitions, or on an idle machine"
        for key in (keys if isinstance(keys, list) else ())
        if isinstance(key, str) and key not in unused
    ]


def tell(network: str | None, unused: Container[str] = ()) -> None:
    """Say them on standard error, beside a result that takes the medians."""
    for line in doubts(network, unused):
        print(f"mpisgd: warning: {line}", file=sys.stderr)


def _interval(bounds: Any) -> str:
    """A file may have been written by hand."""
    try:
        low, high = map(float, bounds)
    except (TypeError, ValueError):
        return ""
    return f": its 95 % interval is {low:.3g} to {high:.3g}"
