"""Faults that strike a run which is saved on its way: all leave soon, and one clear reason is told;
the file is readable, the newest checkpoint is whole and from before, and the run goes on."""

import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from mpi_ranks import Ranks
from test_leaving import DEADLINE_S, LONG, SHORT, STEP, WITHIN_S, Left, ended, ranks_of, start

from mpisgd.checkpoint.file import Checkpoint
from mpisgd.mpi.lab import Lab, missing
from mpisgd.mpi.mpiexec import Job, find
from mpisgd.store.reader import read
from mpisgd.values.errors import UsageError

EVERY = 40
BEFORE = STEP // EVERY * EVERY  # the newest checkpoint
TRAIN = (
    f"--algorithm dasgd --tau 4 --delay 2 --steps 20000 --step-time 2ms {LONG} "
    f"--checkpoint-every {EVERY}"
)
RANK_0_SAVES = STEP - EVERY + 1  # its fault strikes while it writes the checkpoint of step BEFORE


def is_left(left: Left, path: Path, said: str = "") -> None:
    """Soon, by all, and not as if all were well."""
    assert left.code != 0 or "Ctrl-C again" in left.out  # after which MPICH's may return anything
    assert left.processes == []
    assert left.seconds < WITHIN_S + DEADLINE_S
    assert re.search(said, left.err + left.out), left.err
    with read(path) as run:
        assert not run.complete
        assert run.steps["loss"].shape == (run.reported.max(), run.ranks)


def goes_on(mpi: Ranks, ranks: int, path: Path, before: int | None = None) -> None:
    """From the newest checkpoint, which is of the step `before` if that is known."""
    found = Checkpoint(f"{path}.checkpoint").meta["step"]
    assert before in (None, found)
    words = ["mpisgd", "train", *TRAIN.split(), "--steps", str(found + EVERY)]
    done = mpi.run(ranks, [*words, "--output", str(path), "--resume", "auto"])
    assert f"after step {found}" in done.stderr
    with read(path) as run:
        assert run.complete
        assert [row["step"] for row in run.restarts] == [found]


CASES = [
    # fault, at which step, exit code (None: not 0), what is said, the newest checkpoint
    ("nan", STEP, 3, rf"not finite on rank 1 at step {STEP}; stopped before the next", BEFORE),
    ("memory", STEP, 1, r"rank 1 of 2: out of memory: Unable to allocate 8", BEFORE),
    ("sigstop", STEP, 1, r"rank 0 has waited .* for rank 1 .* at step \d+", BEFORE),
    ("saving-sigstop", RANK_0_SAVES, 1, r"rank 1 waited 6 s for rank 0 at a check", BEFORE - EVERY),
    ("saving-full", RANK_0_SAVES, 1, r"OSError: check.*: No space left on device", BEFORE - EVERY),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "step", "code", "said", "before"), CASES, ids=[case[0] for case in CASES]
)
def test_a_fault_on_one_rank_loses_little(mpi: Ranks, fault, step, code, said, before, tmp_path):
    path = tmp_path / "run.h5"
    words = [*TRAIN.split(), *(SHORT.split() if "sigstop" in fault else [])]
    with start(mpi, 2, fault, words, path, step) as job:
        left = ended(job)
    is_left(left, path, said)
    assert left.code == code
    assert "Traceback" not in left.err
    goes_on(mpi, 2, path, before)


def test_a_slow_disk_is_no_stall(mpi: Ranks, tmp_path):
    """It takes longer than the deadline: who waits for rank 0 hears that it is at work."""
    path = tmp_path / "run.h5"
    words = [*TRAIN.split(), *SHORT.split(), "--steps", str(BEFORE)]
    with start(mpi, 2, "saving-slow", words, path, RANK_0_SAVES) as job:
        left = ended(job)
    assert left.code == 0, left.err
    assert left.seconds > DEADLINE_S
    with read(path) as run:
        assert run.complete


def test_a_vanished_folder_is_told(mpi: Ranks, tmp_path):
    path = tmp_path / "there" / "run.h5"
    path.parent.mkdir()
    with start(mpi, 2, "vanish", TRAIN.split(), path) as job:
        left = ended(job)
    assert left.code != 0
    assert left.processes == []
    assert left.seconds < WITHIN_S + DEADLINE_S
    assert re.search(r"has vanished|No such file or directory", left.err), left.err
    assert "Traceback" not in left.err


def test_a_killed_mpiexec_takes_all_with_it(mpi: Ranks, tmp_path):
    path = tmp_path / "run.h5"
    with start(mpi, 2, "nothing", TRAIN.split(), path) as job:
        left = ended(job, (signal.SIGKILL, False))
    is_left(left, path)
    goes_on(mpi, 2, path)


def test_a_stopped_mpiexec_that_goes_on_changes_nothing(mpi: Ranks, tmp_path):
    path = tmp_path / "run.h5"
    with start(mpi, 2, "nothing", [*TRAIN.split(), "--steps", "1500"], path) as job:
        assert job.process.stdout is not None
        assert job.process.stdout.readline() == "now\n"
        os.kill(job.process.pid, signal.SIGSTOP)
        time.sleep(2)
        os.kill(job.process.pid, signal.SIGCONT)
        out, err = job.process.communicate(timeout=150)
    assert job.process.returncode == 0, err
    assert " 1500 " in out
    with read(path) as run:
        assert run.complete


@pytest.mark.parametrize("whom", ["all", "ranks"])
def test_ctrl_c_twice_does_not_wait(mpi: Ranks, whom: str, tmp_path):
    """The second time nobody waits for a merge. mpiexec, if it was asked, leaves at once and says
    so; else rank 0 says why, for all."""
    path = tmp_path / "run.h5"
    with start(mpi, 2, "stall", [*TRAIN.split(), "--deadline", "40s"], path) as job:
        left = twice(job, whom)
    is_left(left, path)
    assert "Traceback" not in left.err
    assert left.err.count("interrupted twice") <= 1
    if whom == "ranks":
        assert "mpisgd: rank 0: SIGINT: interrupted twice" in left.err
    goes_on(mpi, 2, path)


def twice(job: Job, whom: str) -> Left:
    """Ctrl-C in a terminal, and again once the first has been heard; and again, in case the second
    came before."""
    assert job.process.stdout is not None
    assert job.process.stdout.readline() == "now\n"
    began = time.monotonic()
    ranks = ranks_of(job)
    for patience in (0.3, 10, 10):
        for pid in ranks if whom == "ranks" else [-job.process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            job.process.wait(patience)
    out, err = job.process.communicate(timeout=150)
    seconds = time.monotonic() - began
    while (left := job.processes()) and time.monotonic() - began < WITHIN_S:
        time.sleep(0.05)
    return Left(job.process.returncode, out, err, seconds, left)


@pytest.mark.lab
def test_a_cut_wire_is_named_and_both_sides_leave(tmp_path):
    """On two hosts; once it is mended the run goes on."""
    if problem := missing():
        pytest.skip(f"a lab {problem}")
    try:
        find()
        lab = Lab(2, "200mbit").open()
    except UsageError as problem:
        pytest.skip(str(problem))
    path = tmp_path / "run.h5"
    words = ["mpisgd", "train", *TRAIN.split(), "--output", str(path), "--resume", "auto"]
    with lab:
        with lab.start([*words, *SHORT.split()], 2) as job:
            while not path.with_name("run.h5.checkpoint").exists():
                assert job.process.poll() is None, job.process.communicate()
                time.sleep(0.01)
            lab.cut(1)
            began = time.monotonic()
            _, err = job.process.communicate(timeout=150)
            seconds = time.monotonic() - began
            while (left := job.processes()) and time.monotonic() - began < 2 * WITHIN_S:
                time.sleep(0.05)
        lab.mend(1)
        assert left == []
        assert job.process.returncode != 0
        assert re.search(r"rank 0 .*waited .* for rank 1", err), err
        assert seconds < WITHIN_S + DEADLINE_S
        with read(path) as run:
            assert not run.complete
        more = Checkpoint(f"{path}.checkpoint").meta["step"] + EVERY
        done = lab.run([*words, "--steps", str(more)], 2, timeout=150)
    assert done.returncode == 0, done.stderr
    assert "goes on from" in done.stderr
    with read(path) as run:
        assert run.complete
