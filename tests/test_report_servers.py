"""What a report says of runs with parameter servers whose gradients are known by construction."""

import csv
import io
import json
from types import SimpleNamespace as Values

import numpy as np
import pytest

from mpisgd import cli
from mpisgd.cli import main
from mpisgd.commands import report as command
from mpisgd.report import accounting, sections, servers
from mpisgd.report.collect import Named
from mpisgd.report.columns import meanings
from mpisgd.report.figures import draw
from mpisgd.report.sections import report
from mpisgd.store.reader import read
from mpisgd.store.writer import Writer

NAMES = ("server", "update", "worker", "step", "version_read", "staleness", "used", "samples",
         "arrived_s", "waited_s")  # fmt: skip
# Two of three gradients make an update. Version 1 is made at 2 s, version 2 at 5 s; the third
# worker's gradient of version 0 comes at 3 s and is dropped, its next one of version 1 at 6 s too.
PUSHES = (
    (0, 1, 0, 1, 0, 0, 1, 4, 1.0, 1.0),
    (0, 1, 1, 1, 0, 0, 1, 4, 2.0, 0.0),
    (0, -1, 2, 1, 0, 1, 0, 4, 3.0, 0.0),
    (0, 2, 0, 2, 1, 0, 1, 4, 3.5, 1.5),
    (0, 2, 1, 2, 1, 0, 1, 4, 5.0, 0.0),
    (0, -1, 2, 2, 1, 1, 0, 4, 6.0, 0.0),
    (0, -1, 0, 3, 2, 0, 0, 0, 6.5, 0.0),
)


class Stand(Values):
    """A stand-in for a run, which is told apart by what it is and not by its values."""

    __hash__ = object.__hash__


def made(pushes=PUSHES, ranks=4, time_s=8.0, name="a.h5", **config):
    """A run of backup with one server and the rest workers, as the reader shows one."""
    columns = [np.array(values) for values in zip(*pushes, strict=True)]
    run = Stand(
        kind="train", ranks=ranks, virtual=False, complete=True, reason=None, environment={},
        summary={}, restarts=[],
        config={"algorithm": "backup", "servers": 1, "colocated": False, "backups": 1, **config},
        updates=dict(zip(NAMES, columns, strict=False)), steps={}, cases=[],
        reported=np.zeros(ranks, int),
        evaluation={"step": np.array([2]), "time_s": np.array([time_s]), "loss": np.array([1.0])},
    )  # fmt: skip
    return Named(name, run)


def written(path, **config):
    """The same in a file."""
    named = made(**config)
    with Writer(path, kind="train", config=named.run.config, environment={}, ranks=4) as store:
        store.updates([dict(zip(NAMES, push, strict=True)) for push in PUSHES])
        store.evaluation(step=2, time_s=8.0)
        store.complete({})
    return str(path)


def stale(ages, servers_count=1, **config):
    """A run of async in which shard s used one gradient of each of these ages, plus s."""
    pushes = [
        (server, update + 1, update % 4, update // 4 + 1, 0, age + server, 1, 4, update, 0.0)
        for server in range(servers_count)
        for update, age in enumerate(ages)
    ]
    own = {"algorithm": "async", "servers": servers_count, "backups": None}
    return made(pushes, 4 + servers_count, **(own | config))


@pytest.fixture(autouse=True)
def _variables(monkeypatch):
    for variable in cli.BLAS_VARIABLES:  # main sets them: put them back
        monkeypatch.setenv(variable, "1")


def test_the_row_of_a_run_counts_what_was_used_dropped_and_given_up():
    row = servers.row(made())
    assert (row["ranks"], row["servers"], row["workers"], row["backups"]) == (4, 1, 3, 1)
    assert (row["updates"], row["used_gradients"], row["dropped_gradients"]) == (2, 4, 2)
    assert (row["given_up"], row["used_samples"], row["dropped_samples"]) == (1, 16, 8)
    assert row["used_share"] == pytest.approx(16 / 24)
    assert row["used_samples_per_s"] == 2.0
    assert (row["staleness_mean"], row["staleness_max"]) == (0, 0)
    assert row["update_s"] == 3.0
    assert row["waited_s"] == pytest.approx(2.5 / 4)


def test_arrivals_are_counted_from_the_version_and_late_gradients_count():
    rows = servers.arrivals(made())
    assert [(row["k"], row["updates"], row["mean_s"]) for row in rows] == [
        (1, 2, pytest.approx((1.0 + 1.5) / 2)),
        (2, 2, pytest.approx((2.0 + 3.0) / 2)),
        (3, 2, pytest.approx((3.0 + 4.0) / 2)),
    ]
    assert rows[2]["max_s"] == 4.0


LATE = (*PUSHES, (0, -1, 1, 3, 2, 0, 0, 4, 8.0, 0.0))


@pytest.mark.parametrize(
    ("computed", "complete", "dropped", "late"),
    [(28, True, 3, 0), (24, True, 2, 1), (24, False, 3, 0), (12, True, 1, 2), (None, True, 3, 0)],
)
def test_what_came_after_the_end_is_late(computed, complete, dropped, late):
    named = made(LATE)
    named.run.complete = complete
    if computed is not None:
        named.run.evaluation["samples_computed"] = np.array([computed])
    (shard,) = servers.shards(named)
    for row in (shard, servers.row(named)):
        assert (row["dropped_gradients"], row["late_gradients"]) == (dropped, late)
        assert (row["dropped_samples"], row["late_samples"]) == (4 * dropped, 4 * late)
    assert servers.row(named)["used_share"] == pytest.approx(4 / (4 + dropped))


@pytest.mark.parametrize("backups", [0, 1, 3])
def test_samples_used_and_dropped_are_those_computed(tmp_path, capsys, backups):
    path = str(tmp_path / "a.h5")
    words = ["train", "--virtual", "8", "--algorithm", "backup", "--backups", str(backups),
             "--steps", "6", "--output", path]  # fmt: skip
    assert main(words) == 0
    capsys.readouterr()
    assert main(["report", path, "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["servers"]
    computed = read(path).evaluation["samples_computed"][-1]
    assert row["used_samples"] + row["dropped_samples"] == computed


def test_step_seconds_of_servers_are_of_all_and_of_each(tmp_path):
    path = str(tmp_path / "a.h5")
    words = ["train", "--virtual", "5", "--algorithm", "backup", "--steps", "12"]
    assert main([*words, "--step-time", "5ms", "--straggler", "3:5x", "--output", path]) == 0
    named = Named(path, read(path))
    row, whole = servers.row(named), accounting.row(named.run, path)
    assert (row["own_step_s"], row["slowest_step_s"]) == (
        pytest.approx(0.005), pytest.approx(0.025),
    )  # fmt: skip
    assert whole["step_s"] == pytest.approx(0.005)
    assert whole["step_s"] * whole["steps"] == pytest.approx(whole["time_s"])
    assert "with servers" in meanings(sections.TABLES)["step_s"]


def test_without_one_version_an_update_there_are_no_arrivals():
    assert servers.arrivals(stale([0, 1])) == []
    some = made(algorithm="softsync", group=2, backups=None)
    assert servers.arrivals(some) == []
    whole = made(algorithm="softsync", group=3, backups=None)
    assert len(servers.arrivals(whole)) == 3


def test_shards_are_told_apart():
    named = stale([0, 0, 4, 8], servers_count=2)
    first, second = servers.shards(named)
    assert (first["server"], first["staleness_mean"], first["staleness_max"]) == (0, 3.0, 8)
    assert (second["server"], second["staleness_mean"], second["staleness_max"]) == (1, 4.0, 9)
    row = servers.row(named)
    assert (row["used_gradients"], row["updates"], row["staleness_mean"]) == (4, 4, 3.5)


@pytest.mark.parametrize("longest", [3, 15, 16, 100, 9999])
def test_histograms_hold_every_gradient_in_few_bins(longest):
    ages = [0, 1, 1, longest]
    rows = servers.staleness(stale(ages))
    assert sum(row["gradients"] for row in rows) == 4
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    for row in rows:
        held = sum(row["staleness"] <= age <= row["up_to"] for age in ages)
        assert held == row["gradients"]
    assert len({row["up_to"] - row["staleness"] for row in rows}) == 1
    assert rows[0]["up_to"] == (longest + 1 + 15) // 16 - 1


def test_the_budget_of_a_comparison_is_told():
    nine = made(ranks=9)
    same = made(ranks=9, backups=0)
    shared = made(ranks=8, colocated=True)
    more = made(ranks=9, servers=2)
    assert servers.budget([nine]) == []
    assert "ranks and workers alike (ranks 9, workers 8)" in servers.budget([nine, same])[0]
    assert "budget: workers" in servers.budget([nine, shared])[0]
    assert "budget: ranks;" in servers.budget([nine, more])[0]
    assert "neither" in servers.budget([shared, more, nine])[0]
    plain = made(pushes=(), ranks=8, algorithm="minibatch", servers=None)
    assert servers.budget([plain, plain]) == []
    assert "budget: workers" in servers.budget([plain, nine])[0]


def test_a_run_without_updates_has_no_rows():
    named = made(pushes=())
    assert servers.row(named) is None
    assert servers.shards(named) == servers.staleness(named) == servers.arrivals(named) == []


def test_every_form_has_the_tables_and_text_leaves_long_ones_out(tmp_path, capsys):
    path = written(tmp_path / "a.h5")
    assert main(["report", path, "--format", "json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert {"servers", "shards", "staleness", "arrivals"} <= set(page)
    assert main(["report", path]) == 0
    text = capsys.readouterr().out
    assert "used_samples_per_s" in text
    assert "k-th" not in text
    assert main(["report", path, "--format", "csv", "--table", "arrivals"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [float(row["mean_s"]) for row in rows] == [1.25, 2.5, 3.5]


def test_figures_draw_the_staleness_and_the_arrivals():
    one = made()
    two = stale([0, 0, 0, 2], servers_count=2)
    many = stale([1, 2], servers_count=7)
    figures = draw(report([one, two, many]))
    (line,) = figures["arrivals-wall"].axes[0].get_lines()
    np.testing.assert_allclose(line.get_ydata(), [1.25, 2.5, 3.5])
    lines = figures["staleness-wall"].axes[0].get_lines()
    assert len(lines) == 1 + 2 + 3
    both = [line for line in lines if line.get_xdata().tolist() == [0, 2]]
    np.testing.assert_allclose(both[0].get_ydata(), [0.75, 0.25])
    assert {"shard 0", "shard 3", "shard 6"} <= {line.get_label()[-7:] for line in lines}


def test_what_is_written_is_not_printed_as_well(tmp_path, capsys):
    path = written(tmp_path / "a.h5")
    assert main(["report", path, "--html", str(tmp_path / "r.html")]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"mpisgd report: wrote {tmp_path}/r.html\n"
    words = ["report", path, "--trace", str(tmp_path / "t.json"), "--format", "json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["servers"]
    page = (tmp_path / "r.html").read_text()
    assert "Runs with parameter servers" in page
    assert "Mean time from an update to the k-th gradient" in page


def test_every_column_is_explained(capsys):
    found = meanings(sections.TABLES)
    assert all(found.values())
    for table in sections.TABLES:
        assert table[0].essential
        keys = [column.key for column in table]
        assert len(set(keys)) == len(keys)
    assert main(["report", "--columns"]) == 0
    told = [line.partition(": ")[0] for line in capsys.readouterr().out.splitlines()]
    assert set(found) <= set(told)  # and those of curves, which are no tables of the report alone
    assert len(set(told)) == len(told)
    assert {"servers", "shards", "staleness", "arrivals"} < set(command.TABLES)


def test_no_files_at_all_is_a_mistake(capsys):
    assert main(["report"]) == 2
    assert "FILES" in capsys.readouterr().err


def test_a_shard_that_used_no_gradient_has_a_row_and_no_times():
    """As in a file that was cut off early: in one of two shards nothing was used yet."""
    named = made([*PUSHES, (1, -1, 0, 1, 0, 0, 0, 4, 1.0, 0.0)], ranks=5, servers=2)
    first, second = servers.shards(named)
    assert (first["used_gradients"], second["used_gradients"]) == (4, 0)
    assert second["updates"] == 0
    for key in ("staleness_mean", "staleness_median", "staleness_max", "update_s", "waited_s"):
        assert first[key] is not None
        assert second[key] is None
    assert {row["server"] for row in servers.staleness(named)} == {0}
    figures = draw(report([named]))
    staleness = [f for name, f in figures.items() if "staleness" in name]
    assert all(len(figure.axes) >= 1 for figure in staleness)


def test_seconds_between_updates_need_two_of_them_and_not_the_first():
    later = [push for push in PUSHES if push[1] != 1]
    assert servers.shards(made(later))[0]["update_s"] is None
    shifted = [(server, update + 5 * (update > 0), *more) for server, update, *more in PUSHES]
    rows = [servers.shards(made(pushes))[0]["update_s"] for pushes in (PUSHES, shifted)]
    assert rows == [3.0, 3.0]


def test_arrivals_far_apart_are_drawn_on_a_logarithmic_axis():
    def scale(last_s):
        pushes = ((0, 1, 0, 1, 0, 0, 1, 4, 1.0, 1.0), (0, 1, 1, 1, 0, 0, 1, 4, last_s, 0.0))
        return draw(report([made(pushes, ranks=3)]))["arrivals-wall"].axes[0].get_yscale()

    assert (scale(19.0), scale(21.0)) == ("linear", "log")
