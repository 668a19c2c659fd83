"""However a server, a worker or the writer leaves, the job ends soon, says why, and has a file."""

import re
import signal
from pathlib import Path

import pytest
from mpi_ranks import ONE_THREAD, PROGRAMS, Ranks
from test_leaving import DEADLINE_S, LONG, SHORT, WITHIN_S, Left, ended

from mpisgd.checkpoint.file import Checkpoint
from mpisgd.mpi.mpiexec import Job
from mpisgd.store.reader import read

STEP = 120  # of the fault
TRAIN = (
    "--model quadratic --data noise --data-samples 240 --batch 4 --lr 0.01 --evaluate-every 10 "
    f"--steps 40000 --step-time 2ms {LONG}"
).split()
ASYNC = ["--algorithm", "async", *TRAIN]
SYNC = ["--algorithm", "backup", "--backups", "0", *TRAIN]
BACKUP = ["--algorithm", "backup", "--backups", "1", *TRAIN, *SHORT.split()]
TWO = ["--servers", "2"]
CONSISTENT = [*TWO, "--reads", "consistent"]
LAYERWISE = [*TWO, "--push", "layerwise"]


def start(mpi: Ranks, ranks: int, fault: str, role: str, words: list[str], path: Path) -> Job:
    """A job whose last worker, or last server, meets `fault`."""
    servers = 2 if "--servers" in words else 1
    number = ranks - servers - 1 if role == "worker" else servers - 1
    program = [mpi.python, str(PROGRAMS / "leave_served.py"), fault, role, str(number), str(STEP)]
    argv = [*program, *words, "--output", str(path)]
    return mpi.launcher.start(ranks, argv, environment=ONE_THREAD | mpi.variables)


def check(left: Left, path: Path, said: str, reason: str | None = None) -> None:
    """All are gone; it was said once why; what was done so far is there."""
    assert left.processes == []
    assert left.code != 0
    assert len(re.findall(said, left.err + left.out)) >= 1, left.err
    assert left.seconds < WITHIN_S + DEADLINE_S
    assert not path.exists()
    with read(path) as run:
        assert not run.complete
        assert re.search(reason or "", str(run.reason))
        assert len(run.evaluation["loss"]) >= 2
        assert run.updates["used"].sum() > 60


KILLED = r"signal 9|Killed|KILLED"
SILENT = r"server 0 waits for worker 1 in vain: update \d+ needs 2 gradients, 1 have come"
CASES = [
    # fault, who, options, what is said, reason in the file
    ("sigkill", "worker", ASYNC, KILLED, None),
    ("sigkill", "worker", [*SYNC, *CONSISTENT], KILLED, None),
    ("sigkill", "server", [*ASYNC, *TWO], KILLED, None),
    ("sigkill", "server", ASYNC, KILLED, "ended without closing"),
    ("writer", "server", ASYNC, r"rank 0 of 3: OSError: .*the process that wrote it ended", None),
    ("sigstop", "worker", [*SYNC, *SHORT.split()], SILENT, None),
    ("sigstop", "worker", [*SYNC, *SHORT.split(), *CONSISTENT], SILENT, None),
    ("nan", "worker", [*ASYNC, *LAYERWISE], f"worker 1 at step {STEP}", f"1 at step {STEP}"),
]


@pytest.mark.parametrize(
    ("fault", "role", "words", "said", "reason"),
    CASES,
    ids=[f"{case[0]}-{case[1]}-{'-'.join(case[2][-2:])}" for case in CASES],
)
def test_one_that_leaves_ends_the_job(mpi: Ranks, fault, role, words, said, reason, tmp_path):
    path = tmp_path / "run.h5"
    with start(mpi, 4 if "--servers" in words else 3, fault, role, words, path) as job:
        left = ended(job)
    check(left, path, said, reason)
    if fault == "nan":
        assert left.code == 3
        assert left.err.count("not finite on worker") == 1


def test_a_silent_worker_is_done_without(mpi: Ranks, tmp_path):
    """With a backup: the run completes, and says without whom."""
    path = tmp_path / "run.h5"
    words = [*BACKUP, "--steps", "200"]
    with start(mpi, 4, "sigstop", "worker", words, path) as job:
        left = ended(job)
    assert left.processes == []
    assert left.seconds < WITHIN_S + 2 * DEADLINE_S
    if mpi.name == "mpich":  # Open MPI calls every abort an error
        assert left.code == 0, left.err
    assert "done, but without rank 3, which went silent" in left.err
    with read(path) as run:
        assert run.complete
        assert run.summary["lost_workers"] == [2]


def test_no_checkpoint_waits_for_a_silent_worker(mpi: Ranks, tmp_path):
    """Several servers do without the checkpoint, and say so; the one before is whole."""
    path = tmp_path / "run.h5"
    words = [*BACKUP, *TWO, "--checkpoint-every", "60"]
    with start(mpi, 5, "sigstop", "worker", [*words, "--steps", "200"], path) as job:
        left = ended(job)
    assert left.processes == []
    assert "no checkpoint after step 180: nothing came from worker 2 for 3 s" in left.err
    with read(path) as run:
        assert run.complete
    assert Checkpoint(f"{path}.checkpoint").meta["step"] in (60, 120)


@pytest.mark.parametrize(
    "words", [[*ASYNC, *TWO], [*SYNC, *CONSISTENT]], ids=["async", "consistent"]
)
def test_ctrl_c_stops_servers_together(mpi: Ranks, words, tmp_path):
    path = tmp_path / "run.h5"
    with start(mpi, 4, "nothing", "worker", words, path) as job:
        left = ended(job, (signal.SIGINT, True))
    said = rf"stopped by a signal after step \d+; results so far: .*{path.name}\.partial"
    if mpi.name != "mpich":  # Open MPI's mpiexec drops what ranks print after its own Ctrl-C
        said = ""
    check(left, path, said, r"stopped by signal (2|15) after step \d+")
    assert "no merge came in time" not in left.err  # not by the abort after the time of grace


@pytest.mark.parametrize("words", [ASYNC, [*ASYNC, *TWO]], ids=["one", "two"])
def test_a_signal_during_a_long_evaluation_waits_for_its_end(mpi: Ranks, words, tmp_path):
    """Nobody takes an evaluation, or those who wait for it, for a run that does not hear."""
    path = tmp_path / "run.h5"
    with start(mpi, 4, "evaluation", "server", words, path) as job:
        left = ended(job, (signal.SIGTERM, None))  # Open MPI's mpiexec kills soon after it asks
    check(left, path, "", r"stopped by signal 15 after step \d+")
    assert "no merge came in time" not in left.err
    assert left.seconds > 1
