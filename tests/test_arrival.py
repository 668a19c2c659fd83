"""Who comes last to averages: what the report says of it, what replays it, and schedules for it."""

import json

import numpy as np
import pytest

import mpisgd
from allreduce.algorithms import ORDERED, build
from allreduce.errors import ScheduleError
from allreduce.evaluate import evaluate
from allreduce.network import PRESETS
from allreduce.simulate import simulate
from allreduce.verify import verify
from mpisgd import cli
from mpisgd.bench.arrivals import Arrivals
from mpisgd.store.arrival import order, skews

TIMES = {"step_time_s": 0.01, "straggler": "2:2x", "network": "ideal", "steps": 8}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Of 4 virtual ranks, of which rank 2 takes twice as long; and one of servers."""
    folder = tmp_path_factory.mktemp("runs")
    options = {"local": {"tau": 4}, "minibatch": {}, "dasgd": {"tau": 4, "delay": 2}, "async": {}}
    for name, more in options.items():
        mpisgd.run(ranks=4, algorithm=name, **TIMES, **more, output=folder / f"{name}.h5")
    return folder


def said(capsys, *words):
    assert cli.main([*words, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("name", "averages", "late_s"), [("local", 2, 0.04), ("minibatch", 8, 0.01)]
)
def test_the_slow_rank_holds_up_all_others_by_what_it_is_slower(
    runs, capsys, name, averages, late_s
):
    """Nothing but compute takes time: by hand."""
    (row,) = said(capsys, "report", str(runs / f"{name}.h5"))["late"]
    assert (row["rank"], row["averages"], row["last"], row["last_share"]) == (
        2,
        averages,
        averages,
        1,
    )
    assert row["held_up_s"] == pytest.approx(averages * late_s)
    assert row["held_up_share"] == pytest.approx(0.5)
    assert row["late_s"] == pytest.approx(late_s)
    late = skews(str(runs / f"{name}.h5"), 4)
    expected = np.zeros((averages, 4))
    expected[:, 2] = late_s
    assert late == pytest.approx(expected, abs=1e-12)
    assert order(late) == [0, 1, 3, 2]


@pytest.mark.parametrize(
    ("name", "options", "steps_before"),
    [
        ("own.py:local", {"tau": 4}, [4, 4]),
        ("diloco", {"tau": 4}, [4, 4]),
        ("post-local", {"tau": 3, "switch": 2}, [1, 1, 3, 3]),
        ("post-local", {"tau": 4}, [1, 1, 1, 1, 4]),
    ],
)
def test_averages_are_where_the_algorithm_has_them(
    tmp_path, monkeypatch, name, options, steps_before
):
    """The slow rank is late by 10 ms for each step since the average before; own algorithms too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("from mpisgd.algorithms.averaging import local\n")
    mpisgd.run(ranks=4, algorithm=name, **TIMES, **options, output="run.h5")
    expected = np.zeros((len(steps_before), 4))
    expected[:, 2] = 0.01 * np.array(steps_before)
    assert skews("run.h5") == pytest.approx(expected, abs=1e-12)


def test_each_fragment_has_averages(tmp_path):
    """After steps 4 and 8 those of the first half, after step 6 that of the second."""
    options = {"tau": 4, "fragments": 2, "delay": 1}
    mpisgd.run(
        ranks=4, algorithm="streaming-diloco", **TIMES, **options, output=tmp_path / "run.h5"
    )
    assert len(skews(str(tmp_path / "run.h5"))) == 3


def test_where_nobody_is_last_or_nobody_waits_nothing_is_said(runs, tmp_path, capsys):
    mpisgd.run(ranks=4, algorithm="local", steps=8, output=tmp_path / "even.h5")
    page = said(capsys, "report", str(tmp_path / "even.h5"), str(runs / "async.h5"))
    assert "late" not in page
    page = said(capsys, "report", str(runs / "dasgd.h5"))
    assert [row["rank"] for row in page["late"]] == [2]


# Schedules for it


@pytest.mark.parametrize("name", ORDERED)
def test_schedules_are_right_in_any_order(name):
    for ranks in (*range(1, 18), 31, 64):
        for seed in (None, 1, 2):
            given = None
            if seed is not None:
                given = np.random.default_rng(seed).permutation(ranks)
            schedule = build(name, ranks, order=given)
            verify(schedule)
            vectors = [np.full(70, 1.0 + rank) for rank in range(ranks)]
            evaluate(schedule, vectors)
            assert all((v == ranks * (ranks + 1) / 2).all() for v in vectors)
    with pytest.raises(ScheduleError, match="each of 3 ranks once"):
        build(name, 3, order=[0, 0, 1])


@pytest.mark.parametrize("name", ORDERED)
@pytest.mark.parametrize("late", [0, 3])
def test_what_early_ranks_can_do_is_done_before_the_last_comes(name, late):
    """After a late arrival fewer rounds are left than when all come together; in the wrong order
    nothing is gained."""
    links, nbytes, start = PRESETS["ethernet-10g"], 1 << 20, np.zeros(6)
    start[late] = 1.0
    ranks = [rank for rank in range(6) if rank != late]
    right = simulate(build(name, 6, order=[*ranks, late]), nbytes, links, start=start).max() - 1
    wrong = simulate(build(name, 6, order=[late, *ranks]), nbytes, links, start=start).max() - 1
    together = simulate(build(name, 6), nbytes, links).max()
    assert right < together * 0.95
    assert right < wrong


# Replays


def test_the_simulator_counts_from_the_last_arrival(runs, capsys):
    words = ["simulate", "--algorithm", "tree,sorted-linear", "--bytes", "1MB", "--network",
             "ethernet-10g"]  # fmt: skip
    replayed = said(capsys, *words, "--arrival", str(runs / "local.h5"))
    tree, linear = (row["median_s"] for row in replayed)
    start = np.array([0, 0, 0.04, 0])
    links = PRESETS["ethernet-10g"]
    ends = simulate(build("tree", 4), 10**6, links, start=start)
    assert tree == pytest.approx(ends.max() - 0.04)
    assert linear < tree
    assert {row["ranks"] for row in replayed} == {4}


def test_the_run_that_is_replayed_is_not_written_over(runs, capsys):
    run = runs / "local.h5"
    before, words = run.read_bytes(), ["--goal", str(run), "--overwrite"]
    assert cli.main(["simulate", "--arrival", str(run), *words]) == 2
    assert "local.h5', which is read" in capsys.readouterr().err
    assert run.read_bytes() == before


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--ranks", "5"], "--ranks '5': 4, those of --arrival"),
        (["--skew", "1s"], "--skew '1s': not with --arrival"),
    ],
)
def test_mistakes_of_a_replay(runs, capsys, words, told):
    assert cli.main(["simulate", "--arrival", str(runs / "local.h5"), *words]) == 2
    assert told in capsys.readouterr().err
    assert cli.main(["simulate", "--arrival", str(runs / "async.h5")]) == 2
    assert "a run whose ranks average" in capsys.readouterr().err


def test_a_benchmark_is_late_as_the_run_was_and_counts_from_the_last(runs, monkeypatch):
    from mpisgd.bench import arrivals
    from mpisgd.values.errors import UsageError

    path = str(runs / "local.h5")
    with pytest.raises(UsageError, match="is of 4 ranks, and these are 3"):
        Arrivals(path, 3)
    late = Arrivals(path, 4)
    now, called = [0.0], []
    monkeypatch.setattr(
        arrivals.time, "perf_counter", lambda: now.append(now[-1] + 1e-4) or now[-1]
    )
    monkeypatch.setattr(arrivals.time, "sleep", lambda seconds: now.append(now[-1] + seconds))
    for rank, wait in ((0, 0.0), (2, 0.04)):
        now[:] = [0.0]
        late.delayed(rank, lambda: called.append(now[-1]))()
        assert wait <= called[-1] <= wait + 1e-3
    seconds = np.full((1, 5, 4), 0.05)
    assert late.since_last(seconds, warm_up=3) == pytest.approx(0.01)
