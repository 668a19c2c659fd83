"""Leaving: which reason is given, with which code, what signals do. Jobs: mpi/test_leaving.py."""

import os
import re
import signal
import time

import pytest

from allreduce import communicator
from allreduce.errors import Stalled
from mpisgd.mpi import announced, session
from mpisgd.values.errors import NotFinite, UsageError


class Comm:
    """Rank `rank` of 3; remembers with which code it was aborted."""

    def __init__(self, rank: int = 1):
        self.rank = rank
        self.codes: list[int] = []

    def Get_rank(self) -> int:  # noqa: N802
        return self.rank

    def Get_size(self) -> int:  # noqa: N802
        return 3

    def Abort(self, code: int) -> None:  # noqa: N802
        self.codes.append(code)


class Exited(BaseException):
    """In place of os._exit."""


@pytest.fixture
def outlived(monkeypatch):
    """The process that would be gone, and its patience."""

    def leave(code: int) -> None:
        raise Exited(code)

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(session, "ECHO", 0.0)
    monkeypatch.setattr(communicator, "HAND_ON", 0.0)


def raising(error: BaseException):
    def main() -> int:
        raise error

    return main


@pytest.mark.parametrize(
    ("variables", "tasks"),
    [
        ({}, 1),
        ({"PMI_SIZE": "4"}, 4),
        ({"OMPI_COMM_WORLD_SIZE": "3"}, 3),
        ({"PMI_SIZE": "", "PMIX_SIZE": "2"}, 2),
        ({"PMI_SIZE": "many"}, 1),
        ({"PMI_SIZE": "-4"}, 1),
        ({"SLURM_NTASKS": "8"}, 1),  # a batch script, not a step of srun
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, 8),
        ({"SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0",
          "SLURM_STEP_ID": "1"}, 2),
    ],
)  # fmt: skip
def test_tasks_that_a_launcher_announces(variables, tasks):
    assert announced.announced_tasks(variables) == tasks


@pytest.mark.parametrize(
    ("variables", "speaks"),
    [
        ({}, True),
        ({"PMI_RANK": "0"}, True),
        ({"PMI_RANK": "2"}, False),
        ({"OMPI_COMM_WORLD_RANK": "1"}, False),
        ({"SLURM_PROCID": "3"}, False),
        ({"PMI_RANK": "?"}, True),
    ],
)
def test_one_process_speaks(variables, speaks, monkeypatch):
    for name in announced.RANKS:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (announced.rank_told() == 0) == speaks


OF_MPI = type("Exception", (RuntimeError,), {"__module__": "mpi4py.MPI"})


@pytest.mark.parametrize(
    ("failure", "code", "said"),
    [
        (RuntimeError("odd"), 1, r"rank 1 of 3: Traceback[^\0]*RuntimeError: odd"),
        (AssertionError(), 1, r"rank 1 of 3: Traceback[^\0]*AssertionError\n$"),
        (
            OF_MPI("errno 3"),
            1,
            r"Exception: errno 3\nmpisgd: rank 1 of 3: MPI fails so where a rank",
        ),
        (SystemExit(0), 1, r"rank 1 of 3: left with sys.exit\(0\) while others were at work"),
        (SystemExit(7), 7, r"left with sys.exit\(7\)"),
        (SystemExit("why"), 1, r"left with sys.exit\('why'\)"),
        (KeyboardInterrupt(), 130, r"rank 1 of 3: interrupted"),
        (Stalled("rank 1 has waited for rank 2"), 1, r"Stalled: rank 1 has waited for rank 2\n$"),
        (OSError(28, "No space left", "a.h5"), 1, r"OSError: .*No space left.*a.h5"),
    ],
)
def test_what_strikes_one_rank_aborts_the_job_with_its_reason(
    failure, code, said, outlived, capsys
):
    comm = Comm()
    with pytest.raises(Exited, match=f"^{code}$"):
        session.guarded(comm, raising(failure))
    assert comm.codes == [code]
    assert re.search(said, capsys.readouterr().err)


@pytest.mark.parametrize("rank", [0, 1])
def test_what_all_ranks_agreed_on_ends_them_without_an_abort(rank, capsys, monkeypatch):
    """Nobody leaves before it is said: a launcher ends a job at the first exit with an error."""
    comm, said_before = Comm(rank), []

    def together(comm: Comm, deadline: float) -> None:
        said_before.append(capsys.readouterr().err)

    monkeypatch.setattr(session, "_leave_together", together)
    assert session.guarded(comm, raising(NotFinite("rank 2 at step 5"))) == session.NOT_FINITE
    assert said_before.pop().count("rank 2 at step 5") == (rank == 0)
    assert session.guarded(comm, raising(UsageError("--tau", 0, "more"))) == 2
    said = said_before.pop().splitlines()
    assert len(said) == (rank == 0)
    assert all(line.endswith("error: --tau 0: more") for line in said)
    assert comm.codes == []
    assert session.guarded(comm, lambda: 5) == 5
    assert said_before.pop() == ""
    assert session.guarded(comm, lambda: 0) == 0
    assert said_before.pop() == ""


def test_one_end_told_in_several_ways_is_one():
    """Slurm sends TERM, its script USR1, and mpiexec hands both on."""
    comm, asked = Comm(), []
    with session.Signals(comm, lambda: asked.append(True)) as signals:
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR1):
            os.kill(os.getpid(), number)
        assert (signals.received, asked, comm.codes) == (signal.SIGUSR1, [True], [])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_once_and_a_second_one_aborts(number, capsys):
    comm, asked = Comm(), []
    before = signal.getsignal(number)
    with session.Signals(comm, lambda: asked.append(True)) as signals:
        assert signals.received is None
        os.kill(os.getpid(), number)
        assert (signals.received, asked, comm.codes) == (number, [True], [])
        os.kill(os.getpid(), number)
        assert comm.codes == [128 + number]
        assert f"rank 1: {signal.Signals(number).name}" in capsys.readouterr().err
    assert signal.getsignal(number) is before


def test_a_signal_that_no_merge_follows_aborts_after_its_grace(monkeypatch):
    monkeypatch.setattr(session, "GRACE", 0.01)
    comm = Comm()
    with session.Signals(comm, lambda: None) as signals:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert signals._timer is not None
        signals._timer.join(60)
        assert comm.codes == [128 + signal.SIGUSR1]


def test_a_rank_that_is_busy_with_what_ends_is_left_to_end_it(monkeypatch):
    """An evaluation longer than GRACE is not cut off; what comes behind it is."""
    monkeypatch.setattr(session, "GRACE", 0.01)
    monkeypatch.setattr(communicator, "HAND_ON", 0.0)
    comm, busy = Comm(), [True]
    with session.Signals(comm, lambda: None, lambda: busy[0]):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)
        assert comm.codes == []
        busy[0] = False
        began = time.monotonic()
        while not comm.codes and time.monotonic() - began < 10:
            time.sleep(0.01)
    assert comm.codes == [128 + signal.SIGTERM]
