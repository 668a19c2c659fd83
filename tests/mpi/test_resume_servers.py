"""Several real servers that are killed or stopped, and go on: each gradient counts once in each
shard, and none is missing."""

import random
import signal
from pathlib import Path

import numpy as np
import pytest
from mpi_ranks import ONE_LIBRARY, Ranks

from mpisgd.store.reader import Run, read

pytestmark = ONE_LIBRARY
PROGRAM = "interrupted_train.py"
STEPS, EVERY = 16, 4
COMMON = (
    f"train --hidden 5 --data digits --data-samples 53 --batch 3 --steps {STEPS} "
    f"--evaluate-every 6 --checkpoint-every {EVERY} --deadline 120s --servers 2"
).split()
RUNS = {
    "async": "--algorithm async --prefetch --lr 0.01",
    "consistent": "--algorithm softsync --reads consistent --ema 0.9",
    "colocated": "--algorithm softsync --group 3 --colocated",
    "abandon": "--algorithm backup --backups 1 --stale abandon --requeue --push layerwise",
    "rows": "--algorithm async --model bag --data documents --push sparse --pull sparse",
}
GROUPS = {"async": 1, "consistent": 2, "colocated": 3, "abandon": 1, "rows": 1}


def check(run: Run, name: str, workers: int) -> None:
    """The accounts of every shard, of the whole run."""
    assert run.complete
    updates = run.updates
    for server in range(2):
        mine = updates["server"] == server
        used = mine & (updates["used"] == 1)
        made, members = np.unique(updates["update"][used], return_counts=True)
        assert made.tolist() == list(range(1, len(made) + 1))
        assert set(members.tolist()) == {GROUPS[name]}
        for worker in range(workers):
            steps = np.sort(updates["step"][mine & (updates["worker"] == worker)])
            assert steps.tolist() == list(range(1, len(steps) + 1)), (server, worker)
    assert run.evaluation["step"].tolist() == [6, 12, STEPS]
    used = run.evaluation["samples_used"]
    assert (np.diff(used) > 0).all()


def restarts(
    mpi: Ranks, words: list[str], name: str, number: int, rank: int, step: int
) -> tuple[int, str]:
    """The step from which a run whose rank got that signal went on, and why it had left."""
    path = Path(words[-1])
    left = mpi(4, PROGRAM, number, rank, step, *words, check=False)
    assert left.returncode
    assert not path.exists()
    with read(path) as run:
        reason = str(run.reason)
    mpi(4, PROGRAM, 0, 0, 0, *words, "--resume", "auto")
    with read(path) as run:
        check(run, name, 4 if name == "colocated" else 2)
        (restart,) = run.restarts
        return restart["step"], reason


@pytest.mark.parametrize("name", RUNS)
def test_killed_and_resumed_counts_each_gradient_once(mpi: Ranks, name: str, tmp_path: Path):
    """Whichever rank is killed, at whatever step behind the first rest."""
    draw = random.Random(f"{mpi.name} {name}")
    rank, step = draw.randrange(4), draw.randint(EVERY + 3, STEPS - 1)
    words = [*COMMON, *RUNS[name].split(), "--output", str(tmp_path / "run.h5")]
    at, _ = restarts(mpi, words, name, signal.SIGKILL, rank, step)
    assert at in range(EVERY, STEPS, EVERY)


@pytest.mark.parametrize("name", ["async", "consistent", "colocated"])
def test_stopped_by_a_signal_it_has_lost_nothing(mpi: Ranks, name: str, tmp_path: Path):
    """One rank is asked; all servers are saved before any of them stops."""
    draw = random.Random(f"{mpi.name} {name} stop")
    rank, step = draw.randrange(4), draw.choice([5, 6, 7, 9, 10, 11])
    words = [*COMMON, *RUNS[name].split(), "--output", str(tmp_path / "run.h5")]
    at, reason = restarts(mpi, words, name, signal.SIGTERM, rank, step)
    assert reason == f"stopped by signal 15 after step {at}"


def test_a_stop_is_saved_to_the_last_gradient(mpi: Ranks, tmp_path: Path):
    """The checkpoint counts what had been reported until then, and the reason is in the file."""
    path = tmp_path / "run.h5"
    words = [*COMMON, *RUNS["async"].split(), "--output", str(path)]
    stopped = mpi(4, PROGRAM, signal.SIGTERM, 3, 7, *words, check=False)
    assert stopped.returncode
    with read(path) as run:
        assert "stopped by signal 15 after step" in str(run.reason)
    if mpi.name == "mpich":
        assert stopped.returncode == 128 + signal.SIGTERM
        assert stopped.stderr.count("stopped by a signal after step") == 1
