"""Links that several messages want: they queue, or they share.

Sharing is what TCP streams do: rates that change with every message that comes or goes. Max-min
fairness: the rates of all messages grow together until a link is full; those that cross it keep
their rate, the others go on growing (Bertsekas and Gallager, Data Networks, 6.5.2).
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

Path = Sequence[tuple[int, float]]  # (link, seconds per byte)
TOLERANCE = 1e-12  # of a time: completions so near are one


Credit = Callable[[int], float]  # bytes that a link lets pass at once when it has been idle


def no_credit(link: int) -> float:
    """Links that let nothing pass at once."""
    return 0.0


class Queues:
    """Links that serve whole messages, first come first served."""

    def __init__(self, credit: Credit = no_credit):
        self._credit = credit
        self._taken: dict[int, float] = {}  # until when each link is

    def hop(self, link: int, cost: float, nbytes: float, time: float) -> tuple[float, float]:
        """When a message that is at the link at `time` begins to pass, and when it has passed (s).

        `cost`: seconds a byte. A token bucket: an idle link makes up for its credit, no more.
        """
        taken = self._taken.get(link, -inf)
        full = self._taken[link] = max(time - self._credit(link) * cost, taken) + nbytes * cost
        begins = max(time, taken)
        return begins, max(begins, full)


class _Flow:
    __slots__ = ("end", "left", "path", "rate", "subject")

    def __init__(self, subject: Any, path: Path, left: float):
        self.subject, self.path, self.left = subject, path, left
        self.rate, self.end = 0.0, inf


class Fair:
    """Messages on shared links. After any `add` or `finished`, the next completion is `next_end()`.

    Callers ask for `next_end()` again after each of them.
    """

    def __init__(self, credit: Credit = no_credit):
        self._credit = credit
        self._flows: list[_Flow] = []
        self._idle_since: dict[int, float] = {}
        self._time = 0.0
        self.version = 0  # counts changes: a completion foreseen by an older one is void
        self._shared = 0  # the version of which the rates are

    def add(self, subject: Any, path: Path, nbytes: float, time: float) -> None:
        """`nbytes` bytes set out on `path` (not empty) at `time` (s), not before the last call."""
        self._move(time)
        saved = min(self._spend(link, cost, time) for link, cost in path)
        self._flows.append(_Flow(subject, path, max(0.0, nbytes - saved)))
        self.version += 1

    def next_end(self) -> float:
        """When the next message is through, if none is added before; inf if there is none."""
        self._share()
        return min((flow.end for flow in self._flows), default=inf)

    def finished(self, time: float) -> list[Any]:
        """The messages that are through at `time`, in the order in which they were added."""
        self._move(time)
        late = time * (1 + TOLERANCE)
        done = [flow for flow in self._flows if flow.end <= late]
        if done:
            self._flows = [flow for flow in self._flows if flow.end > late]
            self.version += 1
            for flow in done:
                for link, _ in flow.path:
                    self._idle_since[link] = time
        return [flow.subject for flow in done]

    def _move(self, time: float) -> None:
        if time == self._time:
            return
        self._share()
        passed, self._time = time - self._time, time
        for flow in self._flows:
            flow.left = max(0.0, flow.left - flow.rate * passed)

    def _spend(self, link: int, cost: float, time: float) -> float:
        """The bytes for which the idle link has credit, which is used up."""
        credit = self._credit(link)
        if not credit:
            return 0.0
        saved = min(credit, (time - self._idle_since.get(link, -inf)) / cost)
        self._idle_since[link] = time
        return saved

    def _share(self) -> None:
        """Rates and ends of all, if anything has changed."""
        if self._shared == self.version:
            return
        self._shared = self.version
        users: dict[int, list[_Flow]] = {}
        free: dict[int, float] = {}
        for flow in self._flows:
            flow.rate = 0.0
            for link, cost in flow.path:
                users.setdefault(link, []).append(flow)
                free[link] = 1 / cost
        growing = {link: len(flows) for link, flows in users.items()}
        while growing:
            least = min(free[link] / count for link, count in growing.items())
            full = [
                link for link, n in growing.items() if free[link] / n <= least * (1 + TOLERANCE)
            ]
            for link in full:
                for flow in users[link]:
                    if not flow.rate:
                        self._fix(flow, least, free, growing)
        for flow in self._flows:
            flow.end = self._time + flow.left / flow.rate

    @staticmethod
    def _fix(flow: _Flow, rate: float, free: dict[int, float], growing: dict[int, int]) -> None:
        """The flow grows no more; its links have so much less for the others."""
        flow.rate = rate
        for link, _ in flow.path:
            free[link] -= rate
            growing[link] -= 1
            if not growing[link]:
                del growing[link]
