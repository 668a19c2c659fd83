"""How far long work is: a bar on a terminal, a line now and then where there is none, nothing where
`--quiet` was said."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Protocol, TypeVar

EVERY_S = 10.0  # between two lines
LONG_S = 30.0  # a run that takes less says nothing
DELAY_S = 1.0  # before a bar is drawn
QUIET = "MPISGD_QUIET"  # the variable that `--quiet` sets, for processes that are started too

Item = TypeVar("Item")


class Bar(Protocol):
    """What is told of each step, or of each gradient that a server used."""

    def update(self) -> object: ...

    def close(self) -> None: ...


class Silent:
    """Tells nothing."""

    def update(self) -> None:
        """One more."""

    def close(self) -> None:
        """Nothing is open."""


class Lines:
    """`step 120 of 1000, 24/s, about 35 s left`, at most every EVERY_S seconds; as a bar to users.

    The rate is that since the first update: of thousands of virtual workers the first gradient is
    used when all have computed one.
    `each`: calls of `update` that make a step; `done`: steps before this process began; `unit`:
    what to say instead of step.
    """

    def __init__(
        self, steps: int, each: int = 1, done: int = 0,
        now: Callable[[], float] = time.monotonic, unit: str = "step",
    ):  # fmt: skip
        self.steps, self.each, self.done, self.unit, self._now = steps, each, done, unit, now
        self._count = 0
        self._began = self._told = self._first = now()

    def update(self) -> None:
        """One more."""
        self._count += 1
        now = self._now()
        if self._count == 1:
            self._first = now
        if now - self._told < EVERY_S:
            return
        self._told = now
        told = f"mpisgd: {self.unit} {self.done + self._count // self.each} of {self.steps}"
        counted, passed = (self._count - 1) / self.each, now - self._first
        if not counted or not passed:  # no rate yet
            print(told, file=sys.stderr, flush=True)
            return
        left = passed * max(0, self.steps - self.done - self._count / self.each) / counted
        if now - self._began + left > LONG_S:
            rate = f"{counted / passed:.3g}/s"
            print(f"{told}, {rate}, about {left:.0f} s left", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing is open."""


def shown(title: str, steps: int, each: int = 1, done: int = 0, unit: str = "") -> Bar:
    """A bar on a terminal, Lines elsewhere, Silent if told. `each`, `done`, `unit`: as of Lines."""
    if os.environ.get(QUIET):
        return Silent()
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return Lines(steps, each, done, unit=unit or "step")
    from tqdm import tqdm

    unit = unit or ("step" if each == 1 else "gradient")
    total, initial = steps * each, done * each
    return tqdm(
        total=total, initial=initial, unit=unit, desc=title, leave=False, delay=DELAY_S
    )  # fmt: skip


def over(items: Iterable[Item], title: str, unit: str, count: int | None = None) -> Iterator[Item]:
    """The items, and how many of them are done; `count`: of those without a length."""
    listed = len(items) if isinstance(items, Sequence) else count or 0
    with closing(shown(title, listed, unit=unit)) as bar:
        for item in items:
            yield item
            bar.update()
