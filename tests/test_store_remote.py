"""A writer in a process of its own writes what a writer writes, and outlives its rank."""

import os
import select
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from allreduce.errors import Stalled
from mpisgd.store.reader import Run, read
from mpisgd.store.remote import ABANDONED, RemoteWriter
from mpisgd.store.writer import Writer
from mpisgd.values.errors import UsageError

OPTIONS: dict[str, Any] = {
    "kind": "train",
    "config": {"tau": 4},
    "environment": {"host": "here"},
    "ranks": 2,
}
LOSSES = np.arange(1.0, 6.0)


def fill(writer) -> None:
    for rank in (1, 0):
        writer.steps(rank, 1, {"loss": LOSSES + rank, "wait_s": LOSSES * 0})
    writer.evaluation(step=5, accuracy=0.5)
    writer.flush()


def test_the_same_calls_make_the_same_file(tmp_path):
    for kind in (Writer, RemoteWriter):
        writer = kind(tmp_path / kind.__name__, **OPTIONS)
        fill(writer)
        writer.complete({"accuracy": 0.5})
        writer.close()
    with read(tmp_path / "Writer") as mine, read(tmp_path / "RemoteWriter") as its:
        assert its.complete
        assert (its.config, its.summary) == (mine.config, mine.summary)
        assert its.steps["loss"].tolist() == mine.steps["loss"].tolist()
        assert its.steps["loss"].shape == (5, 2)
        assert its.evaluation["accuracy"].tolist() == mine.evaluation["accuracy"].tolist()


def test_a_file_that_is_closed_says_why_and_takes_no_more(tmp_path):
    writer = RemoteWriter(tmp_path / "run.h5", **OPTIONS)
    fill(writer)
    writer.close(reason="enough")
    with pytest.raises(OSError, match=r"run\.h5: is closed"):
        fill(writer)
    with read(tmp_path / "run.h5") as run:
        assert (run.complete, run.reason) == (False, "enough")


def test_mistakes_and_failures_come_back(tmp_path):
    (tmp_path / "old.h5").write_text("precious")
    with pytest.raises(UsageError, match="exists; pass --overwrite"):
        RemoteWriter(tmp_path / "old.h5", **OPTIONS)
    writer = RemoteWriter(tmp_path / "run.h5", **OPTIONS)
    writer.steps(0, 1, {"speed": LOSSES})  # not waited for
    with pytest.raises(UsageError, match="the schema has"):
        writer.complete({})


def test_a_failure_is_raised_by_a_later_call(tmp_path):
    writer = RemoteWriter(tmp_path / "run.h5", **OPTIONS)
    (tmp_path / "run.h5.partial").unlink()
    writer.flush()
    assert writer._process.stdout is not None
    select.select([writer._process.stdout], [], [], 30)  # its answer has come
    with pytest.raises(OSError, match="has vanished"):
        writer.flush()


def test_a_writer_that_is_killed_is_an_error_not_a_hang(tmp_path):
    writer = RemoteWriter(tmp_path / "run.h5", **OPTIONS)
    fill(writer)
    os.kill(writer._process.pid, signal.SIGKILL)
    with pytest.raises(OSError, match=r"run\.h5: the process that wrote it ended with code -9"):
        writer.complete({})
    writer.close()


def test_a_rank_that_is_killed_leaves_a_file_that_is_closed(tmp_path):
    program = f"""
import os, signal
from mpisgd.store.remote import RemoteWriter
writer = RemoteWriter({str(tmp_path / "run.h5")!r}, **{OPTIONS!r})
writer.evaluation(step=3, accuracy=0.25)  # not flushed
os.kill(os.getpid(), signal.SIGKILL)
"""
    # The writer's process holds standard error until it has ended.
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, timeout=150)
    assert done.returncode == -signal.SIGKILL
    with read(tmp_path / "run.h5") as run:
        assert (run.complete, run.reason) == (False, ABANDONED)
        assert run.evaluation["accuracy"].tolist() == [0.25]


def test_the_rank_itself_loads_no_hdf5(tmp_path):
    program = f"""
import sys
from typing import Any
from mpisgd.store.remote import RemoteWriter
writer = RemoteWriter({str(tmp_path / "run.h5")!r}, **{OPTIONS!r})
writer.complete({{}})
assert "h5py" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=150)


def test_a_writer_that_neither_takes_nor_answers_is_named(tmp_path):
    """Whether its rank waits for an answer or has filled the pipe."""
    for name in ("settle", "evaluation"):
        writer = RemoteWriter(tmp_path / f"{name}.h5", deadline=5.0, **OPTIONS)
        fill(writer)
        writer.settle()
        writer._deadline = 0.2
        os.kill(writer._process.pid, signal.SIGSTOP)
        calls = map(lambda _, name=name: getattr(writer, name)(), range(10_000))
        with pytest.raises(Stalled, match=r"waited 0\.2 s for the process that writes results"):
            list(calls)
        writer.close()
        assert writer._process.returncode == -signal.SIGKILL
        with read(tmp_path / f"{name}.h5") as run:
            assert run.steps["loss"].shape == (5, 2)


def test_rows_that_come_while_a_file_is_opened_are_no_damage(tmp_path, monkeypatch):
    writer = RemoteWriter(tmp_path / "run.h5", **OPTIONS)
    count = Run._count

    def late(run, counted_by, paths, counts):
        if "evaluation/step" in paths:
            for step in range(300):
                writer.evaluation(step=step)
            writer.settle()
        return count(run, counted_by, paths, counts)

    fill(writer)
    writer.settle()
    monkeypatch.setattr(Run, "_count", late)
    with read(tmp_path / "run.h5") as run:
        assert len(run.column("evaluation/step")) in (1, 301)
    writer.close()
