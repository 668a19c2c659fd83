"""Messages between a rank and its peers on MPI: persistent requests, a buffer each way and peer.

Messages alternate: to each peer one goes out, then one comes in. So a receive is posted before
the message is sent that it answers, nothing is ever unexpected, and memory is bounded: twice the
longest message for each peer. Long messages are cut into chunks with tags of their own, and those
that are shorter than the longest send as many as they need.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from allreduce.errors import Stalled
from allreduce.plan import wait_until
from allreduce.waiting import wait_for
from mpisgd.mpi import tags
from mpisgd.servers.messages import HEADER_B, Message, octets, unpacked

# Numbers before the payload; the last is 0 if none follows, else 1 + its elements.
HEADER = HEADER_B // 8
CHUNK_OCTETS = 1 << 22
LOOKS_PER_CLOCK = 64


class Channel:
    """`peers`: (rank, most elements of a message to or from it); messages name them by number.

    `kind`: the header of what comes in, a NamedTuple of at most HEADER - 1 numbers. `deadline`:
    seconds without any message after which `receive` gives up. `beside`: messages that come some
    other way, None when there is none. `moves`: messages that came.
    """

    def __init__(
        self,
        comm: Any,
        peers: Sequence[tuple[int, int]],
        dtype: DTypeLike,
        kind: Any,
        now: Callable[[], float],
        *,
        sends: int,
        receives: int,
        deadline: float = 60.0,
        chunk_octets: int = CHUNK_OCTETS,
        beside: Callable[[], Message | None] = lambda: None,
    ):
        """`sends`, `receives`: the first tag of each direction."""
        self.kind, self.now, self.deadline, self.beside = kind, now, deadline, beside
        self.rank, self.moves = comm.Get_rank(), 0
        self.boxes = [
            _Box(comm, rank, count, np.dtype(dtype), sends, receives, chunk_octets)
            for rank, count in peers
        ]
        self._came: deque[Message] = deque()
        self._looks, self._moved = 0, time.monotonic()

    def expect(self, peers: Iterable[int] | None = None) -> None:
        """Post the receives of the first messages of those who write first; None: all of them."""
        for number in range(len(self.boxes)) if peers is None else peers:
            self.boxes[number].arm()

    def send(self, to: int, header: Sequence[float], payload: Any, answered: bool = True) -> None:
        """`payload` None: the header alone. `answered`: whether a message will come back."""
        box = self.boxes[to]
        if answered:
            box.arm()
        self._let_go(box)
        box.send(header, payload)

    def look(self) -> None:
        """See what has come."""
        for number, box in enumerate(self.boxes):
            if box.awaited and box.came():
                header = unpacked(self.kind, box.header)
                self._take(Message(number, header, box.payload, self.now()))
        while (message := self.beside()) is not None:
            self._take(message)

    def receive(self, until: float | None = None) -> Generator[None, None, Message | None]:
        """The next message; None at the time `until`, or after the deadline. Yields while there is
        none. Its payload is valid until the next message to that peer."""
        self._looks, self._moved = 0, time.monotonic()
        while not self._came:
            self.look()
            if self._came:
                break
            if until is not None and self.now() >= until:
                return None
            if until is None and self._in_vain():
                return None
            yield
        return self._came.popleft()

    def close(self) -> None:
        """Wait until what was sent has left; give all requests back."""
        self._moved = time.monotonic()
        for box in self.boxes:
            self._let_go(box)
            box.free()

    def _take(self, message: Message) -> None:
        self._came.append(message)
        self.moves += 1
        self._moved = time.monotonic()

    def _let_go(self, box: "_Box") -> None:
        wait_until(lambda: box.left() or self._late(box.rank))

    def _in_vain(self) -> bool:
        """Whether nothing has come for as long as the deadline; looks at the clock now and then."""
        self._looks += 1
        late = self._looks % LOOKS_PER_CLOCK == 0
        return late and time.monotonic() - self._moved > self.deadline

    def _late(self, peer: int) -> bool:
        if time.monotonic() - self._moved > self.deadline:
            raise Stalled(f"rank {self.rank} cannot send to rank {peer}: it takes nothing")
        return False


class _Box:
    """Both directions between this rank and one peer."""

    def __init__(
        self,
        comm: Any,
        rank: int,
        count: int,
        dtype: np.dtype,
        sends: int,
        receives: int,
        chunk_octets: int,
    ):
        self.comm, self.rank, self.tag, self.awaited = comm, rank, sends, False
        most = HEADER_B + count * dtype.itemsize
        incoming, outgoing = np.zeros(most, np.uint8), np.zeros(most, np.uint8)
        size = max(HEADER_B, chunk_octets, -(-most // tags.CHUNKS))
        cuts = [(low, min(low + size, most)) for low in range(0, most, size)]
        self._cuts, self._outgoing = cuts, outgoing
        self._receives = [
            comm.Recv_init(incoming[low:high], rank, receives + i)
            for i, (low, high) in enumerate(cuts)
        ]
        self._sends = [
            comm.Send_init(outgoing[low:high], rank, sends + i)
            for i, (low, high) in enumerate(cuts)
        ]
        self._word = comm.Send_init(outgoing[:HEADER_B], rank, sends)
        self.header = incoming[:HEADER_B].view(np.float64)
        self._payload = incoming[HEADER_B:].view(dtype)
        self._own_header = outgoing[:HEADER_B].view(np.float64)
        self._own_payload = outgoing[HEADER_B:].view(dtype)
        self._active: list[int] = []  # receives that are posted and not done
        self._leaving: list[Any] = []
        self._passing: list[Any] = []  # requests of one message alone

    @property
    def payload(self) -> Any:
        """That of the message that came; None if there is none."""
        follows = int(self.header[-1])
        return self._payload[: follows - 1] if follows else None

    def arm(self) -> None:
        """Post the receives of the next message. Behind a header alone, some still are."""
        assert not self.awaited, self.rank
        for number, request in enumerate(self._receives):
            if number not in self._active:
                request.Start()
        self._active = list(range(len(self._receives)))
        self.awaited = True

    def came(self) -> bool:
        """Whether the awaited message is there, all of it."""
        active, receives = self._active, self._receives
        while active:
            if active[0] > 0 and self._cuts[active[0]][0] >= octets(self.payload):
                break
            if not receives[active[0]].Test():
                return False
            active.pop(0)
        self.awaited = False
        return True

    def left(self) -> bool:
        """Whether what was sent is out of the buffer."""
        while self._leaving:
            if not self._leaving[-1].Test():
                return False
            self._leaving.pop()
        while self._passing:
            self._passing.pop().Free()
        return True

    def send(self, header: Sequence[float], payload: Any) -> None:
        self._own_header[: len(header)] = header
        self._own_header[-1] = 0 if payload is None else 1 + payload.size
        if payload is None:
            self._leaving = [self._word]
        elif payload.size == self._own_payload.size:
            self._own_payload[...] = payload
            self._leaving = list(self._sends)
        else:
            own = self._own_payload[: payload.size]
            own[...] = payload
            self._passing = self._shorter(octets(own))
            self._leaving = list(self._passing)
        for request in self._leaving:
            request.Start()

    def _shorter(self, end: int) -> list[Any]:
        """Requests that send so many bytes."""
        return [
            self.comm.Send_init(self._outgoing[low : min(high, end)], self.rank, self.tag + i)
            for i, (low, high) in enumerate(self._cuts)
            if low < end
        ]

    def free(self) -> None:
        """Give the requests back; receives that are still posted are cancelled."""
        for number in self._active:
            if not self._receives[number].Test():
                self._receives[number].Cancel()
        for request in (*self._receives, *self._sends, self._word):
            request.Free()


class Notices:
    """A word without content to or from each peer: at most one under way, taken before the next."""

    def __init__(
        self, comm: Any, ranks: Sequence[int], tag: int, rings: bool, deadline: float = 60.0
    ):
        """`rings`: whether this side sends them."""
        self._deadline, self._rank, self._ranks = deadline, comm.Get_rank(), ranks
        self._octets = np.zeros((len(ranks), 1), np.uint8)
        make = comm.Send_init if rings else comm.Recv_init
        self._requests = [make(self._octets[i], rank, tag) for i, rank in enumerate(ranks)]
        self._active = [False] * len(ranks)
        if not rings:
            for number in range(len(ranks)):
                self.rearm(number)

    def rearm(self, number: int) -> None:
        """Send the next word, or wait for it."""
        request = self._requests[number]
        if self._active[number]:
            told = f"rank {self._rank} waits for rank {self._ranks[number]} to take a notice"
            wait_for(request.Test, lambda: told, self._deadline)
        self._active[number] = True
        request.Start()

    def came(self, number: int) -> bool:
        """Whether the awaited word is there."""
        if self._active[number] and self._requests[number].Test():
            self._active[number] = False
        return not self._active[number]

    def close(self) -> None:
        """Give all requests back."""
        for number, request in enumerate(self._requests):
            if not self.came(number):
                request.Cancel()
            request.Free()
