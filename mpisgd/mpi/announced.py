"""What a launcher tells a process in the environment, before MPI has started: where it is."""

import errno
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from mpisgd.values.errors import UsageError

ECHO_S = 1.5  # that others have to come
ANNOUNCED = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE", "MPI_LOCALNRANKS")
STEP = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")  # of an srun step, when SLURM_PROCID is set too
LOCAL_RANKS = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
LAB = "MPISGD_LAB"  # by which a run knows the lab that it is in; results keep it
BURST = "MPISGD_LAB_BURST"  # and this: bytes that each of its wires lets pass at once
# Where Open MPI's mpiexec keeps its files while it runs: /tmp/ompi.PID by default. One that was
# killed leaves them, and none starts later under the same process id ("listener thread failed").
SESSIONS = "PRTE_MCA_prte_local_tmpdir_base"
SESSIONS_ANYWHERE = "PRTE_MCA_prte_tmpdir_base"  # on all nodes; not both


def announced_tasks(environment: Mapping[str, str]) -> int:
    """How many tasks the launcher says it started; 1 when nobody says anything sensible."""
    names = [*ANNOUNCED]
    if "SLURM_PROCID" in environment and "SLURM_STEP_ID" in environment:
        names += STEP
    values = (environment.get(name, "") for name in names)
    return next((int(v) for v in values if v.isascii() and v.isdigit() and int(v) > 0), 1)


def check_alone(option: str = "", value: object = None) -> None:
    """UsageError if a launcher started several of what one process does: each would do all of it.
    `option`: what makes it so, of a command that may run on ranks."""
    if (tasks := announced_tasks(os.environ)) > 1:
        told = f"runs in one process, but a launcher started {tasks}; start it without"
        raise UsageError(option, value, told) if option else UsageError(told)


@contextmanager
def first_here() -> Iterator[bool]:
    """Whether this process speaks: the first of those that a launcher started on this host, or the
    only one. They say nothing to each other: it holds a name until the others have come."""
    if announced_tasks(os.environ) == 1:
        yield True
        return
    import socket

    with socket.socket(socket.AF_UNIX) as held:
        try:
            held.bind(f"\0mpisgd-{os.getuid()}-{os.getppid()}")  # a name, no file
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                yield False
                return
        yield True
        time.sleep(ECHO_S)


def rank_told() -> int:
    """This process's rank as its launcher tells it, before MPI has started; 0 if it does not."""
    return _number_in(RANKS)


def local_rank() -> int:
    """Its number among the ranks of its node, which chooses its device; 0 if nobody tells it."""
    return _number_in(LOCAL_RANKS)


def _number_in(names: tuple[str, ...]) -> int:
    values = (os.environ.get(name, "") for name in names)
    return next((int(v) for v in values if v.isascii() and v.isdigit()), 0)
