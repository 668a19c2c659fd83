"""`mpisgd demo`, as a newcomer runs it."""

import json
import subprocess
import sys
import time

import pytest

from mpisgd.cli import main
from mpisgd.mpi.mpiexec import find
from mpisgd.store.reader import read
from mpisgd.values.errors import UsageError

MOST_S = 60.0


def test_three_algorithms_learn_digits_and_are_compared(tmp_path):
    try:
        find()
    except UsageError as missing:
        pytest.skip(str(missing))
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "mpisgd", "demo", "--folder", str(tmp_path / "demo"),
         "--format", "json"],
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < MOST_S
    said = json.loads(done.stdout)
    rows = said["runs"]
    assert [row["algorithm"] for row in rows] == ["minibatch", "local", "dasgd"]
    for row in rows:
        assert row["accuracy"] >= 0.93
        assert row["ranks"] == 4
        path = tmp_path / "demo" / f"{row['algorithm']}.h5"
        with read(path) as run:
            assert run.complete
            assert not run.virtual
            assert run.evaluation["accuracy"][-1] == pytest.approx(row["accuracy"])
    assert [row["effective_steps"] for row in rows] == [900, 900, 900 - 0.75 * 224]
    assert any("digits do not rank algorithms" in note for note in said["notes"])


def test_a_run_that_fails_ends_it_with_what_the_run_said(tmp_path, monkeypatch, capsys):
    class Broken:
        def run(self, ranks, words, timeout):
            return subprocess.CompletedProcess(words, 9, "", "rank 3: no such wire\n")

    monkeypatch.setattr("mpisgd.mpi.mpiexec.find", Broken)
    assert main(["demo", "--folder", str(tmp_path / "demo")]) == 9
    told = capsys.readouterr().err
    assert told.endswith("rank 3: no such wire\n")
    assert told.count("mpiexec -n 4 mpisgd train") == 1
    assert list((tmp_path / "demo").iterdir()) == []
