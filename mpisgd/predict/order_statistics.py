"""Mean times to the N-th of M independent gradients, by quadrature, where their law is known.

The factors of a specification of stragglers multiply: their logarithms add, and the law of the sum
is the convolution of theirs on a grid, in which all terms are positive, so that tails keep their
relative precision. With F(t) the share of gradients done by t,

    E[t of the N-th] = integral of P(fewer than N of M are done by t) dt,

and beyond the grid a Pareto tail t^-alpha makes that probability fall as t^(-alpha (M - N + 1)).
"""

from collections.abc import Callable
from math import erfc, inf, lgamma, log, sqrt
from typing import NamedTuple

import numpy as np

LAWS = ("exponential", "shifted", "lognormal", "pareto")
POINTS = 1 << 14
RARE = 1e-30  # probability that no grid goes beyond
CUT = 1e-18  # of the survival: from here on the tail is a power
HIGHEST = 300.0  # logarithm of what a float may still hold
LOWEST = -16.0  # least logarithm of a factor that may come near 0


class Law(NamedTuple):
    """P(log factor > y) on an array, the y between which all but RARE lies, and the exponent of
    a Pareto tail."""

    above: Callable[[np.ndarray], np.ndarray]
    low: float
    high: float
    alpha: float = inf


def law(term: str) -> Law | None:
    """That of one term of a specification; None of a term that is no law of every machine."""
    name, _, rest = term.strip().partition(":")
    if name not in LAWS:
        return None
    values = [float(part) for part in rest.split(":")] if rest else []
    longest = -log(RARE)
    if name == "lognormal":
        sigma, middle = values[0], -(values[0] ** 2) / 2
        normal = np.vectorize(lambda y: 0.5 * erfc((y - middle) / (sigma * sqrt(2))))
        return Law(normal, middle - 9 * sigma, middle + sigma**2 + 12 * sigma)
    if name in ("exponential", "shifted"):
        share = values[0] if values else 1.0
        least = 1 - share

        def waits(y: np.ndarray) -> np.ndarray:
            return np.exp(-np.maximum(0.0, np.exp(y) - least) / share)

        return Law(waits, log(least) if least else LOWEST, log(least + share * longest))
    alpha, chance = (*values, 1.0)[:2]

    def above(y: np.ndarray) -> np.ndarray:
        return np.where(y < 0, 1.0, chance * np.exp(-alpha * np.maximum(y, 0.0)))

    return Law(above, 0.0, longest / alpha, alpha)


def mean_times(straggler: str, machines: int, needed: np.ndarray) -> np.ndarray | None:
    """Mean time to the N-th of `machines` gradients of step time 1 [split], of a specification
    that was checked; None where a term is no law that all machines share, or its tail too long."""
    laws = [law(term) for term in straggler.split(",")]
    known = [found for found in laws if found is not None]
    if len(known) < len(laws) or sum(found.high for found in known) > HIGHEST:
        return None
    y, survival = _product(known)
    t = np.exp(y)
    alpha = min(found.alpha for found in known)
    if np.isfinite(alpha):
        last = int(np.argmax(survival < CUT)) if (survival < CUT).any() else len(t) - 1
        t, survival = t[: last + 1], survival[: last + 1]
    return np.array([_mean(t, row, alpha, machines - n + 1)
                     for n, row in zip(needed.tolist(), _waiting(survival, machines, needed),
                                       strict=True)])  # fmt: skip


def _product(laws: list[Law]) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of the product's values, and P(above each of them)."""
    step = sum(found.high - found.low for found in laws) / POINTS
    masses, start = np.ones(1), 0
    for found in laws:
        low, high = round(found.low / step), round(found.high / step)
        edges = (np.arange(low, high + 2) - 0.5) * step  # cells around the points of the grid
        masses, start = np.convolve(masses, -np.diff(found.above(edges))), start + low
    survival = np.append(np.cumsum(masses[::-1])[::-1][1:], 0.0)
    return (start + np.arange(len(masses))) * step, survival


def _waiting(survival: np.ndarray, machines: int, needed: np.ndarray) -> list[np.ndarray]:
    """P(fewer than N of M are done) at each point of the grid, for the rising N of `needed`."""
    with np.errstate(divide="ignore"):
        done, open_ = np.log1p(-np.minimum(survival, 1.0)), np.log(survival)
    total, found, wanted = np.zeros(len(survival)), [], set(needed.tolist())
    for k in range(int(needed[-1])):
        ways = lgamma(machines + 1) - lgamma(k + 1) - lgamma(machines - k + 1)
        part = k * done if k else 0.0  # 0 log 0 is 0
        total = total + np.exp(ways + part + (machines - k) * open_)
        if k + 1 in wanted:
            found.append(np.minimum(total, 1.0))
    return found


def _mean(t: np.ndarray, waiting: np.ndarray, alpha: float, spare: int) -> float:
    """The integral; `spare`: M - N + 1, how many are late when the N-th is."""
    if alpha * spare <= 1:
        return inf
    inside = float(t[0] + np.dot(np.diff(t), waiting[:-1]))
    edge = t[-1] * sqrt(t[-1] / t[-2])  # what is above a point is above its cell
    beyond = 0.0 if alpha == inf else float(edge * waiting[-1]) / (alpha * spare - 1)
    return inside + beyond
