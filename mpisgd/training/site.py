"""Worlds run algorithms: a communicator (real ranks, wall clock) or a clock (virtual ranks).

A world makes one Site for each rank; a Worker stands on it. Methods that may take time are
generators: in the communicator world they wait and never yield, in the clock world they yield
whenever another rank's turn comes.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from allreduce.arrays import Poll
from allreduce.wire import Wire

if TYPE_CHECKING:
    from mpisgd.servers.messages import Answer, Message, Verdict
    from mpisgd.servers.server import Server
    from mpisgd.training.worker import Worker

Steps = Generator[None, None, None]
Ready = Callable[[int], object]
Work = Callable[[Callable[[float], object], Ready | None], Poll | None]


class PendingAllreduce(Protocol):
    """An all-reduce that a site has planned."""

    def start(self) -> None:
        """Begin; the buffer is not to be touched until it was waited for."""

    def meet(self, number: int, met: np.ndarray) -> None:
        """Of pairs: whom each rank meets from the next start on, which is of round `number`."""

    def state(self) -> dict[str, float]:
        """When it began and arrived (s), of one that has been waited for."""

    def restore(self, state: Mapping[str, float]) -> None:
        """It has arrived, as that says: waiting for it takes no time."""


class Interrupts(Protocol):
    """What may interrupt a computation at its looks."""

    def due(self) -> bool:
        """Whether it does, by what has come so far."""

    def answer(self) -> Generator[None, None, bool]:
        """What is done then; whether the computation goes on."""

    def rested(self) -> None:
        """All ranks have lined up, with nothing on its way."""

    def awaited(self) -> str:
        """Who waits for whom, while it is not due."""


class Notices(Protocol):
    """Numbers that ranks tell known peers: `heard`, the last of each source at the last look."""

    heard: dict[int, int]

    def look(self) -> None:
        """Take what has come."""

    def tell(self, ranks: Sequence[int], number: int) -> None:
        """To some of the targets."""


class Site(Protocol):
    """A rank's place in a world. `interrupts`: what computations are interrupted by; `abandoned`:
    whether the last one was given up."""

    rank: int
    size: int
    interrupts: Interrupts | None
    abandoned: bool

    @property
    def asked_to_stop(self) -> bool:
        """Whether this rank was told to stop, by a signal."""

    def now(self) -> float:
        """Seconds since the run began, on its clock."""

    def begin_step(self, step: int) -> None:
        """Start the step's clocks."""

    def compute(self, work: Work, samples: int, ready: Ready | None = None) -> Steps:
        """Do `work(progress, ready)`; it calls progress(share of the work done) now and then, and
        `ready`, if given, whenever another part of the gradient is final (see models.Model). On a
        device it only queues it, and returns what says whether it is done."""

    def updating(self) -> AbstractContextManager[Any]:
        """Around an update of the parameters: its time counts as such."""

    def plan(
        self, buffer: np.ndarray, wire: Wire | None = None, error: Any = None, pairs: bool = False
    ) -> PendingAllreduce:
        """A mean over all ranks, in place; in the same order on every rank. `wire`, `error`: as of
        a Plan; `pairs`: over this rank and whom it meets."""

    def wait(self, pending: PendingAllreduce) -> Steps:
        """Until `pending`, which was started, has arrived."""

    def notices(self, sources: Sequence[int], targets: Sequence[int]) -> Notices:
        """From and to these ranks; in the same order on every rank, before the first step."""

    def attend(self) -> Steps:
        """Until `interrupts` are due."""

    def gather(self, value: int) -> Generator[None, None, list[int]]:
        """Every rank's value, on every rank."""

    def end_step(self, **columns: float) -> None:
        """Record a row of /steps: `columns` beside the site's own times."""

    def rest(self, worker: "Worker") -> Steps:
        """Until all ranks are here, with nothing in flight; save them. Raises NotFinite on every
        rank if one has met what is not. Lining up takes time, saving does not count."""

    def evaluate(self, worker: "Worker") -> Steps:
        """Evaluate the mean of all ranks' parameters on the test set; its time does not count."""


class ServerSite(Protocol):
    """A server's place in a world."""

    asked_to_stop: bool
    paused_s: float

    def now(self) -> float: ...

    def receive(self, until: float | None) -> "Generator[None, None, Message | None]":
        """The next message; None once `until` has passed, or if none will ever come."""

    def send(self, worker: int, header: "Answer", payload: np.ndarray | None) -> None:
        """`payload` may be changed at once; None: the header is all."""

    def notify(self, worker: int) -> None:
        """Tell a worker that what it computes is out of date; at most once a reply."""

    def announce(self, verdict: "Verdict") -> None:
        """On server 0: to all other servers, which get verdicts in the order they were given."""

    def busy(self, octets: int) -> Steps:
        """The time of adding so many bytes, where time is not measured."""

    def record(self, row: dict[str, float]) -> None:
        """A row of /updates."""

    def rest(self, server: "Server") -> Steps:
        """On server 0: until every worker waits for it and nothing is on its way; save the run."""

    def evaluate(self, server: "Server", final: bool) -> Steps:
        """Hand in the shard as it is; the whole is evaluated once all shards are there."""
