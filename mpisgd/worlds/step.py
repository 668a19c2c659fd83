"""What all worlds share of a step: where its time went, where its row goes, how it is given up."""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mpisgd.training.worker import Worker


class Abandoned(Exception):
    """Raised inside a computation that is given up."""


class Recorder(Protocol):
    """Where rows go."""

    def step(self, step: int, columns: dict[str, float]) -> None: ...

    def evaluation(self, worker: Worker, sums: np.ndarray, time_s: float, step: int) -> None: ...


@dataclass
class Counters:
    """Where a step's time went, in seconds; the names are columns of /steps."""

    compute_s: float = 0.0
    update_s: float = 0.0
    poll_s: float = 0.0
    wait_s: float = 0.0
    polls: int = 0
    rested: int = 0  # whether evaluations or a checkpoint came before it, while averages arrived
    sent_bytes: int = -1  # of the averages that arrived; -1: nobody counts them
    flight_start_s: float = math.nan  # of the averages that arrived in this step, the first start
    flight_end_s: float = math.nan  # and the last end

    def look(self, seconds: float) -> None:
        self.poll_s += seconds
        self.polls += 1

    def pending(self, start_s: float, end_s: float, sent_bytes: int) -> None:
        """An average has arrived."""
        if self.sent_bytes >= 0:
            self.sent_bytes += sent_bytes
        self.flight_start_s = float(np.fmin(self.flight_start_s, start_s))
        self.flight_end_s = float(np.fmax(self.flight_end_s, end_s))
