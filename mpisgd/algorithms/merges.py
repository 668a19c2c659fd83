"""How a delayed average enters the parameters: `merge(parameters, mean, started, xi)`, in place.

`parameters`: now, after this step's update; `mean`: the average of all ranks' parameters when it
was started; `started`: this rank's own share of it; `xi`: the local update proportion. Operators
work on arrays of any memory.
"""

from typing import Any


def convex(parameters: Any, mean: Any, started: Any, xi: float) -> None:
    """x <- xi x + (1 - xi) mean. DaSGD, Zhou et al. 2020.

    Literally so: both lerp forms (x + (1-xi)(mean-x), mean + xi(x-mean)) break exactness at xi = 0
    or xi = 1.
    """
    parameters *= parameters.dtype.type(xi)
    parameters += mean * mean.dtype.type(1 - xi)


def delta(parameters: Any, mean: Any, started: Any, xi: float) -> None:
    """x <- x + (mean - started): no local work is lost. CoCoD, Hivemind."""
    parameters += mean - started


def overwrite(parameters: Any, mean: Any, started: Any, xi: float) -> None:
    """x <- mean: the work of the steps in flight is thrown away. Streaming DiLoCo's default."""
    parameters[...] = mean


MERGES = {"convex": convex, "delta": delta, "overwrite": overwrite}
