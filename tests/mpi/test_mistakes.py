"""Mistakes that only some ranks make: all leave, with one line, before anything is written."""

import os
import subprocess
from pathlib import Path

import pytest

from mpisgd.mpi.mpiexec import Job


def start(mpi, *apps: list[str]) -> subprocess.CompletedProcess[str]:
    """One rank for each list of options of `mpisgd train`, which differ."""
    words, added = mpi.launcher.command(1, [mpi.python, "-m", "mpisgd", "train", *apps[0]])
    for options in apps[1:]:
        words += [":", "-n", "1", mpi.python, "-m", "mpisgd", "train", *options]
    environment = {**os.environ, **added, **mpi.variables}
    with Job(words, environment) as job:
        return job.wait(150)


@pytest.mark.parametrize(
    ("other", "line"),
    [
        (["--tau", "0"], "--tau '0': a whole number >= 1"),
        (["--nope"], "unrecognized arguments: --nope"),
        (["--config", "/nowhere.toml"], "/nowhere.toml: No such file"),
        (["--seed", "1"], "ranks 0 and 1 were started with different options"),
    ],
)
def test_a_mistake_of_one_rank_ends_all(mpi, tmp_path, other, line):
    output = tmp_path / "out.h5"
    good = ["--steps", "2", "--deadline", "120s", "--output", str(output)]
    done = start(mpi, good, [*good, *other])
    assert done.returncode == 2, done.stderr
    said = [text for text in done.stderr.splitlines() if "mpisgd" in text and "error" in text]
    assert len(said) == 1, done.stderr
    assert line in said[0]
    assert not list(Path(tmp_path).iterdir())
