"""The MPI library's own all-reduces behind the methods of a Plan, to be measured against.

The one module of this package that imports mpi4py, and only once asked: that starts MPI.
"""

import ctypes
import sys
import threading
import time
from functools import partial
from types import TracebackType
from typing import Any

from allreduce import arrays
from allreduce.arrays import Device
from allreduce.errors import AllreduceError, BufferRefused, Stalled
from allreduce.phases import Work
from allreduce.plan import LOOKS_PER_CLOCK, check_pair, wait_until

NATIVE = {
    "mpi": "MPI_Allreduce, which blocks",
    "mpi-nonblocking": "MPI_Iallreduce",
    "mpi-persistent": "MPI_Allreduce_init (MPI 4)",
}
"""They have no schedule: what verifies, evaluates or simulates schedules refuses these names."""

_in_flight: set["Native"] = set()  # MPI holds their buffers: one that is dropped must not go


class Native:
    """One all-reduce by the MPI library, to be started any number of times.

    Arguments, methods and errors are those of a Plan, with these differences. `name`: a key of
    NATIVE. `chunks` other than 1 is refused: the library cuts messages by itself. `tag` is
    without meaning: all ranks must start their collectives in the same order. Ranks that differ
    in count or dtype are not found out. Out of place, all but `mpi` send from a copy that
    `take()` makes, so that the input may be changed after `start()`. `mpi` is over when `post()`
    returns; if it takes longer than `deadline` seconds, a watchdog says so and aborts all ranks.

    Raises AllreduceError or BufferRefused here, with the reason; Stalled from `test` and `wait`.
    """

    def __init__(
        self,
        comm: Any,
        name: str,
        source: Any,
        result: Any = None,
        *,
        mean: bool = False,
        tag: int = 0,
        chunks: int = 1,
        deadline: float = 60.0,
        cuda_aware: bool = False,
    ):
        if name not in NATIVE:
            raise AllreduceError(f"no all-reduce of MPI named {name!r}: {', '.join(NATIVE)}")
        if chunks != 1 or tag < 0 or not deadline > 0:
            raise AllreduceError(
                f"chunks {chunks}, tag {tag}, deadline {deadline}: {name} takes chunks 1 only, "
                "tags from 0, deadlines above 0"
            )
        self.name, self.deadline, self.comm = name, deadline, comm
        self.rank = comm.Get_rank()
        self.result = source if result is None else result
        self._source = arrays.flat(source, writable=self.result is source)
        in_place = self.result is source
        self._target = self._source if in_place else arrays.flat(self.result, writable=True)
        self._memory = arrays.of(self._target)
        check_pair(self._source, self._target, mean)
        self._mean, self._closed = mean, False
        self._lower(cuda_aware)
        self._position = self._end = 0
        self._looks, self._moved = 0, 0.0

    def start(self) -> None:
        """Copy the input and begin. The input may be changed after it returns."""
        self.take()
        self.post()

    def take(self) -> None:
        """Copy the input; on the thread that owns it."""
        if self._position < self._end or self._closed:
            state = "closed" if self._closed else "still in flight"
            raise AllreduceError(f"{self.name} cannot start: it is {state}")
        if self._taken is not None:
            self._memory.copy(self._taken, self._source)

    def post(self) -> None:
        """Call MPI; on whichever thread drives the communicator.

        Collectives match by their order, so what the device still has to do is waited for here.
        """
        self._position, self._end, self._looks = 0, len(self._phases), 0
        _in_flight.add(self)
        for phase in self._before:
            phase.begin()
            wait_until(phase.done)
        self._phases[0].begin()

    def test(self) -> bool:
        """Whether the result is there. It never waits."""
        phases = self._phases
        while self._position < self._end:
            if not phases[self._position].done():
                self._looks += 1
                if not self._looks % LOOKS_PER_CLOCK:
                    self._check_deadline()
                return False
            self._position += 1
            if self._position < self._end:
                phases[self._position].begin()
        _in_flight.discard(self)
        return True

    def wait(self) -> Any:
        """The result, once it is there."""
        wait_until(self.test)
        return self.result

    def close(self) -> None:
        """Give the request back. MPI cannot cancel a collective: in flight, it is waited for."""
        if self._closed:
            return
        if self._position < self._end:
            wait_until(self.test)
        self._closed = True
        for phase in (*self._before, *self._phases):
            phase.free()

    def __enter__(self) -> "Native":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()  # after an error it might never end

    def _lower(self, cuda_aware: bool) -> None:
        """What is done before, by, and after the collective."""
        memory, target, source = self._memory, self._target, self._source
        direct = isinstance(memory, Device) and cuda_aware
        if direct and self.name != "mpi" and "Open MPI" in library():
            raise BufferRefused(
                f"{self.name} of device memory crashes Open MPI: use mpi, or cuda_aware=False"
            )
        given = output = target
        self._taken: Any = None  # where `take` puts the input, if anywhere
        self._before = [Work(memory, [])] if isinstance(memory, Device) else []
        after = [partial(memory.divide, target, self.comm.Get_size())] if self._mean else []
        if isinstance(memory, Device) and not cuda_aware:
            given = output = memory.pinned(target.size, target.dtype)
            self._taken = None if source is target else target
            self._before = [Work(memory, [partial(memory.to_host, output, target)])]
            after.insert(0, partial(memory.to_device, target, output))
        elif source is not target:
            given = source
            if self.name != "mpi":
                given = self._taken = memory.empty(target.size, target.dtype)
        collective = _COLLECTIVES[self.name](self, given, output)
        self._phases: list[Any] = [collective]
        if after:
            self._phases.append(Work(memory, after))

    def _check_deadline(self) -> None:
        now = time.monotonic()
        if self._looks == LOOKS_PER_CLOCK:
            self._moved = now  # since here it has been looked at in vain
        elif now - self._moved > self.deadline:
            raise Stalled(self.stall(now - self._moved))

    def stall(self, seconds: float) -> str:
        """Who has waited how long. For whom, MPI does not tell."""
        return (
            f"rank {self.rank} has waited {seconds:.3g} s for some of the {self.comm.Get_size()} "
            f"ranks in all-reduce {self.name} of {self._target.size} {self._target.dtype}"
        )


class _Nonblocking:
    """The collective as a phase."""

    def __init__(self, native: Native, given: Any, output: Any):
        from mpi4py import MPI

        self.native = native
        self.request: Any = None
        self.given, self.output = MPI.IN_PLACE if given is output else given, output

    def begin(self) -> None:
        self.request = self.native.comm.Iallreduce(self.given, self.output)

    def done(self) -> bool:
        return self.request.Test()

    def free(self) -> None:
        """A request that is done is gone."""


class _Persistent(_Nonblocking):
    def __init__(self, native: Native, given: Any, output: Any):
        super().__init__(native, given, output)
        self.request = native.comm.Allreduce_init(self.given, self.output)

    def begin(self) -> None:
        self.request.Start()

    def free(self) -> None:
        self.request.Free()


class _Blocking(_Nonblocking):
    def __init__(self, native: Native, given: Any, output: Any):
        super().__init__(native, given, output)
        _watchdog.watch()

    def begin(self) -> None:
        native = self.native
        _watchdog.blocked = (native,)  # a new object each time: that tells calls apart
        try:
            native.comm.Allreduce(self.given, self.output)
        finally:
            _watchdog.blocked = None

    def done(self) -> bool:
        return True


_COLLECTIVES = {"mpi": _Blocking, "mpi-nonblocking": _Nonblocking, "mpi-persistent": _Persistent}


class _Watchdog:
    """One thread a process: aborts all ranks when one call has blocked beyond its deadline."""

    PERIOD_S = 0.05

    def __init__(self) -> None:
        self.blocked: tuple[Native] | None = None
        self._thread: threading.Thread | None = None

    def watch(self) -> None:
        """Start the thread, the first time."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        seen, since = None, 0.0
        while True:
            time.sleep(self.PERIOD_S)
            now, blocked = time.monotonic(), self.blocked
            if blocked is not seen:
                seen, since = blocked, now
            elif blocked is not None and now - since > blocked[0].deadline:
                # No exception can reach a thread that is inside MPI.
                sys.stderr.write(f"{blocked[0].stall(now - since)}; all ranks are aborted\n")
                sys.stderr.flush()
                blocked[0].comm.Abort(1)


_watchdog = _Watchdog()


def library() -> str:
    """The first line of what the MPI library says of itself."""
    from mpi4py import MPI

    return " ".join(MPI.Get_library_version().rstrip("\0").splitlines()[0].split())


def cuda_aware() -> bool:
    """Whether the MPI library says that it takes device memory; False if it does not say."""
    from mpi4py import MPI

    try:
        query = ctypes.CDLL(MPI.__file__).MPIX_Query_cuda_support
    except (OSError, AttributeError):
        return False
    return bool(query())
