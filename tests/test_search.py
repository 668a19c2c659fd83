"""Successive halving over one option: who gets the next budget, and what is told of the best."""

from pathlib import Path

import pytest
from test_submit_again import GRID, NAMES, submit, table

from mpisgd.submit import grid as grids
from mpisgd.submit import search
from mpisgd.values.errors import UsageError

__all__ = ["submit"]  # the fixture
BASE = GRID.replace(f"{list(NAMES)}", '"local"').replace("epochs = 0.5\n", "")
SEARCH = "[search]\nlr = [0.001, 0.01, 0.1, 1e30]\nsteps = [4, 8, 16]\n"


def test_the_better_half_gets_the_next_budget_and_what_diverges_has_lost(submit, capsys):
    text = BASE + "seed = [0, 1]\n" + SEARCH
    assert submit(text, "--local", "--format", "csv") == 0
    out, err = capsys.readouterr()
    rows = table(out)
    each = {steps: [r["lr"] for r in rows if r["steps"] == steps and r["seed"] == "0"]
            for steps in ("4", "8", "16")}  # fmt: skip
    assert each["4"] == ["0.001", "0.01", "0.1", "1e+30"]
    assert len(each["8"]) == 2
    assert len(each["16"]) == 1
    assert set(each["16"]) < set(each["8"]) < set(each["4"])
    assert "1e+30" not in each["8"]
    assert err.count("best of ") == 2
    made = {path: path.stat().st_mtime_ns for path in Path("results/g").glob("*.h5")}
    assert submit(text, "--local") == 0  # nothing is left, not even what diverged
    assert {path: path.stat().st_mtime_ns for path in made} == made


def test_each_round_keeps_the_least_loss(submit, tmp_path, monkeypatch):
    Path("g.toml").write_text(BASE + SEARCH)
    grid = grids.read("g.toml")
    losses = {0.001: 3.0, 0.01: 1.0, 0.1: 2.0, 1e30: float("inf")}
    ended = set()
    monkeypatch.setattr(search, "score", lambda run, *_: losses[run.experiment.rate]
                        if run.experiment.steps in ended else None)  # fmt: skip
    told = []
    for steps in (4, 8, 16):
        runs = search.known(grid.runs, grid.search, tmp_path)
        told.append([run.experiment.rate for run in runs if run.experiment.steps == steps])
        ended.add(steps)
    assert told == [[0.001, 0.01, 0.1, 1e30], [0.01, 0.1], [0.01]]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("[search]\nlr = [0.1, 0.2]", "one option to choose, such as lr, and steps or epochs"),
        ("[search]\nlr = [0.1]\nsteps = [1, 2]", "search.lr"),
        ("[search]\nlr = [0.1, 1]\nsteps = [2, 1]", "each more than the one before"),
        ("[search]\nspeed = [0.1, 1]\nsteps = [1, 2]", "search.speed: no such option"),
        ("[search]\nlr = [0.1, 1]\nsteps = [1, 2]\nkeep = 2", "search.keep"),
        ("[search]\nlr = [0.1, 1]\nsteps = [1, 2]\nby = 'speed'", "search.by"),
    ],
)
def test_searches_that_are_none(submit, more, said):
    with pytest.raises(UsageError, match=said):
        submit(BASE + more, "--local")
    assert not Path("results").exists()
