"""A collective as data: rounds of transfers between ranks, and the algebra that combines them.

Two sentences define a schedule: *every transfer of a round reads the values from before the
round; a rank enters its next round when its own transfers of this round are done.*
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

TRANSFER = np.dtype(
    [("source", "<i4"), ("destination", "<i4"), ("low", "<i4"), ("high", "<i4"), ("reduce", "?")]
)


class Message(NamedTuple):
    """One rank's end of a transfer: segments [low, high) to or from `peer`.

    `tag` counts the messages of one round from one rank to one other, from 0: MPI_Startall may
    start requests in any order, so only a tag tells two of them apart.
    """

    peer: int
    low: int
    high: int
    reduce: bool
    tag: int


class Step(NamedTuple):
    """What one rank does in one round: all of it at once, none of it twice."""

    round: int
    sends: tuple[Message, ...]
    receives: tuple[Message, ...]


@dataclass(frozen=True, eq=False)
class Schedule:
    """`rounds` of TRANSFER records among `size` ranks, each holding `segments` segments.

    A transfer sends segments [low, high) of its source to its destination, which adds them to
    its own (`reduce`) or stores them. Record arrays, not objects: the ring of 1,024 ranks has
    two million transfers (36 MB).
    """

    size: int
    segments: int
    rounds: tuple[np.ndarray, ...]
    name: str = "schedule"

    def __add__(self, after: "Schedule") -> "Schedule":
        """This schedule, then `after`."""
        return Schedule(*_common(self, after), self.rounds + after.rounds, self.name)

    def named(self, name: str) -> "Schedule":
        return Schedule(self.size, self.segments, self.rounds, name)

    @cached_property
    def digest(self) -> int:
        """63 bits that tell two schedules apart: ranks compare them before they start."""
        state = hashlib.blake2b(repr((self.size, self.segments)).encode(), digest_size=8)
        for transfers in self.rounds:
            state.update(b"round")
            state.update(transfers.tobytes())
        return int.from_bytes(state.digest(), "little") >> 1

    def program(self, rank: int) -> list[Step]:
        """The steps of one rank; rounds in which it takes no part are left out."""
        steps = []
        for number, transfers in enumerate(self.rounds):
            mine = (transfers["source"] == rank) | (transfers["destination"] == rank)
            if mine.any():
                ends = dict(_ends(transfers[mine]))
                steps.append(Step(number, *map(tuple, ends[rank])))
        return steps

    def programs(self) -> list[list[Step]]:
        """The steps of every rank: `[program(rank) for rank in range(size)]`, in one pass."""
        steps: list[list[Step]] = [[] for _ in range(self.size)]
        for number, transfers in enumerate(self.rounds):
            for rank, (sends, receives) in _ends(transfers):
                steps[rank].append(Step(number, tuple(sends), tuple(receives)))
        return steps


def bounds(count: int, segments: int) -> np.ndarray:
    """Where segments begin and end: `segments + 1` int64 offsets, lengths differing by at most 1.

    The first `count % segments` segments are the longer ones.
    """
    each, longer = divmod(count, segments)
    index = np.arange(segments + 1, dtype=np.int64)
    return index * each + np.minimum(index, longer)


def transfers(source, destination, low=0, high=1, reduce=True) -> np.ndarray:
    """One round: TRANSFER records from broadcast columns."""
    columns = np.broadcast_arrays(source, destination, low, high, reduce)
    records = np.empty(columns[0].size, TRANSFER)
    for name, column in zip(TRANSFER.names or (), columns, strict=True):
        records[name] = column.ravel()
    return records


def nothing(size: int, segments: int = 1) -> Schedule:
    """No round at all: the all-reduce of one rank."""
    return Schedule(size, segments, ())


def mirror(schedule: Schedule) -> Schedule:
    """A reduction run backwards is its broadcast: what was summed there is stored here."""
    rounds = []
    for transfers in reversed(schedule.rounds):
        back = transfers.copy()
        back["source"], back["destination"] = transfers["destination"], transfers["source"]
        back["reduce"] = False
        rounds.append(back)
    return Schedule(schedule.size, schedule.segments, tuple(rounds), schedule.name)


def embed(schedule: Schedule, ranks: Sequence[int], size: int) -> Schedule:
    """The schedule played by `ranks` (its rank i is `ranks[i]`) among `size` ranks."""
    place = np.asarray(ranks, np.int32)
    rounds = []
    for transfers in schedule.rounds:
        moved = transfers.copy()
        moved["source"] = place[transfers["source"]]
        moved["destination"] = place[transfers["destination"]]
        rounds.append(moved)
    return Schedule(size, schedule.segments, tuple(rounds), schedule.name)


def refine(schedule: Schedule, pieces: int) -> Schedule:
    """Every segment cut in `pieces`; the same transfers."""
    return _segments(schedule, schedule.segments * pieces, pieces, 0)


def place(schedule: Schedule, segments: int, offset: int) -> Schedule:
    """The schedule on segments [offset, offset + its own) of `segments`."""
    return _segments(schedule, segments, 1, offset)


def beside(*schedules: Schedule) -> Schedule:
    """All at the same time, round by round: on different ranks, or on different segments."""
    size, segments = _common(*schedules)
    rounds = tuple(
        np.concatenate([part for part in parts if part is not None])
        for parts in zip_longest(*(schedule.rounds for schedule in schedules))
    )
    return Schedule(size, segments, rounds, schedules[0].name)


def pack(*schedules: Schedule) -> Schedule:
    """The transfers of `schedules`, in their order, each in the first round that allows it.

    A round allows a transfer if the data is there and its ranks have a free port: a rank sends
    at most one message and receives at most one in a round.
    """
    size, segments = _common(*schedules)
    rounds: list[list[np.void]] = []
    sending: set[tuple[int, int]] = set()  # (round, rank) whose port is taken
    receiving: set[tuple[int, int]] = set()
    written = np.full((size, segments), -1)  # the last round that wrote or read a segment
    read = np.full((size, segments), -1)
    for transfer in (t for schedule in schedules for part in schedule.rounds for t in part):
        source, destination = int(transfer["source"]), int(transfer["destination"])
        span = slice(transfer["low"], transfer["high"])
        # A sum may land in the round that still reads the old value, a store may not.
        reader = read[destination, span].max() + (0 if transfer["reduce"] else 1)
        number = max(written[source, span].max() + 1, written[destination, span].max() + 1, reader)
        while (number, source) in sending or (number, destination) in receiving:
            number += 1
        sending.add((number, source))
        receiving.add((number, destination))
        written[destination, span] = number
        read[source, span] = np.maximum(read[source, span], number)
        while len(rounds) <= number:
            rounds.append([])
        rounds[number].append(transfer)
    return Schedule(size, segments, tuple(np.array(part, TRANSFER) for part in rounds))


def pipeline(schedules: Sequence[Schedule], pieces: int) -> Schedule:
    """Each schedule on its own share of the data, cut in `pieces` that follow one another."""
    _, width = _common(*schedules)
    segments = width * pieces * len(schedules)
    parts = [
        place(schedule, segments, (share * pieces + piece) * width)
        for piece in range(pieces)
        for share, schedule in enumerate(schedules)
    ]
    return pack(*parts)


def _segments(schedule: Schedule, segments: int, factor: int, offset: int) -> Schedule:
    rounds = []
    for transfers in schedule.rounds:
        moved = transfers.copy()
        moved["low"] = transfers["low"] * factor + offset
        moved["high"] = transfers["high"] * factor + offset
        rounds.append(moved)
    return Schedule(schedule.size, segments, tuple(rounds), schedule.name)


def _common(*schedules: Schedule) -> tuple[int, int]:
    """The (size, segments) that all `schedules` share."""
    shapes = {(schedule.size, schedule.segments) for schedule in schedules}
    if len(shapes) != 1:
        raise ValueError(f"schedules of different (size, segments) do not combine: {shapes}")
    return shapes.pop()


def _ends(transfers: np.ndarray) -> Iterator[tuple[int, tuple[list[Message], list[Message]]]]:
    """(rank, (sends, receives)) of every rank that takes part in a round."""
    ends: dict[int, tuple[list[Message], list[Message]]] = {}
    pairs: dict[tuple[int, int], int] = {}
    for source, destination, low, high, reduce in transfers.tolist():
        tag = pairs.get((source, destination), 0)
        pairs[source, destination] = tag + 1
        sends, _ = ends.setdefault(source, ([], []))
        sends.append(Message(destination, low, high, reduce, tag))
        _, receives = ends.setdefault(destination, ([], []))
        receives.append(Message(source, low, high, reduce, tag))
    yield from ends.items()
