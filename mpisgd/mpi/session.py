"""Starting under MPI, and leaving it so that no rank is left behind."""

import hashlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from types import FrameType
from typing import Any, NoReturn

import numpy as np

from allreduce.algorithms import build
from allreduce.communicator import abort
from allreduce.errors import Stalled
from allreduce.plan import Plan
from mpisgd.mpi import tags
from mpisgd.mpi.announced import announced_tasks, rank_told
from mpisgd.mpi.watch import begin, watched
from mpisgd.values.errors import NotFinite, UsageError
from mpisgd.values.processes import PATIENCE, handle

TEXT = 256  # bytes a rank can tell the others
GRACE = 5.0  # s from a signal to the abort, if no merge has stopped the run by then
ECHO = 1.5  # s a stalled rank lets the others say whom they wait for: the chain names the culprit
START_S = 60.0  # s until all ranks have started MPI, and one more for each
FINALIZE_S = 10.0  # s that MPI_Finalize gets at least, however short the deadline
LEFT_EARLY, NOT_FINITE = 1, 3  # exit codes
GONE = "MPI fails so where a rank is gone; mpiexec may name one that it ended itself"


def world(mistake: str = "") -> Any:
    """COMM_WORLD, once all ranks have come; `mistake`: what to say as well if they don't.

    UsageError if a launcher started several tasks but MPI sees only one.
    """
    tasks = announced_tasks(os.environ)
    seconds = START_S + tasks
    rank = f"mpisgd: rank {rank_told()} of {tasks}"
    words = (
        f"{rank} has waited {seconds:g} s in MPI_Init for others, which have ended or are stopped"
    )
    with watched(f"{mistake}\n{words}".lstrip(), seconds) if tasks > 1 else nullcontext():
        from mpi4py import MPI

    comm = MPI.COMM_WORLD
    if comm.Get_size() == 1 and tasks > 1:
        library = " ".join(MPI.Get_library_version().split("\n")[0].strip("\0").split())[:60]
        raise UsageError(
            f"the launcher started {tasks} tasks, but each is an MPI world of its own",
            None,
            f"this MPI is {library}: use its own mpiexec, or srun --mpi=pmi2 (MPICH) or "
            "--mpi=pmix (Open MPI)",
        )
    return comm


def thread_comm(comm: Any) -> Any:
    """A communicator of its own for a progress thread. UsageError if MPI forbids threads."""
    from mpi4py import MPI

    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise UsageError("--progress", "thread", "this MPI library was not started for threads")
    return comm.Dup()


def texts(comm: Any, text: str, deadline: float = 60.0) -> list[str]:
    """Every rank's `text` (its first TEXT bytes), on every rank."""
    table = np.zeros((comm.Get_size(), TEXT), np.uint8)
    octets = text.encode()[:TEXT]
    table[comm.Get_rank(), : len(octets)] = np.frombuffer(octets, np.uint8)
    schedule = build("tree", comm.Get_size())
    with Plan(comm, schedule, table, tag=tags.TEXTS, deadline=deadline) as plan:
        plan.start()
        plan.wait()
    return [bytes(row).rstrip(b"\0").decode(errors="ignore") for row in table]


def agree(comm: Any, error: UsageError | None, deadline: float = 60.0) -> None:
    """Raise on every rank if any rank has met a user's mistake: the first one's.

    `deadline`: s, of a wait for a peer; one that has read or begun files gets PATIENCE of them.
    """
    told = texts(comm, str(error) if error else "", PATIENCE * deadline)
    for rank, text in enumerate(told):
        if text:
            raise error if error and rank == comm.Get_rank() else UsageError(text)


def refuse_together(line: str) -> None:
    """Leave because of a mistake that this rank knows of before MPI has started.

    Other ranks may know of none, as when a file is missing on one node: they learn it here, in
    their `agree`. Rank 0 prints, its own `line` first.
    """
    try:
        comm = world(line)
    except UsageError:  # each is a world of its own
        if rank_told() == 0:
            print(line, file=sys.stderr, flush=True)
        return
    told = texts(comm, line)
    if comm.Get_rank() == 0:
        print(line if told[0] else next(filter(None, told)), file=sys.stderr, flush=True)
    _leave_together(comm)


def agree_on(comm: Any, what: str, value: str, deadline: float = 60.0) -> None:
    """UsageError on every rank unless all were started with the same `value`. See `agree`."""
    digest = hashlib.blake2b(value.encode(), digest_size=16).hexdigest()
    told = texts(comm, digest, PATIENCE * deadline)
    for rank, other in enumerate(told):
        if other != told[0]:
            raise UsageError(f"ranks 0 and {rank} were started with different {what}")


def guarded(comm: Any, main: Callable[[], int], deadline: float = 60.0) -> int:
    """`main()`, a rank's whole work; its exit code. `deadline`: s, of what ranks wait for.

    UsageError, NotFinite and an exit code come on all ranks at once: rank 0 says so, all leave.
    Anything else comes on one rank only: it prints its reason and aborts the job, or the others
    would wait.
    """
    try:
        code = _told(comm, main)
        _leave_together(comm, deadline)
        return code
    except BrokenPipeError:
        if comm.Get_size() > 1:  # nobody reads rank 0 any more: no reason to give
            comm.Abort(LEFT_EARLY)
        raise
    except BaseException as failure:
        _abort(comm, failure)


def _told(comm: Any, main: Callable[[], int]) -> int:
    """`main()`'s exit code; rank 0 says why all of them failed."""
    try:
        return main()
    except UsageError as mistake:
        if comm.Get_rank() == 0:
            line = str(mistake)
            known = line.startswith("mpisgd")  # told by a rank that left before MPI started
            print(line if known else f"{_command()}: error: {line}", file=sys.stderr, flush=True)
        return 2
    except NotFinite as failure:
        if comm.Get_rank() == 0:
            print(f"mpisgd: {failure}; stopped before the next merge", file=sys.stderr, flush=True)
        return NOT_FINITE


def _leave_together(comm: Any, deadline: float = 60.0) -> None:
    """Wait for all: a launcher may end a job, and its output, at the first exit with an error. From
    here to the end there is only MPI_Finalize, which is watched."""
    texts(comm, "", PATIENCE * deadline)
    rank, size = comm.Get_rank(), comm.Get_size()
    if size > 1:
        seconds = max(deadline, FINALIZE_S)
        told = f"mpisgd: rank {rank} of {size} has waited {seconds:g} s in MPI_Finalize for others"
        begin(told, seconds)


def _command() -> str:
    return " ".join(["mpisgd", *sys.argv[1:2]])


def _abort(comm: Any, failure: BaseException) -> NoReturn:
    rank = f"mpisgd: rank {comm.Get_rank()} of {comm.Get_size()}"
    code = LEFT_EARLY
    if isinstance(failure, Stalled | OSError):
        reason = f"{type(failure).__name__}: {failure}"
    elif isinstance(failure, MemoryError):
        reason = f"out of memory: {failure}" if str(failure) else "out of memory"
    elif isinstance(failure, KeyboardInterrupt):
        reason, code = "interrupted", 128 + signal.SIGINT
    elif isinstance(failure, SystemExit):
        reason = f"left with sys.exit({failure.code!r}) while others were at work"
        code = failure.code if isinstance(failure.code, int) and failure.code else LEFT_EARLY
    else:
        reason = traceback.format_exc().rstrip()
        if type(failure).__module__.startswith("mpi4py"):
            reason += f"\n{rank}: {GONE}"
    abort(comm, f"{rank}: {reason}", code, ECHO if isinstance(failure, Stalled) else None)
    os._exit(code)  # MPICH returns from Abort; a second traceback would only confuse


class Signals:
    """SIGTERM, SIGINT and SIGUSR1 ask to stop at the next merge; GRACE later they abort, unless the
    rank is `busy` with what ends by itself: an evaluation may take longer."""

    def __init__(self, comm: Any, ask: Callable[[], None], busy: Callable[[], bool] = bool):
        self.comm, self.ask, self.busy = comm, ask, busy
        self.received: signal.Signals | None = None
        self._heard: set[int] = set()
        self._timer: threading.Timer | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        self._before = handle((signal.SIGTERM, signal.SIGINT, signal.SIGUSR1), self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._timer is not None:
            self._timer.cancel()

    def met(self) -> None:
        """All ranks have heard of it: what they still do may take its time."""
        if self._timer is not None:
            self._timer.cancel()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        again = number in self._heard
        self._heard.add(number)
        if self.received is not None:
            if again and number != signal.SIGUSR1:  # Slurm, its script and mpiexec may all tell it
                self._give_up(f"{signal.Signals(number).name}: interrupted twice")
            return
        self.received = signal.Signals(number)
        self.ask()
        self._wait()

    def _wait(self) -> None:
        self._timer = threading.Timer(GRACE, self._look)
        self._timer.daemon = True
        self._timer.start()

    def _look(self) -> None:
        if self.busy():
            self._wait()
        else:
            assert self.received is not None
            self._give_up(f"{self.received.name}, no merge came in time")

    def _give_up(self, reason: str) -> None:
        """Rank 0 first: where all were asked, one line says all."""
        assert self.received is not None
        if self.comm.Get_rank():
            time.sleep(ECHO)
        abort(self.comm, f"mpisgd: rank {self.comm.Get_rank()}: {reason}", 128 + self.received)
