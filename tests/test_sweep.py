"""Where the best of a sweep lies, and what a further grid tries."""

import json
import shlex
import tomllib

import pytest
from test_report import DASGD, made

from mpisgd.cli import main
from mpisgd.store.writer import Writer
from mpisgd.submit.grid import read as read_grid
from mpisgd.values.errors import UsageError

ALL = {"batch": 32, "tau": 4, "delay": 1, "xi": 0.25, "merge": "convex", "evaluate_every": 0}


def ended(path, accuracy, **config):
    """A complete run with that last accuracy."""
    config = {"algorithm": "dasgd", "ranks": 2, "seed": 0, "scaling": "weak", "steps": 8} | config
    with Writer(path, kind="train", config=ALL | config, environment={}, ranks=2,
                virtual=True) as store:  # fmt: skip
        store.evaluation(step=8, accuracy=accuracy, loss=1 - accuracy)
        store.complete({})


def swept(capsys, folder, *words):
    assert main(["sweep", str(folder), "--format", "json", *words]) == 0
    printed = capsys.readouterr()
    return {row["option"]: row for row in json.loads(printed.out)}, printed.err


def test_inside_edge_and_bound(tmp_path, capsys):
    """Best at the middle rate, the highest tau, and an xi beyond which there is none."""
    for rate, r in ((0.05, 0), (0.1, 3), (0.2, 1)):
        for tau, t in ((2, 0), (4, 4)):
            for xi, x in ((0.5, 0), (1.0, 5)):
                name = tmp_path / f"{rate}-{tau}-{xi}.h5"
                ended(name, (50 + r + t + x) / 100, rate=rate, tau=tau, xi=xi)
    rows, said = swept(capsys, tmp_path)
    assert [(n, row["best"], row["verdict"]) for n, row in rows.items()] == [
        ("tau", 4, "edge: the highest of 2"), ("xi", 1.0, "bound"), ("lr", 0.1, "inside"),
    ]  # fmt: skip
    assert (rows["lr"]["below"], rows["lr"]["above"]) == ("0.05: 0.59", "0.2: 0.6")
    assert (rows["tau"]["below"], rows["tau"]["above"]) == ("2: 0.58", None)
    assert rows["lr"]["mean"] == pytest.approx(0.62)
    assert "1 of 3 lie on an edge" in said
    worst, _ = swept(capsys, tmp_path, "--by", "loss")
    assert {n: row["best"] for n, row in worst.items()} == {n: r["best"] for n, r in rows.items()}


def test_the_further_grid_is_one_and_goes_beyond(tmp_path, capsys):
    for number, rate in enumerate((0.05, 0.1, 0.2)):
        for seed in (3, 4):
            ended(tmp_path / f"{rate}-{seed}.h5", number / 10, rate=rate, seed=seed)
    target = tmp_path / "more.toml"
    _, said = swept(capsys, tmp_path, "--grid", str(target))
    again = shlex.join(["mpisgd", "submit", str(target), "--folder", str(tmp_path), "--dry-run"])
    assert f"wrote {target}; {again}" in said
    runs = read_grid(str(target)).runs
    told = [(r.experiment.rate, r.experiment.seed, r.virtual, r.experiment.tau) for r in runs]
    assert told == [(0.4, 3, True, 4), (0.4, 4, True, 4), (0.8, 3, True, 4), (0.8, 4, True, 4)]
    assert main(["sweep", str(tmp_path), "--grid", str(target)]) == 2  # is there
    assert "exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("best", "edges"),
    [((1, 0), set()), ((1, 1), set()), ((2, 0), {"tau"}), ((2, 1), {"tau", "delay"})],
)
def test_report_and_sweep_say_the_same_of_edges(tmp_path, capsys, best, edges):
    for tau in (1, 2):
        for delay in (0, 1):
            name = tmp_path / f"{tau}-{delay}.h5"
            ended(name, 0.5 + 0.1 * ((tau, delay) == best), tau=tau, delay=delay)
    rows, _ = swept(capsys, tmp_path)
    assert {n for n, row in rows.items() if row["verdict"].startswith("edge")} == edges
    assert {n for n, row in rows.items() if row["verdict"] == "bound"} == {"tau", "delay"} - edges
    assert main(["report", str(tmp_path), "--table", "sweep", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["sweep"]
    told = [row["edge"] for row in found if row["place"] == "best"]
    assert [set(text.split(", ")) for text in told] == [edges or {"none"}]


@pytest.mark.parametrize(
    ("option", "values", "beyond"),
    [
        ("tau", (8, 4, 2), [1]),
        ("delay", (2, 3), [1, 0]),
        ("delay", (3, 2), [4]),  # at most tau
        ("xi", (0.75, 0.5), [1.0]),
        ("rate", (0.1, 0.09), [0.11, 0.12]),
        ("momentum", (0.9, 0.95), [0.85, 0.8]),
        ("batch", (16, 32), [8, 4]),
    ],
)
def test_what_lies_beyond(tmp_path, capsys, option, values, beyond):
    """The first of `values` is the best, and on the edge where that is the last in order."""
    order = sorted(values)
    best = order[0] if values[0] < values[1] else order[-1]
    best = min(values) if option == "tau" else best
    for value in values:
        ended(tmp_path / f"{value}.h5", 0.9 if value == best else 0.5, **{option: value})
    swept(capsys, tmp_path, "--grid", str(tmp_path / "g.toml"))
    (block,) = tomllib.loads((tmp_path / "g.toml").read_text())["runs"]
    assert block[{"rate": "lr"}.get(option, option)] == beyond


def test_a_neighbour_that_was_not_run_and_groups_that_are_not_tuned(tmp_path, capsys):
    for tau, delay, accuracy in ((2, 1, 0.5), (4, 1, 0.6), (4, 3, 0.7), (8, 3, 0.65)):
        ended(tmp_path / f"{tau}-{delay}.h5", accuracy, tau=tau, delay=delay)
    ended(tmp_path / "delta.h5", 0.99, tau=4, delay=3, merge="delta", xi=None)
    rows, _ = swept(capsys, tmp_path)
    assert (rows["tau"]["below"], rows["tau"]["above"]) == ("2: not run", "8: 0.65")
    assert rows["tau"]["others"] == "merge convex"
    assert rows["tau"]["mean"] == 0.7


def test_beside_the_best_and_not_run_is_open_and_in_the_further_grid(tmp_path, capsys):
    for tau, delay, accuracy in ((2, 1, 0.5), (4, 1, 0.6), (4, 2, 0.7), (4, 3, 0.6), (8, 3, 0.5)):
        ended(tmp_path / f"{tau}-{delay}.h5", accuracy, tau=tau, delay=delay)
    target = tmp_path / "more.toml"
    rows, _ = swept(capsys, tmp_path, "--grid", str(target))
    assert (rows["tau"]["verdict"], rows["delay"]["verdict"]) == ("open: 2, 8 not run", "inside")
    told = [(r.experiment.tau, r.experiment.delay) for r in read_grid(str(target)).runs]
    assert told == [(2, 2), (8, 2)]


def test_seeds_are_averaged_with_their_interval(tmp_path, capsys):
    for seed, accuracy in enumerate((0.5, 0.7)):
        ended(tmp_path / f"a{seed}.h5", accuracy, seed=seed, rate=0.1)
    ended(tmp_path / "b.h5", 0.55, rate=0.2)
    rows, _ = swept(capsys, tmp_path)
    assert (rows["lr"]["best"], rows["lr"]["runs"]) == (0.1, 2)
    assert rows["lr"]["mean"] == pytest.approx(0.6)
    assert rows["lr"]["half_width"] == pytest.approx(12.706 * 0.1, rel=1e-3)


@pytest.mark.parametrize(("seeds", "told"), [(1, True), (2, False)])
def test_one_run_a_setting_is_told(tmp_path, capsys, seeds, told):
    for seed in range(seeds):
        for rate in (0.1, 0.2):
            for tau in (2, 4):
                ended(tmp_path / f"{seed}-{rate}-{tau}.h5", rate, seed=seed, rate=rate, tau=tau)
    _, said = swept(capsys, tmp_path)
    assert ("note: one run a setting: differences may be noise" in said) == told
    assert main(["report", str(tmp_path), "--table", "sweep"]) == 0
    assert ("sweep with one run a setting" in capsys.readouterr().out) == told


def test_nothing_varied_is_a_mistake(tmp_path, capsys):
    path = made(tmp_path / "a.h5", **DASGD)
    assert main(["sweep", path]) == 2
    assert "1 runs vary no number of an algorithm" in capsys.readouterr().err
    assert main(["sweep", path, "--grid", str(tmp_path / "no" / "g.toml")]) == 2
    assert "--grid" in capsys.readouterr().err


def test_a_file_that_is_no_result_is_one_line(tmp_path, capsys):
    (tmp_path / "a.h5").write_text("hello")
    assert main(["sweep", str(tmp_path / "a.h5")]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)


def test_a_grid_is_no_result_and_is_there_before_the_table(tmp_path, capsys, monkeypatch):
    for rate in (0.1, 0.2):
        ended(tmp_path / f"{rate}.h5", rate, rate=rate)
    first = tmp_path / "0.1.h5"
    before = first.read_bytes()
    assert main(["sweep", str(tmp_path), "--grid", str(first), "--overwrite"]) == 2
    assert "which is read" in capsys.readouterr().err
    assert first.read_bytes() == before

    def full(path, content, option):
        raise UsageError(option, path, "no space left on device")

    monkeypatch.setattr("mpisgd.commands.sweep.save", full)
    assert main(["sweep", str(tmp_path), "--grid", str(tmp_path / "g.toml")]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
