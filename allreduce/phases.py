"""What a plan is made of: phases that begin, and are done when their poll says so."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from allreduce.arrays import Host, Poll

Operations = Sequence[Callable[[], None]]


class Peer(NamedTuple):
    """Whom a request is for, so that a stall can be explained."""

    action: str  # "send to" or "receive from"
    rank: int
    round: int
    octets: int


class Exchange:
    """The persistent requests of one step, all started at once, and what follows when all came.

    Requests are started and tested one by one, receives first: at two requests that takes two
    thirds of the time of Startall and Testall.
    """

    def __init__(self, requests: Sequence[Any], peers: Sequence[Peer], then: Operations = ()):
        self.requests, self.peers, self.operations = list(requests), list(peers), list(then)
        self._starts = [request.Start for request in self.requests]
        self._tests = [request.Test for request in self.requests]
        self._came = self._count = len(self.requests)

    def begin(self) -> None:
        self._came = 0
        for start in self._starts:
            start()

    def done(self, patience: int = 0) -> bool:
        """Whether all came, and what follows is done; `patience`: looks that may be in vain."""
        tests, came, count = self._tests, self._came, self._count
        while came < count:
            if tests[came]():
                came += 1
            elif patience:
                patience -= 1
            else:
                self._came = came
                return False
        self._came = came
        for operation in self.operations:
            operation()
        return True

    def pending(self) -> list[Peer]:
        """Who has not answered. Leaves requests inactive that were found to be done."""
        waiting = range(self._came, self._count)
        return [self.peers[i] for i in waiting if not self._tests[i]()]

    def free(self) -> None:
        """Give the requests back; MPI complains at its end about those that were not.

        Only after a failure are some still active: these are cancelled. To cancel one that is
        done is an error, hence the test.
        """
        for number, request in enumerate(self.requests):
            if number >= self._came and not request.Test():
                request.Cancel()
            request.Free()


class Staged(Exchange):
    """One step of device memory through pinned memory of the host, piece by piece: what is copied
    out is sent while the next piece is copied, what has come is copied in and added meanwhile.

    `copies`: for each send, what copies its bytes out; `landings`: for each receive, what brings
    its bytes in. `requests` and `peers`: first the receives, then the sends.
    """

    def __init__(
        self,
        memory: Host,
        requests: Sequence[Any],
        peers: Sequence[Peer],
        copies: Operations,
        landings: Sequence[Operations],
    ):
        super().__init__(requests, peers)
        self.memory, self.copies, self.landings = memory, list(copies), list(landings)
        self._receives = len(self.landings)
        self._outgoing: list[Poll | None] = []  # of the copies that have not been sent
        self._open: list[int] = []  # requests that were started and have not come
        self._last: Poll | None = None
        self._ended = False

    def begin(self) -> None:
        self._last, self._ended = None, False
        self._open = list(range(self._receives))
        for start in self._starts[: self._receives]:
            start()
        self._outgoing = []
        for copy in self.copies:
            copy()
            self._outgoing.append(self.memory.fence())

    def done(self, patience: int = 0) -> bool:
        while not self._moved_on():
            if not patience:
                return False
            patience -= 1
        return True

    def _moved_on(self) -> bool:
        """Send what has been copied, bring in what has come; whether that was all."""
        while self._outgoing and _over(self._outgoing[0]):
            number = len(self.requests) - len(self._outgoing)
            self._starts[number]()
            self._open.append(number)
            self._outgoing.pop(0)
        for number in [each for each in self._open if self._tests[each]()]:
            self._open.remove(number)
            for operation in self.landings[number] if number < self._receives else ():
                operation()
        if self._outgoing or self._open:
            return False
        if not self._ended:
            self._ended, self._last = True, self.memory.fence() if self.landings else None
        return _over(self._last)

    def pending(self) -> list[Peer]:
        waiting = [each for each in self._open if not self._tests[each]()]
        return [self.peers[each] for each in waiting]

    def free(self) -> None:
        for number, request in enumerate(self.requests):
            if number in self._open and not request.Test():
                request.Cancel()
            request.Free()


def _over(poll: Poll | None) -> bool:
    return poll is None or poll()


class Work:
    """Operations on a memory; on a device they are done when its stream has come so far."""

    def __init__(self, memory: Host, operations: Operations):
        self.memory, self.operations = memory, list(operations)
        self._poll: Poll | None = None

    def begin(self) -> None:
        for operation in self.operations:
            operation()
        self._poll = self.memory.fence()

    def done(self, patience: int = 0) -> bool:
        return _over(self._poll)

    def pending(self) -> list[Peer]:
        return []

    def free(self) -> None:
        """Nothing to give back."""


class Check:
    """A condition that raises, each time it is looked at, what stands in the way of going on."""

    def __init__(self, condition: Callable[[], None]):
        self.condition = condition

    def begin(self) -> None:
        """Nothing to begin."""

    def done(self, patience: int = 0) -> bool:
        self.condition()
        return True

    def pending(self) -> list[Peer]:
        return []

    def free(self) -> None:
        """Nothing to give back."""


Phase = Exchange | Work | Check
