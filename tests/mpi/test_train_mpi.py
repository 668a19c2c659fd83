"""Training on real ranks: bit for bit what virtual ranks do, and within its memory."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ONE_THREAD, PROGRAMS, Ranks

from mpisgd.store.reader import read

TIMES = {"time_s"}  # the one column of /evaluation that depends on the world
SAME = ("loss", "samples", "rate")  # columns of /steps that do not
MOST_MIB = 60.0


def columns(path: Path) -> dict[str, np.ndarray]:
    """What both worlds must agree on, of a complete result file."""
    with read(path) as run:
        assert run.complete
        found = {f"steps/{name}": run.steps[name] for name in SAME}
        kept = (name for name in run.evaluation if name not in TIMES)
        return found | {f"evaluation/{name}": run.evaluation[name] for name in kept}


def differing(one: Path, other: Path) -> list[str]:
    """Names of what differs in any bit."""
    mine, its = columns(one), columns(other)
    return [
        name
        for name in mine.keys() | its.keys()
        if name not in mine
        or name not in its
        or not np.array_equal(mine[name], its[name], equal_nan=True)
    ]


@pytest.fixture(scope="module")
def virtual(tmp_path_factory):
    """virtual(ranks): the folder with the files of that many virtual ranks, made once."""
    made: dict[int, Path] = {}

    def folder(ranks: int) -> Path:
        if ranks not in made:
            made[ranks] = tmp_path_factory.mktemp(f"virtual{ranks}")
            words = [sys.executable, str(PROGRAMS / "train_worlds.py"), str(made[ranks])]
            import os

            subprocess.run(
                [*words, "--virtual", str(ranks)], check=True, timeout=60, env=os.environ | ONE_THREAD,
                stdout=subprocess.DEVNULL,
            )  # fmt: skip
        return made[ranks]

    return folder


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
def test_real_and_virtual_ranks_agree_bit_for_bit(mpi: Ranks, ranks, virtual, tmp_path):
    mpi(ranks, "train_worlds.py", tmp_path, timeout=90)
    names = sorted(path.stem for path in tmp_path.glob("*.h5"))
    assert len(names) == 10
    for name in names:
        real, its = tmp_path / f"{name}.h5", virtual(ranks) / f"{name}.h5"
        assert differing(real, its) == [], name
        assert np.array_equal(
            np.load(real.with_suffix(".npy")), np.load(its.with_suffix(".npy"))
        ), name
    if ranks > 1:
        other = virtual(ranks) / "local-ring.h5"
        assert "steps/loss" in differing(tmp_path / "minibatch.h5", other)


def test_the_command_line_agrees_too_and_a_rank_stays_small(mpi: Ranks, tmp_path):
    words = "--algorithm dasgd --epochs 2 --batch 16 --output".split()
    done = mpi(2, "train_memory.py", *words, tmp_path / "real.h5")
    mpi.run(1, ["mpisgd", "train", *words, str(tmp_path / "virtual.h5"), "--virtual", "2"])
    assert differing(tmp_path / "real.h5", tmp_path / "virtual.h5") == []
    held = re.findall(r"held ([\d.]+) MiB, with \[\]", done.stdout)
    assert len(held) == 2
    if mpi.name == "mpich":
        assert max(map(float, held)) <= MOST_MIB
