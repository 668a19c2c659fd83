"""Rounds that begin without the late: when one begins, and what share of the ranks is in it.

Ranks begin together, and their step times are independent, log-normal, of deviation `noise` / mean.
The time of tau steps is taken as log-normal too, with the variance of their sum (Fenton 1960). Then
a round of Q of M ranks begins at the Q-th order statistic of M draws.
"""

from functools import lru_cache
from math import log1p, sqrt

import numpy as np

from mpisgd.predict.order_statistics import mean_times
from mpisgd.training.quorum import ALL, MAJORITY, SOLO

TAKERS = {"minibatch-partial": MAJORITY, "local": ALL, "dasgd": ALL}  # and their default


def needed(quorum: str | int | None, workers: int) -> int:
    """How many ranks a round waits for; 0: for one that is drawn."""
    words = {None: workers, ALL: workers, SOLO: 1, MAJORITY: 0 if workers > 1 else 1}
    return quorum if isinstance(quorum, int) else words[quorum]


def in_time(quorum: str | int | None, workers: int, noise: float) -> float:
    """The share of ranks whose work is in a round, on average; all where nobody is late."""
    count = needed(quorum, workers)
    return 1.0 if not noise else (count or (workers + 1) / 2) / workers


@lru_cache(maxsize=256)
def begins(quorum: str | int | None, workers: int, noise: float, tau: int = 1) -> float:
    """Mean steps' times until a round of tau steps begins. One rank drawn takes tau on average."""
    count = needed(quorum, workers)
    if not noise or not count:
        return float(tau)
    sigma = sqrt(log1p(noise**2 / tau))
    found = mean_times(f"lognormal:{sigma}", workers, np.array([count]))
    assert found is not None, "a log-normal law is known"
    return tau * float(found[0])
