"""What the event simulation keeps: kinds of events, collectives, messages, time lines of ranks."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from allreduce.simulate.program import Program

# What happens, in the order in which it happens at one time: a look sees what has just come, and
# who was woken goes on before those whose time is over.
LINK, LEFT, ARRIVED, ASKED, ANSWERED, LOOK, WOKEN, END, FLOWS = range(9)


class Event(NamedTuple):
    """An activity of `rank` has ended at `time` (s)."""

    time: float
    rank: int


class Collective:
    """One all-reduce, to be started once by every rank. Made by `Cluster.collective`."""

    def __init__(self, program: Program, factors: list[float], name: str):
        ranks = len(program.first) - 1
        self.name = name
        self.number = 0  # among those that a recorded cluster has made
        self.completion: list[float | None] = [None] * ranks  # s, of each rank
        self.started = [False] * ranks
        self.unfinished = ranks  # how many are not done
        self.program, self.factors = program, factors
        self.step = program.first[:ranks]  # where each rank is
        self.entered = [False] * ranks
        self.missing = [
            len(sends) + receives
            for sends, receives in zip(program.sends, program.receives, strict=True)
        ]
        self.asking: dict[int, list[Message]] = {}  # by step: senders that came too early

    def finish(self, rank: int, time: float) -> None:
        self.completion[rank] = time
        self.unfinished -= 1


class Message:
    """A message on its way."""

    __slots__ = ("collective", "end", "factor", "hop", "number", "program", "put", "taken")

    def __init__(self, program: Program, number: int, factor: float, collective: Any, put: Any):
        self.program, self.number, self.factor = program, number, factor
        self.collective, self.put = collective, put
        self.hop, self.end, self.taken = 0, 0.0, False


class Line:
    """The time line of one rank."""

    __slots__ = (
        "activity",
        "asked",
        "awaited",
        "busy",
        "leaving",
        "listening",
        "looked",
        "looks",
        "now",
        "planned",
        "running",
        "seconds",
        "since",
        "watching",
        "worked",
    )

    def __init__(self) -> None:
        self.now = 0.0
        self.activity = 0  # counts activities: looks that were planned for an older one are off
        self.busy = 0.0  # until when whoever looks is busy; a look follows at that time
        self.watching = False  # whether it looks all the time
        self.awaited: Collective | None = None
        self.listening = False
        self.leaving = False  # its activity is over, and its end planned
        self.looks: Iterator[float] | None = None  # of a computation
        self.seconds = self.worked = self.since = 0.0  # so much was done at the time `since`
        self.looked = 0.0  # seconds of a computation that its looks took
        self.planned = False  # a look is, for what has come since
        self.running: list[Collective] = []
        self.asked: list[tuple[int, Message]] = []  # handshakes to be answered at the next look

    def finish(self, watching: bool) -> None:
        """The rank is idle: nothing planned for it is valid any more."""
        self.activity += 1
        self.looks = self.awaited = None
        self.listening = self.leaving = self.planned = False
        self.watching = watching
