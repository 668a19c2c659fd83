"""However one rank leaves, the whole job ends soon, says why, and leaves a readable file."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from mpi_ranks import ONE_THREAD, PROGRAMS, Ranks

from mpisgd.mpi.mpiexec import Job, find
from mpisgd.store.reader import read

WITHIN_S = 90.0
DEADLINE_S = 6.0  # for a peer that stands still, from the first step on
LONG = "--deadline 120s"  # of runs in which nobody waits in vain
SHORT = f"--deadline {DEADLINE_S}s"
STEP = 90  # of the fault: 64 rows have gone to the file by then; 3 ranks evaluate here
COMMON = f"--steps 20000 --step-time 2ms {LONG} --evaluate during"
TRAIN = f"--algorithm local --tau 4 {COMMON}".split()
STALLED = [*TRAIN, *SHORT.split()]
DELAYED = f"--algorithm dasgd --tau 4 --delay 2 {COMMON}".split()
GOSSIP = f"--algorithm gossip --tau 4 --delay 2 --evaluate-every 85 {COMMON}".split()
THREAD = [*DELAYED, "--progress", "thread"]


class Left(NamedTuple):
    """How a job ended: `seconds` after the fault."""

    code: int
    out: str
    err: str
    seconds: float
    processes: list[int]


def start(
    mpi: Ranks, ranks: int, fault: str, words: list[str], path: Path, step: int = STEP
) -> Job:
    """A job whose last rank meets `fault` at `step`."""
    program = [mpi.python, str(PROGRAMS / "leave_train.py"), fault, str(ranks - 1), str(step)]
    argv = [*program, *words, "--output", str(path)]
    return mpi.launcher.start(ranks, argv, environment=ONE_THREAD | mpi.variables)


def ranks_of(job: Job) -> list[int]:
    """The job's ranks, and what they have started: all that is no mpiexec."""
    python = Path(sys.executable).resolve()
    return [pid for pid in job.processes() if Path(f"/proc/{pid}/exe").resolve() == python]


def ended(job: Job, kill: tuple[signal.Signals, bool | None] | None = None) -> Left:
    """The job's end, once its fault has struck; `kill`: a signal for mpiexec, or its group, or
    (None) the ranks."""
    assert job.process.stdout is not None
    first = job.process.stdout.readline()
    assert first == "now\n", (first, job.process.communicate(timeout=150))
    began = time.monotonic()
    if kill is not None:
        number, group = kill
        for pid in [job.process.pid] if group is not None else ranks_of(job):
            (os.killpg if group else os.kill)(pid, number)
    try:
        out, err = job.process.communicate(timeout=WITHIN_S + DEADLINE_S + 40)
    except subprocess.TimeoutExpired:
        pytest.fail(f"the job hangs: {job.processes()}")
    seconds = time.monotonic() - began
    while (left := job.processes()) and time.monotonic() - began < WITHIN_S + DEADLINE_S:
        time.sleep(0.05)
    return Left(job.process.returncode, out, err, seconds, left)


def check_file(path: Path, reason: str | None) -> None:
    """What was done so far is there."""
    assert not path.exists()
    with read(path) as run:
        assert not run.complete
        # A process that outlives its rank says the first, unless it is killed too.
        allowed = r"^(its run ended without closing it|None)$" if reason is None else reason
        assert re.search(allowed, str(run.reason))
        assert run.reported.max() >= 64
        assert len(run.evaluation["accuracy"]) >= 1
        assert run.steps["loss"].shape == (run.reported.max(), run.ranks)


CASES = [
    # fault, ranks, words, exit code (None: not 0), what is said, the reason in the file
    ("exception", 2, TRAIN, 1, r"1 of 2: Traceback[^\0]*RuntimeError: the disk is full", None),
    ("exception", 2, THREAD, 1, r"1 of 2: Traceback[^\0]*RuntimeError: the disk is full", None),
    ("exit0", 2, TRAIN, 1, r"rank 1 of 2: left with sys.exit\(0\)", None),
    ("exit7", 2, TRAIN, 7, r"rank 1 of 2: left with sys.exit\(7\)", None),
    ("sigkill", 2, TRAIN, None, r"signal 9|Killed|KILLED", None),
    ("sigterm", 2, DELAYED, 143, r"stopped by a signal after step \d+", "stopped by signal 15"),
    ("nan", 2, DELAYED, 3, rf"not finite on rank 1 at step {STEP}\b", f"rank 1 at step {STEP}"),
    ("sigterm", 3, GOSSIP, 143, r"stopped by a signal after step \d+", "stopped by signal 15"),
    ("nan", 3, GOSSIP, 3, rf"not finite on rank 2 at step {STEP}\b", f"rank 2 at step {STEP}"),
    ("stall", 3, STALLED, 1, rf"rank \d has waited .* for rank 2 .* at step {STEP}", None),
    ("stall", 3, [*THREAD, *SHORT.split()], 1, r"rank \d has waited .* for rank 2 ", None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "ranks", "words", "code", "said", "reason"),
    CASES,
    ids=[f"{case[0]}-{'thread' if 'thread' in case[2] else 'poll'}" for case in CASES],
)
def test_one_rank_ends_the_job(mpi: Ranks, fault, ranks, words, code, said, reason, tmp_path):
    path = tmp_path / "run.h5"
    with start(mpi, ranks, fault, words, path) as job:
        left = ended(job)
    assert left.code == code if code is not None else left.code != 0
    assert re.search(said, left.err + left.out), left.err
    assert left.seconds < WITHIN_S + (DEADLINE_S if fault == "stall" else 0)
    assert left.processes == []
    check_file(path, reason)


@pytest.mark.parametrize(
    ("number", "group"),
    [(signal.SIGINT, True), (signal.SIGTERM, False)],
    ids=["ctrl-c", "sigterm"],
)
def test_a_signal_to_mpiexec_stops_all_ranks_together(mpi: Ranks, number, group, tmp_path):
    """A terminal sends Ctrl-C to the whole process group. Open MPI hands on SIGTERM, and ends
    without what its ranks print: the file tells."""
    path = tmp_path / "run.h5"
    with start(mpi, 2, "nothing", TRAIN, path) as job:
        left = ended(job, (number, group))
    assert left.code != 0
    assert left.seconds < WITHIN_S
    assert left.processes == []
    check_file(path, r"stopped by signal (2|15) after step \d+")
    if mpi.name == "mpich":
        assert left.code == 128 + number
        assert re.search(r"stopped by a signal after step \d+", left.err)


SINGLE = ["train", "--steps", "3", "--output", "single.h5"]


def test_ranks_that_are_worlds_of_their_own_are_refused(mpi: Ranks, tmp_path):
    """As under srun without the right PMI."""
    variables = os.environ | ONE_THREAD | mpi.variables | {"PMI_SIZE": "4", "PMI_RANK": "0"}
    done = subprocess.run(
        [mpi.python, "-m", "mpisgd", *SINGLE],
        env=variables, capture_output=True, text=True, timeout=150, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2
    assert "the launcher started 4 tasks, but each is an MPI world of its own" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_ranks_under_the_mpiexec_of_another_library_are_refused(mpi: Ranks, tmp_path):
    launcher = find()
    if (launcher.kind, mpi.name) != ("mpich", "openmpi"):
        pytest.skip("needs Open MPI's ranks under MPICH's mpiexec")
    done = launcher.run(
        2, [mpi.python, "-m", "mpisgd", *SINGLE], 150, environment=ONE_THREAD, directory=tmp_path
    )
    assert done.returncode == 2
    assert done.stderr.count("the launcher started 2 tasks") == 1
    assert list(tmp_path.iterdir()) == []
