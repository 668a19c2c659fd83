"""`mpisgd demo`, as a newcomer runs it."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from mpisgd.cli import main
from mpisgd.mpi.mpiexec import find
from mpisgd.report.picture import ASCII, BLOCKS, Shown, picture
from mpisgd.store.reader import read
from mpisgd.values.errors import UsageError


def test_three_algorithms_learn_digits_and_are_compared(tmp_path):
    try:
        find()
    except UsageError as missing:
        pytest.skip(str(missing))
    pytest.importorskip("jinja2", reason="needs the extra plot")
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    done = subprocess.run(
        [sys.executable, "-m", "mpisgd", "demo", "--folder", str(tmp_path / "demo"),
         "--format", "json", "--html"],
        capture_output=True, text=True, timeout=180,
        env={**os.environ, "COLUMNS": "70", "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (tmp_path / "demo" / "report.html").stat().st_size > 10000
    picture = done.stderr.splitlines()[-8:]
    assert [line.split()[0] for line in picture[1:4]] == ["minibatch", "local", "dasgd"]
    assert all("█" in line or "▒" in line for line in picture[1:4])
    assert max(map(len, picture)) <= 70
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


def test_a_page_is_not_replaced_unasked(tmp_path, capsys):
    (tmp_path / "report.html").write_text("mine")
    assert main(["demo", "--folder", str(tmp_path), "--html"]) == 2
    assert "--html" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize("characters", [BLOCKS, ASCII])
@pytest.mark.parametrize("width", [1, 30, 80, 200])
def test_a_picture_has_the_shares_of_its_runs(width, characters):
    full, light, levels = characters
    runs = [
        Shown("local", 2.0, 0.0, np.array([0.0, 1.0]), np.array([0.5, 0.9])),
        Shown("minibatch", 4.0, 0.5, np.array([1.0]), np.array([0.7])),
    ]
    lines = picture(runs, width, characters).splitlines()
    assert max(map(len, lines)) <= max(width, 33)
    local, minibatch = lines[1], lines[2]
    assert light not in local
    assert abs(minibatch.count(full) - minibatch.count(light)) <= 1
    assert abs(minibatch.count(full) - local.count(full)) <= 1  # half of twice the seconds
    assert lines[4].split()[1][0] == levels[0]
    assert lines[4].split()[1][-1] == levels[-1]
    assert lines[4].endswith(" 0.900")
