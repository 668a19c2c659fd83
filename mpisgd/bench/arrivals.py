"""All-reduces to which ranks come late, as they did to the averages of a recorded run."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from mpisgd.store.arrival import order, skews

YIELD_S = 1e-3  # a wait that is longer sleeps first


class Arrivals:
    """What a run's ranks were late by, in turn; the same on all ranks. UsageError for a file that
    is no such run, or not of so many ranks."""

    def __init__(self, path: str, ranks: int):
        self.late = skews(path, ranks)
        self.order = order(self.late)

    def delayed(self, rank: int, call: Callable[[], object]) -> Callable[[], None]:
        """`call` after as long as `rank` was late to the next average."""
        own, count = self.late[:, rank].tolist(), 0

        def run() -> None:
            nonlocal count
            until = time.perf_counter() + own[count % len(own)]
            count += 1
            if (rest := until - time.perf_counter() - YIELD_S) > 0:
                time.sleep(rest)
            while time.perf_counter() < until:
                pass
            call()

        return run

    def since_last(self, seconds: np.ndarray, warm_up: int) -> np.ndarray:
        """Samples [operation, repetition, rank] of delayed calls, from the last arrival on."""
        last = self.late.max(axis=1)
        numbers = (np.arange(seconds.shape[1]) + warm_up) % len(last)
        return seconds - last[numbers][:, None]


def read(path: str | None, comm: Any) -> Arrivals | None:
    """None where no run is named."""
    return None if path is None else Arrivals(path, comm.Get_size())
