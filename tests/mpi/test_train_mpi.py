"""Training on real ranks: bit for bit what virtual ranks do, and within its memory."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from mpi_ranks import ONE_THREAD, PROGRAMS, Ranks

from mpisgd.store.reader import read

TIMES = {"time_s"}  # the one column of /evaluation that depends on the world
SAME = ("loss", "samples", "rate", "sent_bytes")  # columns of /steps that do not
MOST_MIB = 80.0  # a guard, far from the 59 that it is: what is loaded by mistake weighs more


def columns(path: Path) -> dict[str, np.ndarray]:
    """What both worlds must agree on, of a complete result file."""
    with read(path) as run:
        assert run.complete
        found = {f"steps/{name}": run.steps[name] for name in SAME}
        kept = (name for name in run.evaluation if name not in TIMES)
        return found | {f"evaluation/{name}": run.evaluation[name] for name in kept}


def unlike(mine: Mapping[str, np.ndarray], its: Mapping[str, np.ndarray]) -> list[str]:
    """Names of what differs in any bit."""
    return [
        name
        for name in mine.keys() | its.keys()
        if name not in mine
        or name not in its
        or not np.array_equal(mine[name], its[name], equal_nan=True)
    ]


@pytest.fixture(scope="session")
def virtual(tmp_path_factory):
    """The folder with what virtual ranks did."""
    folder = tmp_path_factory.mktemp("virtual")
    words = [sys.executable, str(PROGRAMS / "train_worlds.py"), str(folder), "--virtual"]
    done = subprocess.run(
        words, timeout=150, env=os.environ | ONE_THREAD, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_real_and_virtual_ranks_agree_bit_for_bit(mpi: Ranks, virtual, tmp_path):
    """On 1, 2, 3, 4, 5 and 8 ranks: losses, evaluations and the parameters of every rank."""
    mpi(8, "train_worlds.py", tmp_path, timeout=240)
    files = sorted(path.relative_to(tmp_path) for path in tmp_path.glob("*/*.npz"))
    assert len(files) == 6 * 27
    for file in files:
        real, its = np.load(tmp_path / file), np.load(virtual / file)
        assert real["parameters"].shape[0] == int(file.parts[0])
        assert unlike(real, its) == [], file
    one, other = np.load(virtual / "4/minibatch.npz"), np.load(virtual / "4/local-ring.npz")
    assert {"parameters", "steps/loss", "evaluation/loss"} <= {*unlike(one, other)}


def test_the_command_line_agrees_too_and_a_rank_stays_small(mpi: Ranks, tmp_path):
    words = ["--algorithm", "dasgd", "--epochs", "2", "--batch", "16", "--output"]
    done = mpi(2, "train_memory.py", *words, tmp_path / "real.h5")
    mpi.run(1, ["mpisgd", "train", *words, str(tmp_path / "virtual.h5"), "--virtual", "2"])
    assert unlike(columns(tmp_path / "real.h5"), columns(tmp_path / "virtual.h5")) == []
    held = re.findall(r"held ([\d.]+) MiB, with \[\]", done.stdout)
    assert len(held) == 2
    if mpi.name == "mpich":
        assert max(map(float, held)) <= MOST_MIB


def test_a_delay_is_measured_before_the_run_and_the_same_on_all_ranks(mpi: Ranks, tmp_path):
    path = tmp_path / "a.h5"
    words = ["mpisgd", "train", "--algorithm", "dasgd", "--delay", "auto", "--tau", "3",
             "--hidden", "4", "--steps", "9", "--output", str(path)]  # fmt: skip
    mpi.run(2, words, timeout=150)
    with read(path) as run:
        assert run.complete
        assert 0 <= run.config["delay"] <= run.config["tau"] == 3
        assert run.reported.tolist() == [9, 9]


@pytest.mark.parametrize("progress", ["poll", "thread"])
def test_every_average_is_recorded_and_ends_after_it_began(mpi: Ranks, tmp_path, progress):
    words = ["mpisgd", "train", "--algorithm", "local", "--tau", "2", "--steps", "200",
             "--hidden", "4", "--evaluate-every", "0", "--progress", progress,
             "--output", str(path := tmp_path / "a.h5")]  # fmt: skip
    mpi.run(3, words, timeout=150)
    with read(path) as run:
        events = run.events
        assert len(events["step"]) == 3 * 100
        assert np.bincount(events["step"])[2::2].tolist() == [3] * 100
        assert (events["end_s"] > events["start_s"]).all()


def test_runs_from_python_on_communicators_have_the_bits_of_virtual_ones(mpi: Ranks):
    done = mpi(6, "run_on_comm.py", "fail", timeout=150)
    told = sorted(done.stdout.splitlines())
    assert told[1:] == ["same dasgd", "same softsync"]
    assert "not finite on rank" in told[0]


@pytest.mark.parametrize("rate", ["0.1", "100"])
def test_what_is_evaluated_after_training_is_what_is_during_it(mpi: Ranks, tmp_path, rate):
    """Also of a run that fails, of which the higher rate is one. Only times differ."""
    found = {}
    for when in ("after", "during"):
        path = tmp_path / f"{when}.h5"
        words = ["mpisgd", "train", "--algorithm", "dasgd", "--tau", "3", "--delay", "2",
                 "--steps", "30", "--hidden", "4", "--lr", rate, "--weight-decay", "1", "--ema",
                 "0.5", "--evaluate-every", "2", "--evaluate", when]  # fmt: skip
        done = mpi.run(2, [*words, "--output", str(path)], timeout=150, check=rate == "0.1")
        assert done.returncode == (0 if rate == "0.1" else 3)
        with read(path if rate == "0.1" else f"{path}.partial") as run:
            assert run.config["evaluate"] == when
            found[when] = {k: v for k, v in run.evaluation.items() if k not in TIMES}
            rested = run.steps["rested"].any(axis=1)
            assert rested.tolist() == [
                when == "during" and n % 2 == 0 < n for n in range(len(rested))
            ]
            if rate == "0.1":
                assert run.evaluation["step"].tolist() == [*range(2, 31, 2)]
    assert unlike(found["after"], found["during"]) == []
    assert len(found["after"]["step"]) > 0
