"""Who writes a file is alone with it, also when runs begin and end in the same moment."""

import errno
import fcntl
import os
import subprocess
import sys

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


@pytest.mark.parametrize("number", ["ENOLCK", "EOPNOTSUPP", "ENOSYS"])
def test_without_locks_a_run_goes_on_and_says_so(tmp_path, monkeypatch, capsys, number):
    """NFS and Lustre, mounted without."""

    def fail(*_):
        raise OSError(getattr(errno, number), os.strerror(getattr(errno, number)))

    monkeypatch.setattr(lock.fcntl, "flock", fail)
    with lock.held(tmp_path / "run.h5", "--output"):
        assert list(tmp_path.iterdir()) == []
    told = capsys.readouterr().err
    assert told.startswith(f"mpisgd: note: {tmp_path / 'run.h5'}: this file system has no locks")
    assert told.count("\n") == 1


@pytest.mark.parametrize("number", ["EBADF", "EIO", "EACCES"])
def test_a_lock_that_is_not_to_be_had_is_none(tmp_path, monkeypatch, number):
    def fail(*_):
        raise OSError(getattr(errno, number), os.strerror(getattr(errno, number)))

    monkeypatch.setattr(lock.fcntl, "flock", fail)
    with pytest.raises(UsageError, match=r"--output '.*run\.h5': cannot be locked by \.run\.h5\.l"):
        with lock.held(tmp_path / "run.h5", "--output"):
            pass


SECOND = """
import os, sys
from pathlib import Path
from mpisgd.store import lock
lock.PATIENCE = 0.0
os.seteuid(65534)
try:
    with lock.held(Path(sys.argv[1]), "--output"):
        print("held")
except ValueError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
@pytest.mark.parametrize("mode", [0o644, 0o600])
def test_of_two_users_the_second_is_refused(tmp_path, mode):
    """Whether its lock file may be read by others or not: it cannot be written by them."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    for folder in shared.parents:
        if not folder.stat().st_mode & 0o001:
            folder.chmod(0o755)
    path = shared / "run.h5"

    def second() -> str:
        words = [sys.executable, "-c", SECOND, str(path)]
        return subprocess.run(words, capture_output=True, text=True, timeout=150).stdout

    with lock.held(path, "--output"):
        lock.lock_path(path).chmod(mode)
        told = second()
        assert path.name in told
        assert ("another run is writing it" if mode == 0o644 else "Permission denied") in told
        assert lock.lock_path(path).exists()
    lock.lock_path(path).touch(mode=0o644)  # left by a kill
    assert second() == "held\n"
    assert list(shared.iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "folder"])
def test_a_lock_is_opened_through_no_link(tmp_path, kind):
    path, precious = tmp_path / "run.h5", tmp_path / "precious"
    if kind == "link":
        precious.write_text("precious")
    {"pipe": os.mkfifo, "folder": os.mkdir}.get(kind, lambda p: os.symlink(precious, p))(
        lock.lock_path(path)
    )
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UsageError, match=r"\.run\.h5\.lock"), lock.held(path, "--output"):
        pass
    assert sorted(tmp_path.iterdir()) == before
