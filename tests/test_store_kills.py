"""A file that is being written: kills, exceptions, readers meanwhile."""

import os
import random
import signal
import subprocess
import sys

import numpy as np
import pytest
from test_store import writer

from mpisgd.store.reader import read
from mpisgd.store.target import partial_path


def test_an_exception_leaves_a_partial_file_with_its_reason(tmp_path):
    def fail():
        with writer(tmp_path / "run.h5") as store:
            store.steps(0, 1, {"loss": [2.0]})
            raise ZeroDivisionError("at rank 1")

    with pytest.raises(ZeroDivisionError):
        fail()
    run = read(tmp_path / "run.h5")
    assert run.path.name == "run.h5.partial"
    assert run.reason == "ZeroDivisionError: at rank 1"
    assert run.steps["loss"][0, 0] == 2


def write_until_killed(path, told, complete_at):
    """A run that tells each step that it has flushed; it may complete once, and be resumed."""
    store = writer(path)
    for step in range(1, 100_000):
        for rank in range(3):
            store.steps(rank, step, {"wait_s": [step + rank / 10], "polls": [step]})
        store.evaluation(step=step, loss=step / 2)
        store.flush()
        os.write(told, b"%d\n" % step)
        if step == complete_at:
            store.complete({})
            store = writer(path, resume_at=step)


def killed_run(path, chance, complete_at):
    """The last step that a writing process told before SIGKILL met it at a random moment."""
    out, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            write_until_killed(path, told, complete_at)
        finally:
            os._exit(1)
    os.close(told)
    with open(out) as lines:
        for _ in range(max(complete_at, chance.randrange(1, 30))):
            lines.readline()
        for _ in range(chance.randrange(20_000)):  # some part of a flush
            pass
        os.kill(child, signal.SIGKILL)
        tail = lines.read().split()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    return int(tail[-1]) if tail else 1


def test_a_kill_at_any_moment_loses_no_flushed_row(tmp_path):
    chance = random.Random(int(os.environ.get("MPISGD_TEST_SEED", "7")))
    for trial in range(int(os.environ.get("MPISGD_TEST_KILLS", "15"))):
        path = tmp_path / f"{trial}.h5"
        complete_at = chance.randrange(1, 30) if trial % 3 == 0 else -1
        told = killed_run(path, chance, complete_at)
        resumed = partial_path(path)  # from the complete one, which stays beside it meanwhile
        with read(resumed if resumed.exists() else path) as run:
            rows = run.steps["wait_s"]
            assert len(rows) >= told
            expected = np.arange(1, len(rows) + 1)[:, None] + np.arange(3) / 10
            np.testing.assert_array_equal(rows, expected)
            np.testing.assert_array_equal(run.steps["polls"], expected.astype(int))
            step = np.arange(1, len(run.evaluation["step"]) + 1)
            assert len(step) >= told
            np.testing.assert_array_equal(run.evaluation["step"], step)
            np.testing.assert_array_equal(run.evaluation["loss"], step / 2)
            assert complete_at > 0 or not run.complete


def test_a_file_being_written_can_be_read(tmp_path):
    store = writer(tmp_path / "run.h5")
    store.steps(0, 1, {"loss": [2.0, 3.0]})
    store.flush()
    script = "import sys; from mpisgd.store.reader import read; r = read(sys.argv[1]); "
    script += "print(r.complete, r.steps['loss'][:, 0].tolist())"
    command = [sys.executable, "-c", script, str(tmp_path / "run.h5")]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "False [2.0, 3.0]"
    store.close()
