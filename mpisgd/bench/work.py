"""Fixed work with looks in between, and a communication beside it."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

DIMENSION = 48  # of the matrices of one piece of work: about 10 us
PIECES_TIMED = 200

Clock = Callable[[], float]


class Work(Protocol):
    """Takes the same time on each call, the looks apart; looks `looks` times, evenly spread."""

    def __call__(self, look: Callable[[], None], looks: int) -> None: ...


class Gemm:
    """`pieces` products of two small matrices: a core at work.

    At most one look between two pieces: no more looks than there are gaps.
    """

    def __init__(self, pieces: int, dimension: int = DIMENSION):
        random = np.random.default_rng(0)
        self.pieces = pieces
        self._left = random.standard_normal((dimension, dimension), np.float32)
        self._right = random.standard_normal((dimension, dimension), np.float32)
        self._product = np.empty_like(self._left)

    def __call__(self, look: Callable[[], None], looks: int) -> None:
        left, right, product, done = self._left, self._right, self._product, 0
        for stop in stops(self.pieces, looks):
            for _ in range(stop - done):
                np.matmul(left, right, out=product)
            done = stop
            look()
        for _ in range(self.pieces - done):
            np.matmul(left, right, out=product)

    def piece_s(self) -> float:
        """Seconds of one piece: the median of several tries."""
        tries = []
        for _ in range(5):
            began = time.perf_counter()
            Gemm(PIECES_TIMED)(_nowhere, 0)
            tries.append((time.perf_counter() - began) / PIECES_TIMED)
        return float(np.median(tries))


class Sleep:
    """The host idle for `seconds`, as beside an accelerator, but for the looks."""

    def __init__(self, seconds: float):
        self.seconds = seconds

    def __call__(self, look: Callable[[], None], looks: int) -> None:
        began = time.perf_counter()
        for number in range(1, looks + 1):
            _sleep_until(began + self.seconds * number / (looks + 1))
            look()
        _sleep_until(began + self.seconds)


class Span(NamedTuple):
    """One call of a communication beside work. Seconds, but for the polls."""

    exposed_s: float
    longest_poll_s: float
    polls: int


def beside(flight: Any, work: Work, polls: int, clock: Clock = time.perf_counter) -> Span:
    """Start `flight`, do `work` and look at the flight meanwhile, wait for it.

    `flight` has the methods of a Plan; its `test` is only called when there are polls.
    """
    longest, count = 0.0, 0

    def look() -> None:
        nonlocal longest, count
        began = clock()
        flight.test()
        longest, count = max(longest, clock() - began), count + 1

    began = clock()
    flight.start()
    started = clock()
    work(look, polls)
    worked = clock()
    flight.wait()
    return Span((started - began) + (clock() - worked), longest, count)


def stops(pieces: int, looks: int) -> list[int]:
    """After how many pieces to look, spread evenly, never before the first or after the last."""
    wanted = ((number * pieces) // (looks + 1) for number in range(1, looks + 1))
    return [stop for stop in dict.fromkeys(wanted) if stop > 0]


def _nowhere() -> None:
    """Nothing is in flight."""


def _sleep_until(moment: float) -> None:
    left = moment - time.perf_counter()
    if left > 0:
        time.sleep(left)
