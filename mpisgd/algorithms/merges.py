"""How a delayed average enters the parameters: `merge(parameters, mean, started, xi)`, in place.

`parameters`: now, after this step's update; `mean`: the average of all ranks' parameters when it
was started; `started`: this rank's own share of it; `xi`: the local update proportion.
"""

import numpy as np


def convex(parameters: np.ndarray, mean: np.ndarray, started: np.ndarray, xi: float) -> None:
    """x <- xi x + (1 - xi) mean. DaSGD, Zhou et al. 2020.

    Literally so: both lerp forms (x + (1-xi)(mean-x), mean + xi(x-mean)) break exactness at xi = 0
    or xi = 1.
    """
    np.multiply(parameters, parameters.dtype.type(xi), out=parameters)
    np.add(parameters, mean * mean.dtype.type(1 - xi), out=parameters)


def delta(parameters: np.ndarray, mean: np.ndarray, started: np.ndarray, xi: float) -> None:
    """x <- x + (mean - started): no local work is lost. CoCoD, Hivemind."""
    np.add(parameters, mean - started, out=parameters)


def overwrite(parameters: np.ndarray, mean: np.ndarray, started: np.ndarray, xi: float) -> None:
    """x <- mean: the work of the steps in flight is thrown away. Streaming DiLoCo's default."""
    parameters[...] = mean


MERGES = {"convex": convex, "delta": delta, "overwrite": overwrite}
