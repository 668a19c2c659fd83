"""Advice on backups: update times against closed forms and against the servers themselves."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from server_runs import served

from mpisgd.experiment.stragglers import parse
from mpisgd.predict import backup_advice, backups, measured
from mpisgd.predict.backups import (
    BURN_IN,
    Times,
    exact,
    finishing,
    of_distribution,
    of_measured,
    play,
    splits,
)
from mpisgd.predict.curves import curve
from mpisgd.store.writer import Writer
from mpisgd.values.errors import UsageError


def one(straggler, machines, stale, needed):
    return exact(straggler, machines, stale, np.array([needed]))[0]


# --- the time of an update ----------------------------------------------------------------------


def test_closed_forms_have_their_known_values():
    assert one("exponential", 100, "finish", 96) == pytest.approx(3.22598, abs=1e-5)
    assert one("exponential", 8, "finish", 7) == pytest.approx(1.93259, abs=1e-5)
    assert one("exponential", 100, "abandon", 96) == pytest.approx(3.10404, abs=1e-5)
    assert one("exponential", 8, "abandon", 7) == pytest.approx(1.71786, abs=1e-5)
    for stale in backups.STALE:
        assert one("exponential", 100, stale, 100) == pytest.approx(5.187, abs=1e-3)
        assert one(None, 9, stale, 4) == 1
    assert one("shifted:0.25", 100, "abandon", 96) == pytest.approx(0.75 + 3.10404 / 4, abs=1e-5)
    assert one("pareto:3", 1, "abandon", 1) == pytest.approx(1.5)
    assert one("pareto:0.9", 5, "abandon", 5) == math.inf
    assert one("pareto:0.9", 5, "abandon", 4) < math.inf


@pytest.mark.parametrize(
    ("text", "stale"),
    [
        ("lognormal:0.5", "abandon"), ("pareto:2:0.5", "abandon"), ("3:2x", "abandon"),
        ("exponential,0:2x", "abandon"), ("shifted:0.5", "finish"), ("pareto:2", "finish"),
    ],
)  # fmt: skip
def test_what_has_no_closed_form_is_not_made_up(text, stale):
    assert exact(text, 4, stale, np.arange(1, 5)) is None


@pytest.mark.parametrize("stale", backups.STALE)
def test_sampling_agrees_with_the_closed_forms(stale):
    generator, needed = np.random.default_rng(5), splits(12)
    replicas = play(generator.exponential(size=(32, 300, 12)), needed, stale)
    closed = exact("exponential", 12, stale, needed)
    error = replicas.std(axis=0) / np.sqrt(32)
    assert (np.abs(replicas.mean(axis=0) - closed) < 4 * error).all()
    assert error.max() < 0.02 * closed.max()


def test_sampling_agrees_with_the_pareto_tail():
    generator = np.random.default_rng(6)
    replicas = play(1 + generator.pareto(3, size=(32, 400, 10)), splits(10), "abandon")
    closed = exact("pareto:3", 10, "abandon", splits(10))
    np.testing.assert_allclose(replicas.mean(axis=0), closed, rtol=0.03)


@pytest.mark.parametrize(("needed", "spare"), [(6, 2), (3, 5), (7, 1)])
def test_finishing_is_what_the_servers_do(needed, spare):
    """The same draws in the virtual world: the same seconds, update for update."""
    machines, updates = needed + spare, 60
    rule = parse("exponential", 7)
    drawn = [[rule.factor(m, k) for m in range(machines)] for k in range(1, 500)]
    found = finishing(np.array([drawn]), needed, updates)[0]
    run = served(
        machines + 1, algorithm="backup", backups=spare, stale="finish", straggler="exponential",
        seed=7, steps=BURN_IN + updates, data_samples=1000, batch=1,
    )  # fmt: skip
    made = {row["update"]: row["arrived_s"] + row["waited_s"] for row in run.rows if row["used"]}
    expected = (made[BURN_IN + updates] - made[BURN_IN]) / updates
    assert found == pytest.approx(expected, rel=1e-12)


def test_machines_that_are_always_slow():
    slow = np.ones((1, 8, 4)) * np.array([1, 1, 1, 5.0])
    assert [finishing(slow, needed)[0] for needed in (1, 2, 3, 4)] == [1, 1, 1, 5]
    dead = slow * np.array([1, 1, 1, math.inf])
    assert [finishing(dead, needed)[0] for needed in (3, 4)] == [1, math.inf]
    assert play(dead, np.array([3, 4]), "abandon").tolist() == [[1, math.inf]]


def test_of_many_machines_some_splits_are_looked_at():
    assert splits(128).tolist() == list(range(1, 129))
    many = splits(1000)
    assert many[0] == 1
    assert many[-64:].tolist() == list(range(937, 1001))
    assert len(many) <= backups.MOST_SPLITS
    assert all(a < b for a, b in pairwise(many.tolist()))


def test_the_same_seed_gives_the_same_times_and_the_next_others():
    words = ("lognormal:0.5", 2.0, 5, "finish")
    first, again, other = (of_distribution(*words, seed, 256) for seed in (1, 1, 2))
    assert first.method == "sampled"
    np.testing.assert_array_equal(first.replicas, again.replicas)
    assert not np.array_equal(first.replicas, other.replicas)
    half = of_distribution("lognormal:0.5", 1.0, 5, "finish", 1, 256)
    np.testing.assert_allclose(first.mean, 2 * half.mean)


# --- what was measured --------------------------------------------------------------------------


def test_as_many_machines_as_measured_are_those_machines():
    pools = [np.full(20, value) for value in (1.0, 1.0, 1.0, 5.0)]
    times = of_measured(pools, 4, "finish", draws=128)
    assert times.method == "measured"
    assert times.mean.tolist() == [1, 1, 1, 5]
    more = of_measured(pools, 12, "finish", draws=128)
    assert more.mean[-1] > more.mean[0] == 1  # some replicas have a slow one, none has none fast


def test_seconds_of_a_recorded_run_are_those_of_its_draws(tmp_path):
    run = served(5, algorithm="async", straggler="exponential", seed=3, steps=30, batch=1)
    path = tmp_path / "a.h5"
    with Writer(
        path, kind="train", config={"algorithm": "async"}, environment={}, ranks=5
    ) as store:
        store.updates(run.rows)
        store.complete({})
    rule = parse("exponential", 3)
    pools = measured.gradient_seconds(str(path))
    assert len(pools) == 4
    for worker, pool in enumerate(pools):
        drawn = [rule.factor(worker, step) for step in range(2, 2 + len(pool))]
        np.testing.assert_allclose(pool, drawn, rtol=1e-9)


ROW = {"server": 0, "update": 1, "version_read": 0, "staleness": 0, "used": 1, "waited_s": 0.5}


def recorded(path, given_up=0, steps=40, servers=2, algorithm="backup"):
    """Two workers; the second takes 2 s a gradient, the first 1 s; answers come 0.5 s later."""
    rows = [
        ROW | {
            "server": server, "worker": worker, "step": step, "samples": int(step > given_up),
            "arrived_s": (1 + worker + 0.5) * step - 0.5 - 0.25 * server,
            "waited_s": 0.5 + 0.25 * server,
        }
        for server in range(servers) for worker in range(2) for step in range(1, steps + 1)
    ]  # fmt: skip
    config = {"algorithm": algorithm}
    with Writer(path, kind="train", config=config, environment={}, ranks=4) as store:
        store.updates(rows)
        store.complete({})
    return str(path)


def test_with_shards_a_gradient_has_come_with_its_last_part(tmp_path):
    pools = measured.gradient_seconds(recorded(tmp_path / "a.h5"))
    assert [set(pool.round(12).tolist()) for pool in pools] == [{1.0}, {2.0}]
    assert [len(pool) for pool in pools] == [39, 39]


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"given_up": 20}, "--stale finish"),
        ({"steps": 5}, "10 gradients of each worker"),
        ({"steps": 0, "algorithm": "local"}, "a run of local on 4 ranks; needed: a run with"),
    ],
)
def test_files_that_do_not_tell_are_refused(tmp_path, how, told):
    path = recorded(tmp_path / "a.h5", **how)
    with pytest.raises(UsageError, match=told):
        measured.gradient_seconds(path)


# --- the curve of iterations, and the best split ------------------------------------------------


def test_the_curve_of_the_paper():
    chen = curve("chen", 100)
    assert chen.iterations(50) == pytest.approx(137.5e3)
    assert chen.iterations(100) == pytest.approx(76.2e3)
    assert chen.iterations(96) == pytest.approx(78.9e3, rel=1e-3)
    assert math.log2(chen.iterations(50) / chen.iterations(25)) == pytest.approx(-0.852, abs=1e-3)
    assert [chen.extrapolated(n) for n in (49, 50, 100, 101)] == [True, False, False, True]


def test_curves_that_are_models_are_relative_to_all_machines():
    for text, ten in {
        "power:1": 4.0,
        "power:0.5": 2.0,
        "critical:40": 2.5,
        "critical:0": 1,
    }.items():
        model = curve(text, 40)
        assert model.iterations(40) == pytest.approx(1)
        assert model.iterations(10) == pytest.approx(ten)
        assert model.extrapolated(10) is None


def test_points_are_read_from_text_and_from_files(tmp_path):
    by_name, by_row = tmp_path / "a.json", tmp_path / "b.json"
    by_name.write_text(json.dumps({"2": 100, "8": 25, "4": 60}))
    rows = [(2, 90), (2, 110), (8, 25), (4, 60)]
    by_row.write_text(json.dumps([{"needed": n, "iterations": i, "x": 1} for n, i in rows]))
    for text in ("4:60,2:100,8:25", str(by_name), str(by_row)):
        found = curve(text, 8)
        assert [found.iterations(n) for n in (2, 4, 8)] == pytest.approx([100, 60, 25])
        assert found.iterations(16) == pytest.approx(25 * 25 / 60)


@pytest.mark.parametrize(
    "text",
    ["", "50", "50:0,60:1", "50:1", "50:1,50:2", "a:1,2:3", "power", "power:-1", "power:nan",
     "critical:x", "none.json", "1.5:3,2:2"],
)  # fmt: skip
def test_curves_refuse(text):
    with pytest.raises(UsageError, match="--iterations"):
        curve(text, 8)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", "3", '{"a": 1, "2": 2}', '[{"needed": 2, "iterations": null}]',
                '[{"iterations": 2}]', "[" * 100000]
)  # fmt: skip
def test_files_of_other_things_are_no_curves(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(UsageError, match=r"a\.json"):
        curve(str(tmp_path / "a.json"), 8)


def test_the_best_split_and_its_margins():
    times = Times(np.arange(1, 5), np.array([1.0, 1.1, 1.5, 4.0]), "exact")
    rows = backups.rows(times, lambda n: 100 / n)
    assert [row["backups"] for row in rows] == [3, 2, 1, 0]
    assert [row["converge_s"] for row in rows] == [100, pytest.approx(55), 50, 100]
    assert [row["best"] for row in rows] == [False, False, True, False]
    assert [row["over_best"] for row in rows] == [1, pytest.approx(0.1), 0, 1]
    assert all(row["over_best_low"] == row["over_best"] for row in rows)


def test_margins_are_surer_than_times():
    """Replicas that are slow are slow for every N: the ratio of two N hardly scatters."""
    speeds = np.random.default_rng(1).uniform(0.5, 1.5, size=(32, 1))
    replicas = speeds * np.array([1.0, 1.2, 2.0])
    times = Times(np.arange(1, 4), replicas.mean(axis=0), "sampled", replicas)
    best, other = (backups.rows(times, lambda n: 1 / n)[i] for i in (1, 2))
    assert best["best"]
    assert best["converge_high_s"] / best["converge_low_s"] > 1.1
    assert other["over_best"] == pytest.approx(1 / 9)
    assert other["over_best_high"] - other["over_best_low"] < 1e-9


def test_a_split_that_never_ends_is_not_the_best():
    times = of_distribution("pareto:0.5", 1.0, 6, "abandon")
    rows = backups.rows(times, lambda n: 1 / n)
    assert rows[-1]["converge_s"] == math.inf
    assert next(row for row in rows if row["best"])["converge_s"] < math.inf


# --- the command --------------------------------------------------------------------------------


def test_beyond_many_machines_the_recursion_gives_way_to_draws():
    """Its work grows with the square of the machines; both agree where both are to be had."""
    most = backups.MOST_EXACT
    assert exact("exponential", most + 1, "finish", np.array([most])) is None
    assert exact("exponential", most + 1, "abandon", np.array([most])) is not None
    assert of_distribution("exponential", 1, most, "finish", draws=64).method == "exact"


def test_machines_of_a_trace_repeat_it(tmp_path):
    """Rank r has column r of as many as there are: here the slow one is every other machine."""
    path = tmp_path / "trace.csv"
    path.write_text("1, 4\n1, 2  # and again\n")
    times = of_distribution(f"trace:{path}", 0.5, 4, "abandon", draws=640)
    assert times.method == "sampled"
    assert times.mean.tolist() == pytest.approx([0.5, 0.5, 1.5, 1.5])


def test_runs_of_numbers_are_told_by_their_ends():
    assert backup_advice._spans([3, 5, 6, 7, 9, 10]) == "3, 5 to 7, 9 to 10"
