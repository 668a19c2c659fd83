"""How long an update waits for gradients behind its first: a constant, or by what was observed."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mpisgd.algorithms.policies import Policy
from mpisgd.servers.messages import Push

WINDOW = 16  # gradients a worker that are looked back on
BEFORE_S = 1.0  # behind the first gradient, until every worker could have been observed once
LEAST = 0.05  # of the median: equal workers do not come at the same instant


class Patience:
    """Of a policy with `patience` k: an update waits until median + k MAD seconds have passed since
    the one before, and at least k MAD behind its first gradient. Both are of the seconds from a
    worker's parameters to its gradient: less than half of these, however long, move neither.
    """

    def __init__(self, policy: Policy, workers: int):
        self.timeout_s, self.deviations, self.workers = policy.timeout_s, policy.patience, workers
        self.updated_s = 0.0
        self._given = np.zeros(workers)  # when each last got parameters, s
        self._turns: deque[float] = deque(maxlen=WINDOW * workers)

    def gave(self, worker: int, now: Callable[[], float]) -> None:
        """It got parameters."""
        if self.deviations is not None:
            self._given[worker] = now()

    def came(self, push: Push) -> None:
        """A gradient, of whatever version."""
        if self.deviations is not None:
            self._turns.append(push.arrived_s - float(self._given[push.worker]))

    def until(self, first: Push) -> float | None:
        """The time (s) when an update with that first gradient is made; None: when it is full."""
        if self.deviations is None:
            return None if self.timeout_s is None else first.arrived_s + self.timeout_s
        if len(self._turns) < self.workers:
            return first.arrived_s + BEFORE_S
        turns = np.array(self._turns)
        median = float(np.median(turns))
        late = self.deviations * float(np.median(np.abs(turns - median)))
        late = max(late, LEAST * median)
        return max(self.updated_s + median, first.arrived_s) + late

    def state(self) -> dict[str, Any] | None:
        """What the rest of the run depends on."""
        if self.deviations is None:
            return None
        turns = np.array(self._turns)
        return {"updated_s": self.updated_s, "given": self._given, "turns": turns}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        if state:
            self.updated_s = float(state["updated_s"])
            self._given[...] = state["given"]
            self._turns.extend(state["turns"].tolist())
