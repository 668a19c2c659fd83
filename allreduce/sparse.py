"""All-reduces of matrices of which few rows are not zero: rows travel with their numbers.

Any schedule can carry them. A transfer of segments [low, high) is the source's rows among these,
which the destination merges with its own (`reduce`) or takes in their place. So `butterfly` merges
along recursive doubling, with the additions of a dense all-reduce in the same order: equal sums,
in as many bytes as there are rows. `allgather` brings everybody all parts, which are then added in
order of ranks. SparCML (Renggli et al. 2019, arXiv 1802.08021) compares the two.
"""

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import numpy as np

from allreduce.errors import AllreduceError
from allreduce.schedule import Message, Schedule, bounds
from allreduce.waiting import wait_for

HEADER_B = 8  # how many rows follow
ROW_B = 8  # a row's number


class Sparse(NamedTuple):
    """The rows of a matrix that are not zero. rows: (count,) int64, ascending, each once;
    values: (count, width)."""

    rows: np.ndarray
    values: np.ndarray

    @property
    def octets(self) -> int:
        """Bytes of it in a message."""
        return HEADER_B + self.rows.size * ROW_B + self.values.nbytes

    def between(self, low: int, high: int) -> "Sparse":
        """Its rows in [low, high)."""
        begin, end = np.searchsorted(self.rows, (low, high))
        return Sparse(self.rows[begin:end], self.values[begin:end])

    def dense(self, height: int) -> np.ndarray:
        """(height, width), a new array."""
        matrix = np.zeros((height, self.values.shape[1]), self.values.dtype)
        matrix[self.rows] = self.values
        return matrix


def of_dense(matrix: np.ndarray) -> Sparse:
    """The rows of (height, width) that are not all zero."""
    rows = np.flatnonzero(matrix.any(axis=1))
    return Sparse(rows, matrix[rows])


def draw(
    height: int, count: int, generator: np.random.Generator, *, words: bool = False
) -> np.ndarray:
    """Numbers of so many rows of `height`, ascending: all as likely, or `words`: row n, from 0, has
    a chance as 1 / (n + 1)."""
    chances = None
    if words:
        chances = 1 / np.arange(1, height + 1)
        chances /= chances.sum()
    return np.sort(generator.choice(height, count, replace=False, p=chances))


def add(one: Sparse, other: Sparse) -> Sparse:
    """Their sum."""
    rows = np.union1d(one.rows, other.rows)
    values = np.zeros((rows.size, one.values.shape[1]), one.values.dtype)
    values[np.searchsorted(rows, one.rows)] = one.values
    values[np.searchsorted(rows, other.rows)] += other.values
    return Sparse(rows, values)


class Method:
    """A schedule on parts of a (height, .) matrix; `gather`: of the whole part of each rank, in
    segments of its own, which are added when all have come."""

    def __init__(self, schedule: Schedule, height: int):
        self.schedule, self.height = schedule, height
        self.gather = schedule.name == "gather"
        whole = height * schedule.size if self.gather else height
        self.edges = bounds(whole, schedule.segments).tolist()

    def enter(self, rank: int, part: Sparse) -> Sparse:
        """What a rank holds before the first round. AllreduceError for rows that are none."""
        rows = part.rows
        ordered = rows.size < 2 or bool((np.diff(rows) > 0).all())
        if rows.size and not (ordered and rows[0] >= 0 and rows[-1] < self.height):
            allowed = f"ascending, each once, from 0 to {self.height - 1}"
            raise AllreduceError(f"rows of rank {rank} must be {allowed}")
        return Sparse(rows + rank * self.height, part.values) if self.gather else part

    def sent(self, held: Sparse, low: int, high: int) -> Sparse:
        """What a transfer of segments [low, high) takes along."""
        return held.between(self.edges[low], self.edges[high])

    def taken(self, held: Sparse, came: Sparse, low: int, high: int, reduce: bool) -> Sparse:
        """What is held once such a transfer has come."""
        if reduce:
            return add(held, came)
        begin, end = np.searchsorted(held.rows, (self.edges[low], self.edges[high]))
        pieces = [(h[:begin], c, h[end:]) for h, c in zip(held, came, strict=True)]
        return Sparse(*map(np.concatenate, pieces))

    def leave(self, held: Sparse, mean: bool) -> Sparse:
        """The result, from what is held at the end."""
        if self.gather:
            starts = range(0, self.height * self.schedule.size, self.height)
            parts = [held.between(start, start + self.height) for start in starts]
            held = Sparse(parts[0].rows, parts[0].values)
            for start, part in zip(starts[1:], parts[1:], strict=True):
                held = add(held, Sparse(part.rows - start, part.values))
        if not mean:
            return held
        return Sparse(held.rows, held.values / held.values.dtype.type(self.schedule.size))


def evaluate(
    schedule: Schedule, parts: Sequence[Sparse], height: int, *, mean: bool = False
) -> tuple[list[Sparse], tuple[int, ...]]:
    """Every rank's result, and the bytes of each transfer of the schedule in its order.

    The additions of `SparsePlan` on as many ranks, hence its bits; those of the schedule's dense
    all-reduce, hence equal sums. Raises AllreduceError for rows that are none.
    """
    method = Method(schedule, height)
    held, octets = _played(method, parts)
    return [method.leave(each, mean) for each in held], octets


def traffic(schedule: Schedule, parts: Sequence[Sparse], height: int) -> tuple[int, ...]:
    """The bytes of each transfer of the schedule in its order, as `simulate` takes them. Raises
    AllreduceError for rows that are none."""
    return _played(Method(schedule, height), parts)[1]


def _played(method: Method, parts: Sequence[Sparse]) -> tuple[list[Sparse], tuple[int, ...]]:
    """What each rank holds behind the last round, and the bytes of each transfer."""
    held = [method.enter(rank, part) for rank, part in enumerate(parts)]
    octets: list[int] = []
    for records in method.schedule.rounds:
        moves = [
            (destination, method.sent(held[source], low, high), low, high, reduce)
            for source, destination, low, high, reduce in records.tolist()
        ]
        for destination, came, *how in moves:
            octets.append(came.octets)
            held[destination] = method.taken(held[destination], came, *how)
    return held, tuple(octets)


class SparsePlan:
    """A schedule of sparse parts on a communicator: `start`, `test`, `wait`, as a Plan's.

    Each transfer is two messages, how many rows and then these: nobody knows before how many will
    come. One plan a communicator at a time may be under way on a `tag`.
    """

    def __init__(
        self,
        comm: Any,
        schedule: Schedule,
        height: int,
        *,
        mean: bool = False,
        tag: int = 0,
        deadline: float = 60.0,
    ):
        """Of (height, .) matrices; `tag`: its first one; `deadline`: s of `wait`."""
        self.comm, self.tag, self.mean, self.deadline = comm, tag, mean, deadline
        self.rank, self.method = comm.Get_rank(), Method(schedule, height)
        self.program = schedule.program(self.rank)
        self._run: Generator[None, None, Sparse] | None = None
        self.result: Sparse | None = None
        self.round = 0

    def start(self, part: Sparse) -> None:
        """Begin; the part is not to be changed until the result is there. Raises AllreduceError
        for rows that are none."""
        self.result, self._run = None, self._play(self.method.enter(self.rank, part))
        self.test()

    def test(self) -> bool:
        """Move on as far as possible without waiting; whether the result is there."""
        try:
            if self._run is not None:
                next(self._run)
        except StopIteration as end:
            self._run, self.result = None, end.value
        return self._run is None

    def wait(self) -> Sparse:
        """The result. Raises Stalled after the deadline."""
        wait_for(self.test, lambda: f"rank {self.rank} waits in round {self.round}", self.deadline)
        assert self.result is not None, "not started"
        return self.result

    def _play(self, held: Sparse) -> Generator[None, None, Sparse]:
        like = held.values
        for step in self.program:
            self.round = step.round
            leaving = [its for message in step.sends for its in self._post(message, held)]
            came = []
            for message in step.receives:  # one after the other: their senders wait for none
                part = yield from self._receive(message, like)
                came.append((part, message))
            for part, message in came:
                held = self.method.taken(held, part, message.low, message.high, message.reduce)
            for request in leaving:
                yield from _done(request)
        return self.method.leave(held, self.mean)

    def _post(self, message: Message, held: Sparse) -> list[Any]:
        """Its two messages on their way; there is no second one of no rows."""
        part, tag = self.method.sent(held, message.low, message.high), self.tag + 2 * message.tag
        count = np.array([part.rows.size], np.int64)
        body = np.concatenate([np.ascontiguousarray(a).view(np.uint8).ravel() for a in part])
        requests = [self.comm.Send_init(count.view(np.uint8), message.peer, tag)]
        if part.rows.size:
            requests.append(self.comm.Send_init(body, message.peer, tag + 1))
        for request in requests:
            request.Start()
        return requests

    def _receive(self, message: Message, like: np.ndarray) -> Generator[None, None, Sparse]:
        count, tag = np.zeros(HEADER_B, np.uint8), self.tag + 2 * message.tag
        yield from self._came(count, message.peer, tag)
        rows = int(count.view(np.int64)[0])
        body = np.zeros(rows * (ROW_B + like.shape[1] * like.itemsize), np.uint8)
        if rows:
            yield from self._came(body, message.peer, tag + 1)
        edge = rows * ROW_B
        values = body[edge:].view(like.dtype).reshape(rows, like.shape[1])
        return Sparse(body[:edge].view(np.int64), values)

    def _came(self, buffer: np.ndarray, peer: int, tag: int) -> Generator[None, None, None]:
        request = self.comm.Recv_init(buffer, peer, tag)
        request.Start()
        yield from _done(request)


def _done(request: Any) -> Generator[None, None, None]:
    """Until the message has come or left."""
    while not request.Test():
        yield
    request.Free()
