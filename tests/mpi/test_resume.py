"""Real ranks that are killed or stopped, and go on to the bits of a run that never was."""

import random
import signal
from pathlib import Path

import numpy as np
import pytest
from checkpoint_runs import unlike
from mpi_ranks import ONE_LIBRARY, Ranks

from mpisgd.store.reader import read

pytestmark = ONE_LIBRARY
PROGRAM = "interrupted_train.py"
OPTIONS = (
    "--hidden 5 --data digits --data-samples 53 --batch 3 --steps 16 --evaluate-every 6 "
    "--checkpoint-every 4"
)
COMMON = ["train", *OPTIONS.split()]
RUNS = {
    "minibatch": "--algorithm minibatch --ema 0.9",
    "minibatch-overlap": "--algorithm minibatch-overlap",
    "local": "--algorithm local --tau 3 --optimiser rmsprop",
    "dasgd": "--algorithm dasgd --tau 4 --delay 2 --progress thread",
    "dasgd-tau": "--algorithm dasgd --tau 2 --delay 2 --merge delta",
    "gossip": "--algorithm gossip --tau 3 --delay 2",
    "stale": "--algorithm stale --staleness 3 --ramp 4",
}


@pytest.mark.parametrize("name", RUNS)
def test_killed_and_resumed_is_never_killed(mpi: Ranks, name: str, tmp_path: Path):
    whole, parts = tmp_path / "whole.h5", tmp_path / "parts.h5"
    words = [*COMMON, *RUNS[name].split()]
    draw = random.Random(f"{mpi.name} {name}")
    rank, step = draw.randrange(3), draw.randint(2, 16)
    mpi(3, PROGRAM, 0, 0, 0, *words, "--output", whole)
    died = mpi(3, PROGRAM, signal.SIGKILL, rank, step, *words, "--output", parts, check=False)
    assert died.returncode
    assert not parts.exists()
    words += ["--resume", "auto", "--output", str(parts)]
    done = mpi(3, PROGRAM, 0, 0, 0, *words)
    begun = (step - 1) // 4 * 4  # the others may have come further, but rank 0 had no more
    assert f"after step {begun}" in done.stderr or begun == 0
    assert list(unlike(whole, parts, times=False)) == []


def test_stopped_and_resumed_has_lost_nothing(mpi: Ranks, tmp_path: Path):
    """A signal saves the run where it stops; its own evaluation leaves no row behind."""
    path = tmp_path / "run.h5"
    words = [*COMMON, "--algorithm", "minibatch", "--output", str(path)]
    stopped = mpi(3, PROGRAM, signal.SIGTERM, 1, 7, *words, check=False)
    assert stopped.returncode
    assert "stopped by a signal after step 7" in stopped.stderr
    with read(path) as run:
        assert run.reported.tolist() == [7, 7, 7]
        assert run.evaluation["step"].tolist() == [6, 7]
    done = mpi(3, PROGRAM, 0, 0, 0, *words, "--resume", "auto")
    assert "goes on from" in done.stderr
    assert "after step 7" in done.stderr
    with read(path) as run:
        assert run.complete
        assert run.evaluation["step"].tolist() == [6, 12, 16]
        assert [row["step"] for row in run.restarts] == [7]


def test_another_run_is_refused_on_all_ranks_with_one_line(mpi: Ranks, tmp_path: Path):
    path = tmp_path / "run.h5"
    words = [*COMMON, "--output", str(path), "--algorithm", "minibatch"]
    mpi(2, PROGRAM, 0, 0, 0, *words)
    refused = mpi(3, PROGRAM, 0, 0, 0, *words, "--resume", f"{path}.checkpoint", check=False)
    assert refused.returncode == 2
    assert refused.stderr.count("its number of ranks is 2, not 3") == 1


@pytest.mark.parametrize("options", ["async", "softsync --requeue", "backup --stale abandon"])
def test_a_server_goes_on_from_what_it_had(mpi: Ranks, options: str, tmp_path: Path):
    """Asynchronous: not the same bits, but no gradient of the past counts twice or is missing."""
    path = tmp_path / "run.h5"
    words = [*COMMON, "--algorithm", *options.split(), "--output", str(path)]
    died = mpi(3, PROGRAM, signal.SIGKILL, 0, 9, *words, check=False)
    assert died.returncode
    done = mpi(3, PROGRAM, 0, 0, 0, *words, "--resume", "auto")
    assert "goes on from" in done.stderr
    with read(path) as run:
        assert run.complete
        (restart,) = run.restarts
        updates = run.updates
        used = updates["used"] == 1
        group = 2 if options.startswith("softsync") else 1
        made = np.unique(updates["update"][used], return_counts=True)
        assert made[0].tolist() == list(range(1, len(made[0]) + 1))
        assert set(made[1].tolist()) == {group}
        pairs = np.stack([updates["worker"], updates["step"]])[:, used]
        assert np.unique(pairs, axis=1).shape == pairs.shape  # no step of a worker is used twice
        assert run.evaluation["step"].tolist() == [6, 12, 16]
        assert restart["step"] in (4, 8)


def test_each_rank_can_keep_its_own_file(mpi: Ranks, tmp_path: Path):
    """To the same bits, and no part is left that no checkpoint needs."""
    whole, parts = tmp_path / "whole.h5", tmp_path / "parts.h5"
    words = [*COMMON, "--algorithm", "dasgd", "--tau", "4", "--delay", "3"]
    mpi(3, PROGRAM, 0, 0, 0, *words, "--output", whole)
    words += ["--output", str(parts), "--checkpoint-per-rank"]
    died = mpi(3, PROGRAM, signal.SIGKILL, 2, 14, *words, check=False)
    assert died.returncode
    there = sorted(path.name for path in tmp_path.glob("parts.h5.checkpoint.step*"))
    assert there == [f"parts.h5.checkpoint.step{step}.rank{r}" for step in (12, 8) for r in (1, 2)]
    (tmp_path / there[1]).write_bytes(b"damaged")
    explicit = ["--resume", f"{parts}.checkpoint"]
    refused = mpi(3, PROGRAM, 0, 0, 0, *words, *explicit, check=False)
    assert refused.returncode == 2
    assert f"{there[1]}: is no checkpoint" in refused.stderr
    done = mpi(3, PROGRAM, 0, 0, 0, *words, "--resume", "auto")
    assert "after step 8" in done.stderr
    assert f"{there[1]}: is no checkpoint" in done.stderr
    with read(whole) as one, read(parts) as other:
        assert np.array_equal(one.steps["loss"], other.steps["loss"])
        assert np.array_equal(one.evaluation["loss"], other.evaluation["loss"])


def test_parts_from_before_a_restart_are_pruned_as_well(mpi: Ranks, tmp_path: Path):
    path = tmp_path / "run.h5"
    words = [*COMMON, "--algorithm", "minibatch", "--output", str(path), "--checkpoint-per-rank"]
    died = mpi(2, PROGRAM, signal.SIGKILL, 1, 14, *words, check=False)
    assert died.returncode
    mpi(2, PROGRAM, 0, 0, 0, *words, "--resume", "auto")
    there = {found.name.rsplit(".", 2)[1] for found in tmp_path.glob("run.h5.checkpoint.step*")}
    assert there == {"step12", "step16"}


def test_a_part_that_finds_no_room_is_named_and_leaves_nothing(mpi: Ranks, tmp_path: Path):
    words = [*COMMON, "--checkpoint", tmp_path / "a.ck", "--checkpoint-per-rank"]
    full = mpi(2, "full_disk.py", *words, check=False)
    assert full.returncode == 1
    assert "a.ck.step4.rank1: cannot be written: No space left on device" in full.stderr
    assert not list(tmp_path.glob("*.step*"))


def test_a_writer_that_is_stopped_is_named_within_the_deadline(mpi: Ranks, tmp_path: Path):
    words = [*COMMON, "--deadline", "6s", "--output", tmp_path / "a.h5"]
    stalled = mpi(2, "stopped_writer.py", *words, check=False)
    assert stalled.returncode == 1
    assert "rank 0 waited 6 s for the process that writes results" in stalled.stderr
