"""Laws of scaling, fitted by least squares, with Student's 95 % intervals.

Amdahl (AFIPS 1967) and Gunther's universal law (Guerrilla Capacity Planning, 2007) are fitted to
throughput X of p ranks: p / X(p) = a (1 + sigma (p - 1) + kappa p (p - 1)), each point with the
weight of its own size, sigma and kappa >= 0, kappa = 0 for Amdahl. Extra-P's performance model
normal form for one parameter (Calotoiu et al., SC 2013) is c0 + c1 p^i log2(p)^j, its (i, j) the
one of the least leave-one-out SMAPE, no term where the constant's is less.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import nan, sqrt
from typing import NamedTuple

import numpy as np

from mpisgd.values.statistics import student

EXPONENTS = tuple(
    (Fraction(i), j)
    for i, js in {
        "0": (1, 2), "1/4": (0, 1, 2), "1/3": (0, 1, 2), "1/2": (0, 1, 2), "2/3": (0, 1, 2),
        "3/4": (0, 1, 2), "4/5": (0,), "1": (0, 1, 2), "5/4": (0, 1), "4/3": (0, 1),
        "3/2": (0, 1, 2), "5/3": (0,), "7/4": (0,), "2": (0, 1, 2), "9/4": (0,), "7/3": (0,),
        "5/2": (0, 1, 2), "8/3": (0,), "11/4": (0,), "3": (0, 1),
    }.items()
    for j in js
)  # fmt: skip
"""Extra-P's default search space: powers of p and of log2 p."""
FALLING = tuple((Fraction(-i), j) for i, j in EXPONENTS if j == 0)
"""Its falling terms, which strong scaling needs."""
LEAST = 0.0005  # a constant below this share of the least value is none, nor is such a term
FEWEST = 5  # points for a normal form

Band = tuple[np.ndarray, np.ndarray, np.ndarray]  # value, low and high end at each rank count


class Fit(NamedTuple):
    """A law that was fitted. coefficients: name -> value and half-width of its 95 % interval (NaN
    without points to spare); smape: percent, over the points that were fitted; at: ranks -> what
    the law says there and its interval, in the unit of what was fitted."""

    law: str
    formula: str
    coefficients: dict[str, tuple[float, float]]
    smape: float
    at: Callable[[np.ndarray], Band]


def amdahl(ranks: Sequence[float], throughput: Sequence[float]) -> Fit:
    """A serial share sigma: X(p) = p / (a (1 + sigma (p - 1)))."""
    return _throughput("amdahl", ranks, throughput, 2)


def universal(ranks: Sequence[float], throughput: Sequence[float]) -> Fit:
    """Contention sigma and coherency kappa, whose cost grows with pairs of ranks."""
    return _throughput("universal", ranks, throughput, 3)


def normal_form(
    points: Sequence[float], values: Sequence[float], falling: bool = False
) -> Fit | None:
    """Extra-P's for values over one parameter; None of fewer than 5 points."""
    p, y = np.array(points, float), np.array(values, float)
    if len(p) < FEWEST:
        return None
    best, cost = None, _smape(y, np.full(len(y), y.mean()))
    terms = (*EXPONENTS, *(FALLING if falling else ()))
    for exponents in terms if y.min() < y.max() else ():
        found = _left_out(p, y, exponents)
        coefficient = _solved(_design(p, exponents), y)[1]
        share = np.abs(coefficient * _design(p, exponents)[:, 1] / y).max()
        if found < cost and share >= LEAST:
            best, cost = exponents, found
    return _linear(p, y, best)


def _linear(p: np.ndarray, y: np.ndarray, exponents: tuple[Fraction, int] | None) -> Fit:
    def design(at: np.ndarray) -> np.ndarray:
        return _design(at, exponents) if exponents else np.ones((len(at), 1))

    beta, spread, t = _estimated(design(p), y)

    def at(ranks: np.ndarray) -> Band:
        x = design(np.asarray(ranks, float))
        middle = x @ beta
        half = t * np.sqrt(np.einsum("ij,jk,ik->i", x, spread, x))
        return middle, middle - half, middle + half

    halves = t * np.sqrt(np.diag(spread))
    told = {
        f"c{k}": (float(b), float(h)) for k, (b, h) in enumerate(zip(beta, halves, strict=True))
    }
    formula = f"{beta[0]:.4g}" + (f" + {beta[1]:.4g} {term(*exponents)}" if exponents else "")
    return Fit("extra-p", formula, told, _smape(y, design(p) @ beta), at)


def term(power: Fraction, logarithm: int) -> str:
    """Of a normal form: `p^(1/2) log2(p)^2`."""
    parts = []
    if power:
        parts.append(
            "p" if power == 1 else f"p^{power}" if power.denominator == 1 else f"p^({power})"
        )
    if logarithm:
        parts.append("log2(p)" + (f"^{logarithm}" if logarithm > 1 else ""))
    return " ".join(parts)


def _throughput(law: str, ranks: Sequence[float], throughput: Sequence[float], most: int) -> Fit:
    p, x = np.array(ranks, float), np.array(throughput, float)
    cost = p / x
    columns = _costs(p)[:, :most]
    kept = min(
        (chosen for chosen in _subsets(most) if (_solved(columns[:, chosen] / cost[:, None],
                                                         np.ones(len(p))) >= 0).all()),
        key=lambda chosen: _rss(columns[:, chosen] / cost[:, None], np.ones(len(p))),
    )  # fmt: skip
    beta, spread, t = _estimated(columns[:, kept] / cost[:, None], np.ones(len(p)))

    def at(where: np.ndarray) -> Band:
        q = np.asarray(where, float)
        rows = _costs(q)[:, kept]
        middle = rows @ beta
        half = t * np.sqrt(np.einsum("ij,jk,ik->i", rows, spread, rows))
        with np.errstate(divide="ignore"):
            high = np.where(middle > half, q / (middle - half), np.inf)
        return q / middle, q / (middle + half), high

    told = {"a": (float(beta[0]), t * sqrt(spread[0, 0]))}
    for name, column in (("sigma", 1), ("kappa", 2))[: most - 1]:
        told[name] = _ratio(beta, spread, t, kept.index(column)) if column in kept else (0.0, nan)
    shares = ", ".join(f"{name} {value:.4g}" for name, (value, _) in told.items() if name != "a")
    return Fit(law, shares, told, _smape(x, at(p)[0]), at)


def _costs(p: np.ndarray) -> np.ndarray:
    return np.stack([np.ones(len(p)), p - 1, p * (p - 1)], axis=1)


def _subsets(most: int) -> list[list[int]]:
    """Columns to keep: the constant with any of the others, all of them first."""
    return [[0, 1, 2], [0, 1], [0, 2], [0]] if most == 3 else [[0, 1], [0]]


def _ratio(beta: np.ndarray, spread: np.ndarray, t: float, k: int) -> tuple[float, float]:
    """beta[k] / beta[0] and the half-width of its interval, by the delta method."""
    value = beta[k] / beta[0]
    slope = np.zeros(len(beta))
    slope[0], slope[k] = -value / beta[0], 1 / beta[0]
    return float(value), float(t * sqrt(max(0.0, slope @ spread @ slope)))


def _estimated(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Coefficients, their covariance, and Student's t of the points to spare; NaN of none."""
    beta, freedom = _solved(x, y), len(y) - x.shape[1]
    if freedom < 1:
        return beta, np.full((x.shape[1],) * 2, nan), nan
    return beta, _rss(x, y) / freedom * np.linalg.pinv(x.T @ x), student(freedom)


def _solved(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.linalg.lstsq(x, y, None)[0]


def _rss(x: np.ndarray, y: np.ndarray) -> float:
    return float(((x @ _solved(x, y) - y) ** 2).sum())


def _design(p: np.ndarray, exponents: tuple[Fraction, int]) -> np.ndarray:
    power, logarithm = exponents
    return np.stack([np.ones(len(p)), p ** float(power) * np.log2(p) ** logarithm], axis=1)


def _left_out(p: np.ndarray, y: np.ndarray, exponents: tuple[Fraction, int]) -> float:
    """SMAPE in percent, each value predicted from all others."""
    design, said = _design(p, exponents), np.empty(len(y))
    for k in range(len(y)):
        others = np.arange(len(y)) != k
        beta = _solved(design[others], y[others])
        least = np.abs(y[others]).min()
        if abs(beta[0] / (least or 1)) < LEAST:
            beta[0] = 0
        said[k] = design[k] @ beta
    return _smape(y, said)


def _smape(y: np.ndarray, said: np.ndarray) -> float:
    both = np.abs(y) + np.abs(said)
    return float(np.where(both > 0, 200 * np.abs(said - y) / np.where(both, both, 1), 0).mean())
