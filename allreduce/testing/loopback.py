"""Communicators of one process: all ranks of a plan without mpiexec, on a network out to hurt.

The names are mpi4py's, as far as a Plan uses them, and so are the rules of matching: messages of
one source, destination and tag arrive in order. All else is drawn from a seed: which message
moves when; whether a send is *eager* (its bytes are taken when it starts) or *rendezvous* (they
are taken when they arrive, so that a buffer changed too early is seen). A buffer that awaits a
message holds garbage until then, so that one read too early is seen too.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

GARBAGE = 0xA5
PATIENCE = 64  # sweeps over all plans in which nothing moves, until it is called a deadlock

Key = tuple[int, int, int]  # source, destination, tag


class LoopbackError(RuntimeError):
    """A rule of MPI was broken, or nothing can move any more."""


class World:
    """`size` ranks in this process. Everything that happens follows from `seed` and the calls.

    `eager`: the share of the sends that are eager; at 0 every send waits for its receive, as MPI
    allows. `octets(buffer)`: the bytes of a buffer as a NumPy array, for arrays of other kinds.
    """

    def __init__(
        self,
        size: int,
        seed: int = 0,
        *,
        eager: float = 0.5,
        octets: Callable[[Any], np.ndarray] | None = None,
    ):
        self.size, self.eager = size, eager
        self.octets = octets or _octets
        self.random = random.Random(seed)
        self.live = 0  # requests made and not freed
        self.moves = 0  # messages started, taken or delivered so far
        self._sent: dict[Key, deque[_Half]] = {}  # started, not matched
        self._awaited: dict[Key, deque[_Half]] = {}
        self._movable: list[Callable[[], None]] = []

    def comm(self, rank: int) -> "Comm":
        """The communicator as `rank` sees it."""
        return Comm(self, rank)

    def drive(self, plans: Iterable[Any]) -> None:
        """Test `plans` of all ranks in random order until all are done.

        LoopbackError, naming the messages that wait, once nothing moves any more.
        """
        waiting = list(plans)
        fruitless, before = 0, -1
        while waiting:
            chosen = self.random.randrange(len(waiting))
            if waiting[chosen].test():
                waiting[chosen] = waiting[-1]
                waiting.pop()
                fruitless = 0
                continue
            self.look()
            fruitless = fruitless + 1 if self.moves == before and not self._movable else 0
            before = self.moves
            if fruitless > PATIENCE * len(waiting):
                raise LoopbackError(f"deadlock: {len(waiting)} plans wait; {self._open()}")

    def check_quiet(self) -> None:
        """LoopbackError unless every message was received and every request freed."""
        while self._movable:
            self._movable.pop()()
        faults = []
        if self.live:
            faults.append(f"{self.live} requests never freed")
        if any(self._sent.values()) or any(self._awaited.values()):
            faults.append(self._open())
        if faults:
            raise LoopbackError("; ".join(faults))

    def look(self) -> None:
        """What happens meanwhile: nothing, or one message moves."""
        movable = self._movable
        if movable and self.random.random() < 0.6:
            chosen = self.random.randrange(len(movable))
            movable[chosen], movable[-1] = movable[-1], movable[chosen]
            movable.pop()()
            self.moves += 1

    def begin(self, half: "_Half") -> None:
        """A request was started: match it, in order, with what its peer started."""
        self.moves += 1
        if half.sends:
            if self.random.random() < self.eager:
                half.payload = half.octets.copy()
                self._movable.append(half.finish)
        else:
            half.octets[...] = GARBAGE
        own, other = self._sent, self._awaited
        if not half.sends:
            own, other = other, own
        queue = other.get(half.key)
        if not queue:
            own.setdefault(half.key, deque()).append(half)
        elif half.sends:
            self._match(half, queue.popleft())
        else:
            self._match(queue.popleft(), half)

    def withdraw(self, half: "_Half") -> None:
        """A request is cancelled: it vanishes, or, once it has its match, runs to its end."""
        queue = (self._sent if half.sends else self._awaited).get(half.key, deque())
        if half in queue:
            queue.remove(half)
            return
        while not half.done:
            self._movable.pop()()

    def _match(self, send: "_Half", receive: "_Half") -> None:
        if send.octets.size > receive.octets.size:
            raise LoopbackError(
                f"message truncated: rank {send.key[0]} sends {send.octets.size} B, rank "
                f"{send.key[1]} has room for {receive.octets.size} B (tag {send.key[2]})"
            )

        def deliver() -> None:
            data = send.octets if send.payload is None else send.payload
            receive.octets[: data.size] = data
            receive.finish()
            if send.payload is None:
                send.finish()

        self._movable.append(deliver)

    def _open(self) -> str:
        """The first few messages that have no match."""
        lines = [
            f"rank {to} receives from rank {by} (tag {tag})"
            for (by, to, tag), queue in self._awaited.items()
            for _ in queue
        ]
        lines += [
            f"rank {by} sends to rank {to} (tag {tag})"
            for (by, to, tag), queue in self._sent.items()
            for _ in queue
        ]
        return f"{len(lines)} messages without their match: {', '.join(lines[:6])}"


class Comm:
    """One rank's communicator."""

    def __init__(self, world: World, rank: int):
        if not 0 <= rank < world.size:
            raise LoopbackError(f"rank {rank} of {world.size}")
        self.world, self.rank = world, rank

    def Get_rank(self) -> int:  # noqa: N802 (mpi4py's names)
        return self.rank

    def Get_size(self) -> int:  # noqa: N802
        return self.world.size

    def Send_init(self, buf: Any, dest: int, tag: int = 0) -> "Request":  # noqa: N802
        return Request(self.world, buf, (self.rank, self._peer(dest), tag), True)

    def Recv_init(self, buf: Any, source: int, tag: int = 0) -> "Request":  # noqa: N802
        return Request(self.world, buf, (self._peer(source), self.rank, tag), False)

    def _peer(self, rank: int) -> int:
        if not 0 <= rank < self.world.size:
            raise LoopbackError(f"rank {self.rank} names rank {rank} of {self.world.size}")
        return rank


class _Half:
    """One end of one message: a request from its start until it is done."""

    __slots__ = ("done", "key", "octets", "payload", "sends")

    def __init__(self, key: Key, octets: np.ndarray, sends: bool):
        self.key, self.octets, self.sends = key, octets, sends
        self.payload: np.ndarray | None = None  # what an eager send took with it
        self.done = False

    def finish(self) -> None:
        self.done = True


class Request:
    """A persistent request: active from Start until Test has seen that it is done."""

    def __init__(self, world: World, buffer: Any, key: Key, sends: bool):
        self.world, self.octets, self.key, self.sends = world, world.octets(buffer), key, sends
        self.buffer = buffer  # alive as long as the network may touch it
        self._half: _Half | None = None
        self._freed = False
        world.live += 1

    def Start(self) -> None:  # noqa: N802
        self._allow("start", active=False)
        self._half = _Half(self.key, self.octets, self.sends)
        self.world.begin(self._half)

    def Test(self) -> bool:  # noqa: N802
        if self._half is None:
            if self._freed:
                self._allow("test", active=False)
            return True
        self.world.look()
        if self._half.done:
            self._half = None
        return self._half is None

    def Cancel(self) -> None:  # noqa: N802
        self._allow("cancel", active=True)
        if self._half is not None:
            self.world.withdraw(self._half)
        self._half = None

    def Free(self) -> None:  # noqa: N802
        self._allow("free", active=False)
        self._freed = True
        self.world.live -= 1

    def _allow(self, action: str, *, active: bool) -> None:
        state = "freed" if self._freed else "inactive" if self._half is None else "active"
        if state != ("active" if active else "inactive"):
            source, destination, tag = self.key
            what = f"{'send' if self.sends else 'receive'} {source} -> {destination}, tag {tag}"
            raise LoopbackError(f"{action} of a request that is {state}: {what}")


def _octets(buffer: Any) -> np.ndarray:
    if not isinstance(buffer, np.ndarray):
        raise LoopbackError(
            f"a buffer of {type(buffer).__name__}: World(octets=...) says how to see its bytes"
        )
    return buffer.reshape(-1).view(np.uint8)
