"""A schedule run on a communicator: persistent requests, advanced whenever somebody looks."""

import os
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np

from allreduce import arrays, compress
from allreduce.errors import AllreduceError, Mismatch, ScheduleError, Stalled
from allreduce.lowering import TAGS_PER_PLAN, exchange_maxima, lower
from allreduce.phases import Check
from allreduce.schedule import Schedule
from allreduce.wire import Wire

LOOKS_PER_CLOCK = 64  # a look costs 2 us, reading the clock at each would show
SPINS = 200  # looks before a waiting rank yields its core
YIELDS = 2000  # looks before it sleeps instead
CROWDED_LOOKS = 50  # of these before it asks how much of the core it gets
CROWDED = 1.25  # the time that passed over the time it ran: above, others are at work there

_in_flight: set["Runner"] = set()  # MPI holds their buffers: one that is dropped must not go


class Runner:
    """One all-reduce as phases that follow one another: what all who carry one have in common.

    Who derives from it checks and keeps the buffers by this constructor, then fills `_body` with
    the phases of a call, and says in `_stall` who is waited for. `sent_bytes`: what this rank sends
    in one, -1 where only a library knows.
    """

    sent_bytes = -1

    def __init__(
        self,
        comm: Any,
        name: str,
        source: Any,
        result: Any,
        *,
        mean: bool,
        tag: int,
        chunks: int,
        deadline: float,
    ):
        if chunks < 1 or tag < 0 or not deadline > 0:
            raise AllreduceError(f"chunks {chunks}, tag {tag}, deadline {deadline}: too small")
        self.comm, self.name, self.deadline = comm, name, deadline
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.result = source if result is None else result
        self._source = arrays.flat(source, writable=self.result is source)
        in_place = self.result is source
        self._target = self._source if in_place else arrays.flat(self.result, writable=True)
        # On a device, work has a stream of its own: a round must not queue behind what computes.
        self._memory = arrays.of(self._target).beside()
        check_pair(self._source, self._target, mean)
        self._taken = None if in_place else self._target  # where `take` puts the input, if anywhere
        self._body: list[Any] = []
        self._phases = self._body
        self._position = self._end = 0  # nothing in flight
        self._looks, self._moved = 0, 0.0
        self._closed = False

    def start(self) -> None:
        """Copy the input, send what can be sent. The input may be changed after it returns."""
        self.take()
        self.post()

    def take(self) -> None:
        """Copy the input; on the thread that owns it."""
        if self._position < self._end or self._closed:
            state = "closed" if self._closed else "still in flight"
            raise AllreduceError(f"{self.name} cannot start: it is {state}")
        if self._taken is not None:
            arrays.of(self._taken).copy(
                self._taken, self._source
            )  # before what the caller does next
        self._memory.follow()

    def post(self) -> None:
        """Start the messages; on whichever thread drives the communicator."""
        self._position, self._end = 0, len(self._phases)
        self._looks = 0
        if self._end:
            _in_flight.add(self)
            self._phases[0].begin()

    @property
    def position(self) -> int:
        """How many of its phases are done: it changes whenever it has moved on."""
        return self._position

    def test(self) -> bool:
        """Move on as far as possible without waiting; whether the result is there."""
        return self._position == self._end or self._advance(0)

    def wait(self) -> Any:
        """The result, once it is there."""
        # The first looks stay in one tight loop: at a few bytes its speed is that of the plan.
        if self._position < self._end and not self._advance(SPINS):
            wait_until(self.test, lambda: self.position)
        return self.result

    def close(self) -> None:
        """Give all requests back. Only this rank's affair."""
        raise NotImplementedError

    def _discard(self, phases: Sequence[Any]) -> None:
        """Give the requests of all its phases back, once."""
        if self._closed:
            return
        self._closed = True
        _in_flight.discard(self)
        for phase in phases:
            phase.free()
        if self._position < self._end:  # its result will never come
            self._phases, self._position, self._end = [Check(self._refuse)], 0, 1

    def _refuse(self) -> None:
        raise AllreduceError(f"{self.name} was closed while it was in flight")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _advance(self, patience: int) -> bool:
        """Move on until a phase has been looked at in vain that often; whether none is left."""
        phases, position = self._phases, self._position
        while phases[position].done(patience):
            self._looks = 0
            self._position = position = position + 1
            if position == self._end:
                _in_flight.discard(self)
                self._phases = self._body  # ranks compare what they were called with only once
                self._position = self._end = 0
                return True
            phases[position].begin()
        self._looks += 1
        if not self._looks % LOOKS_PER_CLOCK:
            self._check_deadline()
        return False

    def _check_deadline(self) -> None:
        now = time.monotonic()
        if self._looks == LOOKS_PER_CLOCK:
            self._moved = now  # since here it has been looked at in vain
        elif now - self._moved > self.deadline:
            raise Stalled(self._stall(now - self._moved))

    def _stall(self, seconds: float) -> str:
        """Who has waited how long, and for whom as far as it is known."""
        raise NotImplementedError


class Call(Runner):
    """An all-reduce that a library does as one call: it cuts messages by itself, does not tell for
    whom it waits, and cannot take back what has begun."""

    def __init__(self, comm: Any, name: str, *arrays: Any, chunks: int, **how: Any):
        """As a Runner's."""
        if chunks != 1:
            raise AllreduceError(f"chunks {chunks}: {name} takes 1 only")
        super().__init__(comm, name, *arrays, chunks=chunks, **how)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()  # after an error it might never end

    def _stall(self, seconds: float) -> str:
        """Who has waited how long."""
        return (
            f"rank {self.rank} has waited {seconds:.3g} s for some of the {self.size} ranks in "
            f"all-reduce {self.name} of {self._target.size} {self._target.dtype}"
        )


class Plan(Runner):
    """One all-reduce, to be started any number of times.

    `comm`: an mpi4py communicator, or anything with its Send_init and Recv_init. `source`: what
    this rank contributes; `result`: where the sum goes (None: in place). Any C-contiguous array
    of a dtype in arrays.DTYPES, equal on all ranks. `mean` divides by the number of ranks.
    `tag`: plans that are in flight together on one communicator need different ones. `chunks`:
    messages are cut in that many. `deadline`: seconds without any progress, while somebody
    looks, before `Stalled` is raised. `cuda_aware`: whether MPI takes device memory as it is;
    else it is staged through pinned host memory. `wire`: the format of messages, if not the
    array's; `error`: an array like the result for what its rounding leaves out, or as
    `compress.memory` makes one for what leaves out more.

    Raises BufferRefused, ScheduleError or AllreduceError here, with the reason; Mismatch from
    the first `test` or `wait` after the first `start`, on every rank, if ranks differ.

    All ranks end with the same bits. One thread drives one communicator.
    """

    def __init__(
        self,
        comm: Any,
        schedule: Schedule,
        source: Any,
        result: Any = None,
        *,
        mean: bool = False,
        tag: int = 0,
        chunks: int = 1,
        deadline: float = 60.0,
        cuda_aware: bool = False,
        wire: Wire | None = None,
        error: Any = None,
    ):
        if schedule.size != comm.Get_size():
            raise ScheduleError(
                f"{schedule.name} is for {schedule.size} ranks, not {comm.Get_size()}"
            )
        super().__init__(
            comm, schedule.name, source, result,
            mean=mean, tag=tag, chunks=chunks, deadline=deadline,
        )  # fmt: skip
        signature = {
            "count": self._target.size,
            "dtype": arrays.DTYPES.index(self._target.dtype),
            "schedule": schedule.digest,
            "chunks": chunks,
            "mean": int(mean),
            "wire": 0 if wire is None else compress.number(wire),
        }
        told = compress.sent(wire, schedule, self._target.size, self._target.itemsize)
        self.sent_bytes = told[self.rank]
        base = tag * TAGS_PER_PLAN
        self._body = lower(
            comm, schedule, self._target, self._memory, base, chunks, mean, cuda_aware, wire, error
        )
        self._first = exchange_maxima(comm, signature, base, self._compare)
        self._phases = self._first + self._body

    def close(self) -> None:
        """Give all requests back; messages in flight are cancelled. Only this rank's affair."""
        self._discard(self._first + self._body)

    def _compare(self, maxima: dict[str, int], minima: dict[str, int]) -> None:
        """Raises Mismatch; every rank sees the same extremes, hence all raise."""
        differing = [name for name in maxima if maxima[name] != minima[name]]
        if differing:
            ranges = ", ".join(_range(name, minima[name], maxima[name]) for name in differing)
            raise Mismatch(
                f"ranks called {self.name} with different {ranges} "
                f"(rank {self.rank}: {self._target.size} of {self._target.dtype})"
            )

    def _stall(self, seconds: float) -> str:
        peers = self._phases[self._position].pending()
        waiting = "; ".join(
            f"round {p.round}: {p.action} rank {p.rank}, {p.octets} B" for p in peers[:4]
        )
        who = ", ".join(str(rank) for rank in sorted({p.rank for p in peers})) or "its device"
        return (
            f"rank {self.rank} has waited {seconds:.3g} s for rank {who} in all-reduce "
            f"{self.name} ({waiting or 'device work'})"
        )


def wait_until(ready: Callable[[], bool], position: Callable[[], int] = int) -> None:
    """Look until `ready()`: at once, then yielding the core, then asleep for 1/64 of the time since
    `position()` last changed: a round of many must not wait for as long as all before it took."""
    for _ in range(SPINS):
        if ready():
            return
    if _looked(ready):
        return
    moved, at = time.monotonic(), position()
    while not ready():
        now, before, at = time.monotonic(), at, position()
        if at != before:
            moved = now
        time.sleep(min(5e-3, max(5e-5, (now - moved) / 64)))


def _looked(ready: Callable[[], bool]) -> bool:
    """Look YIELDS times, fewer where others want this core: whoever looks takes a rank that still
    computes its time, and so waits for itself. Whether it was `ready()`."""
    began, used = time.perf_counter(), time.thread_time()
    for look in range(1, YIELDS + 1):
        if ready():
            return True
        os.sched_yield()
        if look % CROWDED_LOOKS == 0:
            passed, worked = time.perf_counter() - began, time.thread_time() - used
            if passed > CROWDED * worked:
                return False
    return False


def check_pair(source: Any, target: Any, mean: bool) -> None:
    if (source.size, source.dtype) != (target.size, target.dtype):
        raise AllreduceError(
            f"source holds {source.size} of {source.dtype}, result {target.size} of {target.dtype}"
        )
    if type(source) is not type(target):
        raise AllreduceError(f"source is {type(source).__name__}, result {type(target).__name__}")
    if mean and not np.issubdtype(target.dtype, np.floating):
        raise AllreduceError(f"the mean of {target.dtype} is no {target.dtype}: sum instead")
    if source is not target and arrays.overlap(source, target):
        raise AllreduceError("source and result overlap; leave out result to reduce in place")


def _range(name: str, low: int, high: int) -> str:
    if name == "dtype":
        return f"dtype ({arrays.DTYPES[low]} and {arrays.DTYPES[high]})"
    return name if name == "schedule" else f"{name} ({low} to {high})"
