"""Who writes a file is alone with it, also when runs begin and end in the same moment."""

import errno
import fcntl
import os

import pytest

from mpisgd.store import lock
from mpisgd.values.errors import UsageError


def test_one_at_a_time_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "PATIENCE", 0.0)
    path = tmp_path / "run.h5"
    with lock.held(path, "--output"):
        with pytest.raises(UsageError, match=r"--output '.*run\.h5': another run is writing it"):
            with lock.held(path, "--output"):
                pass
        with lock.held(tmp_path / "other.h5", "--output"):
            pass
    with lock.held(path, "--output"):
        assert lock.lock_path(path).exists()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_whose_file_is_gone_is_nobodys(tmp_path, monkeypatch):
    """Whoever had it removes the file between our opening it and our turn: two runs would hold
    locks of two files."""
    path, flock, turns = tmp_path / "run.h5", fcntl.flock, []

    def late(descriptor, operation):
        flock(descriptor, operation)
        turns.append(descriptor)
        if len(turns) == 1:
            os.unlink(lock.lock_path(path))
        elif len(turns) == 2:  # another one has made it again
            os.unlink(lock.lock_path(path))
            lock.lock_path(path).touch()

    monkeypatch.setattr(lock.fcntl, "flock", late)
    with lock.held(path, "--output"):
        assert len(turns) == 3
        monkeypatch.setattr(lock.fcntl, "flock", flock)
        monkeypatch.setattr(lock, "PATIENCE", 0.0)
        with pytest.raises(UsageError, match="another run"), lock.held(path, "--output"):
            pass


def test_a_file_of_the_users_is_not_removed(tmp_path):
    path = tmp_path / "run.h5"
    lock.lock_path(path).write_text("precious")
    with lock.held(path, "--output"):
        pass
    assert lock.lock_path(path).read_text() == "precious"


@pytest.mark.parametrize("where", ["open", "flock"])
def test_without_locks_a_run_goes_on(tmp_path, monkeypatch, where):
    def fail(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(*{"open": (os, "open"), "flock": (lock.fcntl, "flock")}[where], fail)
    with lock.held(tmp_path / "run.h5", "--output"):
        pass
