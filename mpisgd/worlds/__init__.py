"""Worlds run algorithms: a communicator (real ranks, wall clock) or a clock (virtual ranks).

A world makes one Site for each rank; a Worker stands on it. Methods that may take time are
generators: in the communicator world they wait and never yield, in the clock world they yield
whenever another rank's turn comes.
"""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from mpisgd.worker import Worker

Steps = Generator[None, None, None]
Ready = Callable[[int], object]
Work = Callable[[Callable[[float], object], Ready | None], None]


class Flight(Protocol):
    """An all-reduce that a site has planned."""

    def start(self) -> None:
        """Copy the input and begin."""


class Site(Protocol):
    """A rank's place in a world."""

    rank: int
    size: int

    @property
    def asked_to_stop(self) -> bool:
        """Whether this rank was told to stop, by a signal."""

    def begin_step(self, step: int) -> None:
        """Start the step's clocks."""

    def compute(self, work: Work, samples: int, ready: Ready | None = None) -> Steps:
        """Do `work(progress, ready)`; it calls progress(share of the work done) now and then, and
        `ready`, if given, whenever another part of the gradient is final (see models.Model)."""

    def updating(self) -> AbstractContextManager[Any]:
        """Around an update of the parameters: its time counts as such."""

    def plan(self, source: np.ndarray, result: np.ndarray | None) -> Flight:
        """A mean over all ranks, in place if `result` is None; in the same order on every rank."""

    def wait(self, flight: Flight) -> Steps:
        """Until `flight`, which was started, has arrived."""

    def gather(self, value: int) -> Generator[None, None, list[int]]:
        """Every rank's value, on every rank."""

    def end_step(self, **columns: float) -> None:
        """Record a row of /steps: `columns` beside the site's own times."""

    def evaluate(self, worker: "Worker") -> Steps:
        """Evaluate the mean of all ranks' parameters on the test set; its time does not count."""
