"""The MPI library's own all-reduces behind the methods of a Plan, to be measured against.

The one module of this package that imports mpi4py, and only once asked: that starts MPI.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from allreduce.arrays import Device, summed_in
from allreduce.communicator import abort
from allreduce.errors import AllreduceError, BufferRefused
from allreduce.phases import Work
from allreduce.plan import Call, wait_until

NATIVE = {
    "mpi": "MPI_Allreduce, which blocks",
    "mpi-nonblocking": "MPI_Iallreduce",
    "mpi-persistent": "MPI_Allreduce_init (MPI 4)",
}
"""They have no schedule: what verifies, evaluates or simulates schedules refuses these names."""


class Native(Call):
    """One all-reduce by the MPI library, to be started any number of times.

    Arguments, methods and errors are those of a Plan, with these differences. `name`: a key of
    NATIVE. `chunks` other than 1 is refused: the library cuts messages by itself. `tag` is
    without meaning: all ranks must start their collectives in the same order. Ranks that differ
    in count or dtype are not found out, and that all ranks end with the same bits is what MPI
    recommends, not what it promises. `mpi` cannot be polled: it is over when `post()` returns; if
    it takes longer than `deadline` seconds, a watchdog says so and aborts all ranks.

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
        super().__init__(
            comm, name, source, result, mean=mean, tag=tag, chunks=chunks, deadline=deadline
        )
        self._lower(mean, cuda_aware)

    def post(self) -> None:
        """Call MPI; on whichever thread drives the communicator.

        Collectives match by their order, so what the device still has to do is waited for here.
        """
        for phase in self._before:
            phase.begin()
            wait_until(phase.done)
        super().post()

    def close(self) -> None:
        """Give the request back. MPI cannot cancel a collective: in flight, it is waited for."""
        if self._closed:
            return
        self.wait()
        self._closed = True
        for phase in (*self._before, *self._body):
            phase.free()

    def _lower(self, mean: bool, cuda_aware: bool) -> None:
        """What is done before, by, and after the collective."""
        memory, target = self._memory, summed_in(self._target, mean, self._memory)
        widened: list[Callable[[], None]] = []
        if target is not self._target:
            widened = [partial(memory.copy, target, self._target)]
        if why := refusal(self.comm, self.name, memory.module, cuda_aware):
            raise BufferRefused(f"{self.name} {why}: use mpi, or cuda_aware=False")
        output = target
        self._before = [Work(memory, widened)] if widened or isinstance(memory, Device) else []
        after = [partial(memory.divide, target, self.size)] if mean else []
        if isinstance(memory, Device) and not cuda_aware:
            output = memory.pinned(target.size, target.dtype)
            self._before = [Work(memory, [*widened, partial(memory.to_host, output, target)])]
            after.insert(0, partial(memory.to_device, target, output))
        if widened:
            after.append(partial(memory.copy, self._target, target))
        self._body += [_COLLECTIVES[self.name](self.comm, output, output, self)]
        if after:
            self._body.append(Work(memory, after))


class _Nonblocking:
    """The collective as a phase of `owner`; `bare`: as one call that waits."""

    def __init__(self, comm: Any, given: Any, output: Any, owner: Native | None = None):
        from mpi4py import MPI

        self.comm, self.owner = comm, owner
        self.request: Any = None
        self.given, self.output = MPI.IN_PLACE if given is output else given, output

    def begin(self) -> None:
        self.request = self.comm.Iallreduce(self.given, self.output)

    def done(self, patience: int = 0) -> bool:
        """Whether it came; `patience`: looks that may be in vain."""
        test = self.request.Test
        while not test():
            if not patience:
                return False
            patience -= 1
        return True

    def free(self) -> None:
        """A request that is done is gone."""

    def bare(self) -> Callable[[], object]:
        begin, given, output = self.comm.Iallreduce, self.given, self.output
        return lambda: begin(given, output).Wait()


class _Persistent(_Nonblocking):
    def __init__(self, comm: Any, given: Any, output: Any, owner: Native | None = None):
        super().__init__(comm, given, output, owner)
        self.request = comm.Allreduce_init(self.given, self.output)

    def begin(self) -> None:
        self.request.Start()

    def free(self) -> None:
        self.request.Free()

    def bare(self) -> Callable[[], object]:
        start, wait = self.request.Start, self.request.Wait

        def run() -> None:
            start()
            wait()

        return run


class _Blocking(_Nonblocking):
    def __init__(self, comm: Any, given: Any, output: Any, owner: Native | None = None):
        super().__init__(comm, given, output, owner)
        _watchdog.watch()

    def begin(self) -> None:
        assert self.owner is not None
        _watchdog.blocked = (self.owner,)  # a new object each time: that tells calls apart
        try:
            self.comm.Allreduce(self.given, self.output)
        finally:
            _watchdog.blocked = None

    def done(self, patience: int = 0) -> bool:
        return True

    def bare(self) -> Callable[[], object]:
        return partial(self.comm.Allreduce, self.given, self.output)


def refusal(comm: Any, name: str, module: Any, cuda_aware: bool) -> str:
    """Why the library's all-reduce cannot work on arrays of `module`; "" if it can."""
    if module is not np and cuda_aware and name != "mpi" and "Open MPI" in library():
        return "of device memory crashes Open MPI"
    return ""


_COLLECTIVES = {"mpi": _Blocking, "mpi-nonblocking": _Nonblocking, "mpi-persistent": _Persistent}


def bare(
    comm: Any, name: str, source: Any, result: Any
) -> tuple[Callable[[], object], Callable[[], object]]:
    """The library's all-reduce as any program calls it, and what gives its request back.

    Nothing is copied, checked or divided; source is result: in place.
    """
    collective = _COLLECTIVES[name](comm, source, result)
    return collective.bare(), collective.free


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
                stall = blocked[0]._stall(now - since)
                abort(blocked[0].comm, f"{stall}; all ranks are aborted", 1)


_watchdog = _Watchdog()


def library() -> str:
    """The first line of what the MPI library says of itself."""
    from mpi4py import MPI

    return " ".join(MPI.Get_library_version().rstrip("\0").splitlines()[0].split())


THREAD_LEVELS = ("single", "funneled", "serialized", "multiple")
PROGRESS = (
    "I_MPI_ASYNC_PROGRESS", "I_MPI_ASYNC_PROGRESS_THREADS", "I_MPI_THREAD_SPLIT",
    "MPIR_CVAR_ASYNC_PROGRESS", "MPICH_ASYNC_PROGRESS", "OMPI_MCA_btl_tcp_progress_thread",
    "OMPI_MCA_mpi_yield_when_idle",
)  # fmt: skip
"""Variables by which libraries are told to move messages on by themselves, or who yields."""


def progress() -> dict[str, str]:
    """The settings of PROGRESS that this process was started with."""
    return {name: os.environ[name] for name in PROGRESS if name in os.environ}


def described() -> dict[str, Any]:
    """What a file keeps of the library: its name, thread level and settings of progress."""
    from mpi4py import MPI

    levels = (
        MPI.THREAD_SINGLE, MPI.THREAD_FUNNELED, MPI.THREAD_SERIALIZED, MPI.THREAD_MULTIPLE,
    )  # fmt: skip
    return {
        "mpi_library": library(),
        "thread_level": THREAD_LEVELS[levels.index(MPI.Query_thread())],
        "mpi_progress": progress(),
    }


def cuda_aware() -> bool | None:
    """Whether the MPI library says that it takes device memory; None if it cannot say."""
    try:
        query = functions().MPIX_Query_cuda_support
    except (OSError, AttributeError):
        return None
    return bool(query())


def exchange_with_itself(source: Any, target: Any) -> None:
    """One message from this process to itself, of whatever memory: what MPI cannot read ends it."""
    from mpi4py import MPI

    MPI.COMM_SELF.Sendrecv(source, 0, recvbuf=target, source=0)


def functions() -> ctypes.CDLL:
    """The MPI library's C functions, of those that mpi4py has no name for."""
    from mpi4py import MPI

    return ctypes.CDLL(MPI.__file__)
