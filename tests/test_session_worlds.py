"""Worlds that a launcher and MPI do not see alike. No MPI is started: it is stood in for."""

import os
import signal
import sys
from types import SimpleNamespace

import pytest

from mpisgd.mpi import announced, session
from mpisgd.values.errors import UsageError


class Comm:
    """Rank `rank` of `size`; remembers with which code it was aborted."""

    def __init__(self, rank: int = 0, size: int = 1):
        self.rank, self.size = rank, size
        self.codes: list[int] = []

    def Get_rank(self) -> int:  # noqa: N802
        return self.rank

    def Get_size(self) -> int:  # noqa: N802
        return self.size

    def Dup(self) -> "Comm":  # noqa: N802
        return Comm(self.rank, self.size)

    def Abort(self, code: int) -> None:  # noqa: N802
        self.codes.append(code)


@pytest.fixture
def library(monkeypatch):
    """An MPI library, one process, that allows threads."""
    for name in (*announced.ANNOUNCED, *announced.STEP, *announced.RANKS, "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    mpi = SimpleNamespace(
        COMM_WORLD=Comm(),
        Get_library_version=lambda: "Some MPI 5\t(release)\nbuilt by nobody\0",
        Query_thread=lambda: 3,
        THREAD_MULTIPLE=3,
    )
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=mpi))
    return mpi


def test_a_world_as_large_as_announced_is_the_world(library, monkeypatch):
    assert session.world() is library.COMM_WORLD
    monkeypatch.setenv("PMI_SIZE", "2")
    library.COMM_WORLD = Comm(1, 2)
    assert session.world() is library.COMM_WORLD


def test_tasks_that_are_worlds_of_their_own_are_told_which_library_it_is(library, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    with pytest.raises(UsageError) as caught:
        session.world()
    told = str(caught.value)
    assert "the launcher started 4 tasks, but each is an MPI world of its own" in told
    assert "this MPI is Some MPI 5 (release): use its own mpiexec" in told
    assert "\n" not in told


@pytest.mark.parametrize(("rank", "lines"), [("0", 1), ("3", 0)])
def test_of_worlds_of_their_own_the_first_says_what_is_wrong(
    rank, lines, library, monkeypatch, capsys
):
    monkeypatch.setenv("PMI_SIZE", "4")
    monkeypatch.setenv("PMI_RANK", rank)
    session.refuse_together("mpisgd train: error: --tau 0")
    assert capsys.readouterr().err == "mpisgd train: error: --tau 0\n" * lines


def test_a_thread_gets_a_communicator_of_its_own_where_the_library_allows_it(library):
    comm = Comm(1, 2)
    assert session.thread_comm(comm) is not comm
    library.Query_thread = lambda: 2
    with pytest.raises(UsageError, match=r"--progress 'thread': .*not started for threads"):
        session.thread_comm(comm)


def test_ranks_that_were_started_differently_are_named(monkeypatch):
    told = ["a", "a", "b"]
    monkeypatch.setattr(session, "texts", lambda comm, text, deadline: told)
    with pytest.raises(UsageError, match="ranks 0 and 2 were started with different options"):
        session.agree_on(Comm(1, 3), "options", "--tau 4")
    told[2] = "a"
    session.agree_on(Comm(1, 3), "options", "--tau 4")


@pytest.mark.parametrize(("size", "codes"), [(1, []), (3, [session.LEFT_EARLY])])
def test_a_reader_who_has_left_ends_all_ranks_without_a_word(size, codes, capsys):
    """As in `mpiexec ... | head`: the command line turns it into an exit code."""
    comm = Comm(0, size)

    def main() -> int:
        raise BrokenPipeError(32, "Broken pipe")

    with pytest.raises(BrokenPipeError):
        session.guarded(comm, main)
    assert comm.codes == codes
    assert capsys.readouterr() == ("", "")


def test_once_all_have_met_a_signal_nobody_is_cut_off(monkeypatch):
    monkeypatch.setattr(session, "GRACE", 0.05)
    comm = Comm(0, 2)
    with session.Signals(comm, lambda: None) as signals:
        signals.met()  # before any has come: nothing to call off
        os.kill(os.getpid(), signal.SIGUSR1)
        timer = signals._timer
        assert timer is not None
        signals.met()
        timer.join(60)
        assert comm.codes == []
        assert signals.received == signal.SIGUSR1
