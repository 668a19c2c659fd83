"""Grids that are run twice, what a dry run shows of them, and data that are not there."""

import argparse
import csv
import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mpisgd.algorithms import NAMES
from mpisgd.commands import submit as command
from mpisgd.experiment.experiment import Experiment
from mpisgd.submit import local
from mpisgd.submit.runs import GridRun
from mpisgd.values.errors import UsageError

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


def test_several_at_once_make_the_same_files_and_keep_what_each_prints(submit, capsys, monkeypatch):
    monkeypatch.setattr(command.cores, "available", lambda: 3.0)
    text = GRID.replace(f"{list(NAMES)}", '"local"') + "tau = [2, 3, 4, 5]\nlr = 0.01\n"
    assert submit(text, "--local", "--jobs", "9") == 0
    assert "3 at once, not 9: there are cores for no more" in capsys.readouterr().err
    made = sorted(Path("results/g").glob("*.h5"))
    assert len(made) == 4
    for path in made:
        assert "local" in path.with_suffix(".log").read_text()
    with pytest.raises(UsageError, match="--jobs"):
        submit(text, "--jobs", "2", "--dry-run")


def test_what_fails_beside_others_is_named_and_they_go_on(submit, capsys):
    text = GRID.replace(f"{list(NAMES)}", '"local"') + "lr = [1e30, 0.01, 0.02]\nepochs = 5\n"
    text = text.replace("epochs = 0.5\n", "")
    assert submit(text, "--local", "--jobs", "2", "--format", "csv") == 1
    printed = capsys.readouterr()
    assert [row["state"] for row in table(printed.out)] == ["failed", "finished", "finished"]
    assert "exit code 3" in printed.err


def test_processes_at_once_are_no_more_than_the_cores(tmp_path, monkeypatch):
    """Four runs, one wider than all cores: never more than the cores, or that one alone."""
    running, most, lock = [], [], threading.Lock()

    def execute(run, folder, mpiexec, jobs):
        with lock:
            running.append(run.tasks)
            most.append(list(running))
        time.sleep(0.05)
        with lock:
            running.remove(run.tasks)

    monkeypatch.setattr(local, "execute", execute)
    runs = [GridRun(Experiment(ranks=ranks, seed=ranks)) for ranks in (1, 2, 3, 9, 1, 2)]
    ended = dict(local.each(runs, tmp_path, None, jobs=6, cores=4))
    assert ended == dict.fromkeys(range(6))
    assert all(sum(now) <= 4 or now == [9] for now in most)


def test_interrupted_with_several_ends_all_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = GRID.replace(f"{list(NAMES)}", '"local"').replace("epochs = 0.5\n", "steps = 10000000\n")
    Path("g.toml").write_text(text + "seed = [0, 1, 2]\n")
    words = ["import sys; from mpisgd.cli import main; sys.exit(main())", "submit", "g.toml"]
    process = subprocess.Popen(
        [sys.executable, "-c", *words, "--local", "--jobs", "2", "--folder", "f"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    while not list(Path("f").glob("*.partial")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=150)
    assert process.returncode == command.INTERRUPTED
    assert not list(Path("f").glob("*.h5"))
    size = {path: path.stat().st_size for path in Path("f").glob("*.partial")}
    time.sleep(0.3)
    assert {path: path.stat().st_size for path in Path("f").glob("*.partial")} == size  # all ended


def test_a_refused_combination_is_named_as_an_exclusion(submit):
    text = (
        GRID.replace(f"{list(NAMES)}", '"dasgd"') + "tau = [2, 4]\ndelay = [1, 3]\nlr = [0.1, 1]\n"
    )
    with pytest.raises(UsageError, match=r"\[\[exclude\]\] with tau = 2, delay = 3$"):
        submit(text, "--dry-run")
    assert submit(text + "[[exclude]]\ntau = 2\ndelay = 3\n", "--dry-run") == 0
