"""Iterations to converge as a function of N, the gradients in an update: given, read or modelled.

    50:137500,100:76200   points; between and beyond them a power of N through the nearest two
    chen                  the points above: Chen et al. 2016, Inception on ImageNet
    FILE.json             {"50": 137500, ...}, or rows with `needed` and `iterations`, as a study
                          writes them; several of one N are averaged
    power:X               N ** -X, 1 at N = M; power:1 counts used gradients alone
    critical:N0           1 + N0 / N, 1 at N = M: the fewest iterations, and a batch that halves
                          what is above them (McCandlish et al. 2018, arXiv 1812.06162)

A curve from two points is an assumption; the last two are models, in units of the iterations at M:
they rank splits and give no seconds.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from allreduce import files
from mpisgd.values.errors import UsageError
from mpisgd.values.quantities import number, whole

PLACE = "--iterations"
ALLOWED = "points such as 50:137500,100:76200, chen, power:0.85, critical:40, or a .json file"
CHEN = "50:137500,100:76200"


class Curve(NamedTuple):
    """`iterations(N)`; known: the least and the greatest N of the points, None of a model."""

    iterations: Callable[[float], float]
    known: tuple[int, int] | None
    name: str

    def extrapolated(self, needed: int) -> bool | None:
        """Whether N lies outside the points; None for a model."""
        return None if self.known is None else not self.known[0] <= needed <= self.known[1]


def curve(text: str, machines: int) -> Curve:
    """What `text` says, for M machines. Raises UsageError."""
    name, _, rest = text.partition(":")
    if text == "chen":
        return _of_points(_points(CHEN), text)
    if text.endswith(".json"):
        return _of_points(_read(text), text)
    if name == "power":
        slope = number(f"{PLACE} power", rest, high=10.0)
        return Curve(lambda n: (n / machines) ** -slope, None, text)
    if name == "critical":
        critical = number(f"{PLACE} critical", rest)
        return Curve(lambda n: (1 + critical / n) / (1 + critical / machines), None, text)
    return _of_points(_points(text), text)


def _of_points(points: Mapping[int, float], name: str) -> Curve:
    """Straight lines in the logarithms of both."""
    if len(points) < 2:
        raise UsageError(PLACE, name, "two points at least, of different N")
    places = np.log(sorted(points))
    values = np.log([points[n] for n in sorted(points)])

    def iterations(needed: float) -> float:
        at = np.log(needed)
        i = int(np.clip(np.searchsorted(places, at) - 1, 0, len(places) - 2))
        slope = (values[i + 1] - values[i]) / (places[i + 1] - places[i])
        return float(np.exp(values[i] + slope * (at - places[i])))

    return Curve(iterations, (min(points), max(points)), name)


def _points(text: str) -> dict[int, float]:
    points: dict[int, float] = {}
    for word in text.split(","):
        needed, colon, iterations = word.partition(":")
        if not colon:
            raise UsageError(PLACE, word, ALLOWED)
        key = whole(PLACE, needed.strip())
        if key in points:
            raise UsageError(PLACE, word, "one point for each N")
        points[key] = number(PLACE, iterations.strip(), open_low=True)
    return points


def _read(path: str) -> dict[int, float]:
    allowed = 'JSON: {"N": iterations, ...}, or rows with `needed` and `iterations`'
    try:
        found = json.loads(files.text(path))
    except files.Unreadable as error:
        raise UsageError(PLACE, path, f"{error}; {allowed}") from None
    except (ValueError, RecursionError):
        raise UsageError(PLACE, path, allowed) from None
    pairs: list[tuple[Any, Any]] = []
    if isinstance(found, dict):
        pairs = list(found.items())
    elif isinstance(found, list) and all(isinstance(row, dict) for row in found):
        pairs = [(row.get("needed"), row.get("iterations")) for row in found]
    if not pairs:
        raise UsageError(PLACE, path, allowed)
    gathered: dict[int, list[float]] = defaultdict(list)
    for needed, iterations in pairs:
        # A run that did not converge is no point, and leaving it out would flatter its N.
        value = number(f"{PLACE} {path}: iterations", iterations, open_low=True)
        gathered[whole(f"{PLACE} {path}: needed", needed)].append(value)
    return {needed: float(np.mean(values)) for needed, values in gathered.items()}
