"""Several real servers come to rest: nothing is on its way any more, and all hand in what they are.

Server 0 holds its answers back, and takes in what workers send until it has a gradient of each. It
tells the other servers which steps those are of: once they have all of those, nothing more can come
to them, and they hand in what they are. Then it tells each worker which servers will not answer it:
once all others have, the worker hands in what it is. Rank 0 writes, then lets all of them go on.
"""

import sys
from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from allreduce.communicator import Communicator, Request
from allreduce.waiting import Deadline
from mpisgd.checkpoint.messages import BACK, TAG, WORKERS_TAG, Heartbeat, coming, handing_in
from mpisgd.servers.messages import Request as Header
from mpisgd.servers.roles import Roles
from mpisgd.servers.server import Server
from mpisgd.training.site import Steps

TO_SERVERS, TO_WORKERS = 31960, 31961  # tags of server 0's words
REST, STOP, END = range(3)  # what other servers are to do; END: no rest will come any more


class Leader:
    """Server 0, who leads others to a rest."""

    def __init__(self, comm: Communicator, roles: Roles, deadline: float):
        self.comm, self.roles, self.deadline = comm, roles, deadline
        self._words: list[Request] = []

    def join(self, server: Server) -> None:
        self.server = server
        self.site: Any = server.site

    def called(self) -> bool:
        """Never: it calls."""
        return False

    def attend(self) -> Generator[None, None, bool]:
        """Never."""
        yield from ()
        return False

    def conclude(self) -> Steps:
        """It has ended, and with it all rests."""
        self.tell(END)
        while not all(word.Test() for word in self._words):
            yield

    def tell(self, kind: int) -> None:
        """Other servers what to do, once they have as many verdicts and steps of workers."""
        word = np.array([kind, self.site.verdicts.count, *self.site.steps])
        self._words = [sent for sent in self._words if not sent.Test()]
        for rank in self.roles.servers[1:]:
            self._words.append(self.comm.Isend(word, rank, TO_SERVERS))

    def everyone_waits(self) -> Generator[None, None, bool]:
        """Take in messages until each worker waits for an answer. Whether the run can be saved:
        not without a worker that is silent, nor with what is not finite."""
        site, server, patience_s = self.site, self.server, self.deadline / 2
        while True:
            silent = server.serves - server.waiting.keys() - {each.source for each in site.inbox}
            if not silent:
                break
            message = yield from site.next_letter(site.now() + patience_s)
            if message is None:
                names = ", ".join(map(str, sorted(silent)))
                print(f"mpisgd: no checkpoint after step {server.step}: nothing came from worker "
                      f"{names} for {patience_s:g} s", file=sys.stderr, flush=True)  # fmt: skip
                return False
            site.inbox.append(message)
        failed = any(Header(*message.header).failed_step for message in site.inbox)
        return not failed and server.failed is None

    def line_up(self) -> Generator[None, None, tuple[dict, dict, Heartbeat]]:
        """Until all other servers and all workers have handed in what they are.

        By rank, what each of them tells; and the signs of life that they need until they are let
        go on. Raises Stalled.
        """
        roles, deadline = self.roles, self.deadline
        others = roles.servers[1:]
        waiting = [(rank, TAG + BACK) for rank in others]
        waiting += [(rank, WORKERS_TAG + BACK) for rank in roles.workers]
        heartbeat = Heartbeat(self.comm, waiting, deadline)
        self.tell(REST)
        servers = {}
        for rank in others:
            servers[rank] = yield from coming(self.comm, rank, deadline, TAG, heartbeat.beat)
        for number, rank in enumerate(roles.workers):
            due = [True, *(number in its["waiting"] for its in servers.values())]
            word = np.array(due, np.uint8)
            self._words.append(self.comm.Isend(word, rank, TO_WORKERS))
        workers = {}
        for rank in roles.workers:
            workers[rank] = yield from coming(
                self.comm, rank, deadline, WORKERS_TAG, heartbeat.beat
            )
        sent = [0, *(its["snapshots"] for its in servers.values())]
        told = f"rank 0 waited {deadline:.0f} s for shards to evaluate"
        limit = Deadline(deadline, lambda: told)
        while self.site.snapshots.taken != sent:
            limit.check()
            self.site.take_in()
            heartbeat.beat()
            yield
        return servers, workers, heartbeat


class _Part:
    """One that is led. Words of `numbers` come from the rank of server 0.

    `hand_over`: sends the rows that the leader counts on their way, and says how many there were.
    """

    tag: int  # of what it hands in
    words: int  # tag of the leader's words

    def __init__(
        self,
        comm: Communicator,
        roles: Roles,
        numbers: np.ndarray,
        deadline: float,
        hand_over: Callable[[], dict[str, int]],
    ):
        self.comm, self.leader, self.deadline = comm, roles.servers[0], deadline
        self.hand_over, self._numbers, self._has_word = hand_over, numbers, False

    def join(self, who: Any) -> None:
        """It is of that server or worker."""
        self.who, self.site = who, who.site

    def called(self) -> bool:
        """Whether a word has come, and what it speaks of."""
        if not self._has_word and self.comm.Iprobe(self.leader, self.words):
            self.comm.Recv(self._numbers, self.leader, self.words)
            self._has_word = True
        return self._has_word and self._ready()

    def _ready(self) -> bool:
        raise NotImplementedError

    def conclude(self) -> Steps:
        """Nothing."""
        yield from ()

    def _hand_in(self, told: dict[str, Any]) -> Steps:
        """What it is, until the leader lets it go on. Rows that it counts are on their way."""
        state = {"own": self.who.state(), "site": self.site.state()}
        states = [told | self.hand_over(), state]
        yield from handing_in(self.comm, states, self.deadline, self.tag)


class ServerPart(_Part):
    """Another server's."""

    tag, words = TAG, TO_SERVERS
    _ended = False

    def __init__(self, comm: Communicator, roles: Roles, *more: Any):
        super().__init__(comm, roles, np.zeros(2 + len(roles.workers), int), *more)

    def _ready(self) -> bool:
        kind, verdicts, *steps = self._numbers.tolist()
        if kind != REST:
            return True
        came = self.site.steps
        return self.site.verdicts.count >= verdicts and all(
            came[worker] >= steps[worker] for worker in self.who.serves
        )

    def attend(self) -> Generator[None, None, bool]:
        """What the word says."""
        server, self._has_word = self.who, False
        if self._numbers[0] == REST:
            waiting = np.array(sorted(server.waiting), int)
            sent = self.site.snapshots.sent
            yield from self._hand_in({"waiting": waiting, "snapshots": sent})
            return False
        self._ended = self._numbers[0] == END
        wakes = not self._ended and server.going and not server.follows
        server.stopping |= not self._ended
        return wakes

    def conclude(self) -> Steps:
        """Rests come as long as server 0 has not ended."""
        while not self._ended:
            if self.called():
                yield from self.attend()
            yield


class WorkerPart(_Part):
    """A worker's."""

    tag, words = WORKERS_TAG, TO_WORKERS

    def __init__(self, comm: Communicator, roles: Roles, *more: Any):
        super().__init__(comm, roles, np.zeros(len(roles.servers), np.uint8), *more)

    def _ready(self) -> bool:
        return self.who.awaited == set(np.flatnonzero(self._numbers).tolist())

    def attend(self) -> Generator[None, None, bool]:
        """Hand in what it is."""
        self._has_word = False
        yield from self._hand_in({"reported": self.site.reported})
        return False
