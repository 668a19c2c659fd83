"""States on their way between ranks: one at a time, in pieces, with a deadline.

A deadline is how long a rank may be silent, however long it takes to save or read: who is at work
while others wait for it tells them so now and then, by a *word* in place of a size.
"""

import time
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

import numpy as np

from allreduce.communicator import Communicator, Request
from allreduce.plan import wait_until
from allreduce.waiting import Deadline
from mpisgd.checkpoint.state import pack, unpack
from mpisgd.mpi import tags

TAG, WORKERS_TAG, BACK = tags.STATES, tags.WORKERS_STATES, tags.BACK
PIECE = 1 << 26  # octets of a message
WORD = -1  # instead of the size of a state
WORDS = 8  # in a deadline

Waiting = Generator[None, None, None]


class Heartbeat:
    """Words to those who wait for this rank, `to`: a rank and a tag each. `release` ends it, for
    those who are handing in: theirs are the tags of answers."""

    def __init__(self, comm: Communicator, to: Iterable[tuple[int, int]], deadline: float):
        self.comm, self.to, self.deadline = comm, list(to), deadline
        self._sends: list[tuple[int, Request]] = []
        self._at = time.monotonic()

    def beat(self) -> None:
        """Say that this rank is at work, if it is time to."""
        now = time.monotonic()
        if now - self._at > self.deadline / WORDS:
            self._at = now
            self._sends = [(rank, send) for rank, send in self._sends if not send.Test()]
            for rank, tag in self.to:
                self._sends.append((rank, self.comm.Isend(np.array([WORD]), rank, tag)))

    def leave_out(self, rank: int) -> None:
        """It waits no more."""
        self.to = [(other, tag) for other, tag in self.to if other != rank]

    def release(self) -> Waiting:
        """Let all go on; until they have heard of it. Raises Stalled."""
        for rank, tag in self.to:
            self._sends += [(rank, request) for request in post(self.comm, {}, rank, tag)]
        for rank, request in self._sends:
            yield from _done(request, self.comm, rank, self.deadline)
        self._sends = []


def post(comm: Communicator, state: Mapping[str, Any], to: int, tag: int = TAG) -> list[Request]:
    """Send a state, without waiting; the requests."""
    octets = pack(state)
    pieces = (octets[low : low + PIECE] for low in range(0, octets.size, PIECE))
    return [comm.Isend(part, to, tag) for part in (np.array([octets.size]), *pieces)]


def coming(
    comm: Communicator, source: int, deadline: float, tag: int = TAG,
    beat: Callable[[], object] = lambda: None,
) -> Generator[None, None, dict[str, Any]]:  # fmt: skip
    """The next state that rank `source` sends; yields until it is there. Raises Stalled once that
    rank has been silent for `deadline` seconds. `beat` is called meanwhile."""
    size = np.full(1, WORD, np.int64)
    while size[0] == WORD:
        yield from _done(comm.Irecv(size, source, tag), comm, source, deadline, beat)
    octets = np.empty(int(size[0]), np.uint8)
    for low in range(0, octets.size, PIECE):
        request = comm.Irecv(octets[low : low + PIECE], source, tag)
        yield from _done(request, comm, source, deadline, beat)
    return unpack(octets)


def handing_in(
    comm: Communicator, states: Iterable[Mapping[str, Any]], deadline: float, tag: int = TAG
) -> Waiting:
    """Send states to rank 0, and yield until it lets this rank go on. Raises Stalled."""
    requests = [request for state in states for request in post(comm, state, 0, tag)]
    yield from coming(comm, 0, deadline, tag + BACK)
    for request in requests:
        yield from _done(request, comm, 0, deadline)


def send(
    comm: Communicator, state: Mapping[str, Any], to: int, deadline: float,
    beat: Callable[[], object] = lambda: None,
) -> None:  # fmt: skip
    """Wait until rank `to` has taken it. Raises Stalled."""
    for request in post(comm, state, to):
        finished(_done(request, comm, to, deadline, beat))


def receive(
    comm: Communicator, source: int, deadline: float, beat: Callable[[], object] = lambda: None,
    tag: int = TAG,
) -> dict[str, Any]:  # fmt: skip
    """The next state that rank `source` sends, waited for. Raises Stalled."""
    return finished(coming(comm, source, deadline, tag, beat))


def finished(waiting: Generator[None, None, Any]) -> Any:
    """What it returns, for a rank that has nothing else to do meanwhile."""
    returned: list[Any] = []

    def ended() -> bool:
        try:
            next(waiting)
        except StopIteration as end:
            returned.append(end.value)
        return bool(returned)

    wait_until(ended)
    return returned[0]


def _done(
    request: Request,
    comm: Communicator,
    peer: int,
    deadline: float,
    beat: Callable[[], object] = lambda: None,
) -> Waiting:
    told = f"rank {comm.Get_rank()} waited {deadline:.0f} s for rank {peer} at a checkpoint"
    limit = Deadline(deadline, lambda: told)
    while not request.Test():
        limit.check()
        beat()
        yield
