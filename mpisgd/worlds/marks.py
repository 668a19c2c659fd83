"""The course of a computation that took no time, or less time than it stands for."""

from collections.abc import Callable, Iterator


class Marks:
    """Takes a gradient's `progress` and `ready` calls, and tells when they would have come.

    `looks`: shares of the work, in 0 .. 1, at which it would have looked.
    """

    def __init__(self, look: Callable[[float], object] | None = None):
        """`look`: who else is told of progress."""
        self._look = look
        self.looks: list[float] = []
        self._ready: list[tuple[float, int]] = []
        self._needs: list[tuple[float, int]] = []

    def progress(self, share: float) -> None:
        self.looks.append(share)
        if self._look is not None:
            self._look(share)

    def ready(self, low: int) -> None:
        self._ready.append((self._share, low))

    def needs(self, high: int) -> None:
        self._needs.append((self._share, high))

    def deliver(self, reach: Callable[[float], object], ready: Callable[[int], object]) -> None:
        """Say what is ready when it would be; `reach` waits for a share of the work."""
        for share, _, lows in self.pieces():
            reach(share)
            for low in lows:
                ready(low)

    def forward(self) -> list[tuple[float, list[float], int]]:
        """(share at which a layer begins, the looks since the one before, what it needs)."""
        edges = [-1.0, *(share for share, _ in self._needs)]
        return [
            (share, [look for look in self.looks if low < look <= share], high)
            for low, (share, high) in zip(edges, self._needs, strict=False)
        ]

    @property
    def _share(self) -> float:
        return self.looks[-1] if self.looks else 0.0

    def pieces(self, after: float = -1.0) -> Iterator[tuple[float, list[float], list[int]]]:
        """(share at which the piece ends, the looks inside it, what is ready at its end), from
        the share `after` on."""
        marks = [*self._ready, (1.0, -1)]
        looks = iter([look for look in self.looks if look > after])
        look = next(looks, None)
        at = 0
        while at < len(marks):
            share = marks[at][0]
            lows = []
            while at < len(marks) and marks[at][0] == share:
                lows.append(marks[at][1])
                at += 1
            inside = []
            while look is not None and look <= share:
                inside.append(look)
                look = next(looks, None)
            yield share, inside, [low for low in lows if low >= 0]
