"""How far a mean of few values may be from the true one: Student's t, exactly.

P(|T| <= t) with a whole number of degrees of freedom is a finite sum of powers of cos(theta),
theta = atan(t / sqrt(freedom)): Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3
(odd) and 26.7.4 (even). `student` inverts it by bisection.
"""

from collections.abc import Sequence
from functools import cache
from math import atan, cos, hypot, nan, pi, sin, sqrt

SHARE = 0.95


def within(t: float, freedom: int) -> float:
    """P(|T| <= t) of Student's t with `freedom` >= 1 degrees of freedom."""
    theta = atan(t / sqrt(freedom))
    odd = freedom % 2
    power, total = (cos(theta) if odd else 1.0), 0.0
    for k in range(2 + odd, freedom + 1, 2):  # each term from the one before it
        total += power
        power *= cos(theta) ** 2 * (k - 1) / k
    return (theta + sin(theta) * total) * 2 / pi if odd else sin(theta) * total


@cache
def student(freedom: int, share: float = SHARE) -> float:
    """The t with P(|T| <= t) = share: 12.706 of 2 values, 4.303 of 3, 1.960 of many."""
    low, high = 0.0, 1.0
    while within(high, freedom) < share:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle, freedom) < share else (low, middle)
    return high


class Spread(float):
    """The mean of at least two values, which knows the `half`-width of its 95 % interval and is
    printed with it."""

    half: float

    def __new__(cls, values: Sequence[float]) -> "Spread":
        """The mean; its `half` is exact for normal values only."""
        made = super().__new__(cls, sum(values) / len(values))
        made.half = half_width(values)
        return made

    def __format__(self, form: str) -> str:
        """`0.912 +- 0.013`: the mean in this form, the half-width in two digits."""
        few = ".0f" if self.half >= 99.5 else ".2g"
        half = format(self.half, form if form.endswith("%") else few)
        return f"{format(float(self), form)} +- {half}"


def half_width(values: Sequence[float], share: float = SHARE) -> float:
    """Of the interval around their mean that holds the true one with this probability, if they
    are normal; NaN of fewer than two."""
    count = len(values)
    if count < 2:
        return nan
    mean = sum(values) / count
    deviation = hypot(*(value - mean for value in values)) / sqrt(count - 1)
    return student(count - 1, share) * deviation / sqrt(count)
