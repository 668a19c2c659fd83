"""Grids that are run twice, what a dry run shows of them, and data that are not there."""

import argparse
import csv
import io
from pathlib import Path

import pytest

from mpisgd.algorithms import NAMES
from mpisgd.commands import submit as command
from mpisgd.experiment.experiment import Experiment
from mpisgd.submit.runs import GridRun

GRID = f"""
scaling = "weak"
[options]
virtual = true
model = "quadratic"
data = "synthetic"
data-samples = 64
batch = 4
epochs = 0.5
ranks = 4
algorithm = {list(NAMES)}
"""


@pytest.fixture
def submit(tmp_path, monkeypatch):
    """`mpisgd submit g.toml` in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(text: str, *words: str) -> int:
        Path("g.toml").write_text(text)
        parser = argparse.ArgumentParser()
        command.add_arguments(parser)
        return command.run(parser.parse_args(["g.toml", *words]))

    return run


def table(printed: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(printed)))


@pytest.mark.parametrize("more", ["", "[options.dasgd]\ndelay = 'auto'\n"])
def test_what_is_finished_is_skipped_whatever_follows_from_data_or_measurements(
    submit, capsys, more
):
    assert submit(GRID + more, "--local") == 0
    made = {path: path.stat().st_mtime_ns for path in Path("results/g").glob("*.h5")}
    assert len(made) == len(NAMES)
    assert submit(GRID + more, "--local") == 0
    assert {path: path.stat().st_mtime_ns for path in made} == made
    capsys.readouterr()
    assert submit(GRID + more, "--dry-run", "--format", "csv") == 0
    assert {row["state"] for row in table(capsys.readouterr().out)} == {"finished"}


def test_a_ramp_that_is_given_is_compared():
    run = GridRun(Experiment(algorithm="stale", ramp=7))
    stored = run.experiment.resolved(1, 9).config()
    assert run.difference(stored, virtual=False) is None
    assert run.difference({**stored, "ramp": 8}, virtual=False) == "ramp is 8, not 7"


def test_options_that_vary_are_columns(submit, capsys):
    text = GRID.replace(str(list(NAMES)), '["stale", "dasgd", "async"]')
    text += "[options.stale]\nstaleness = [0, 3]\n[options.dasgd]\nxi = [0.0, 0.5]\n"
    assert submit(text, "--dry-run", "--format", "csv") == 0
    printed = capsys.readouterr()
    rows = table(printed.out)
    assert [row["staleness"] for row in rows] == ["0", "3", "", "", ""]
    assert [row["xi"] for row in rows] == ["", "", "0.0", "0.5", ""]
    assert [row["allreduce"] for row in rows] == ["butterfly"] * 4 + [""]
    assert not {"tau", "servers", "epochs"} & rows[0].keys()  # the same in all that have them
    assert "no estimate of the cost: g.toml has no [predict] table" in printed.err


def test_data_that_are_missing_are_told_once_before_anything_starts(submit, capsys):
    text = GRID.replace('data = "synthetic"', 'data = "mnist"\ndata-path = "nowhere"')
    text = text.replace('"quadratic"', '"softmax"').replace("data-samples = 64\n", "")
    assert submit(text, "--dry-run") == 0
    assert capsys.readouterr().err.count("--data-path 'nowhere' is not found here") == 1
    with pytest.raises(ValueError, match="nowhere: not found"):
        submit(text, "--local")
    assert not Path("results").exists()
