"""The study of scaling: steps and seconds apart, and what their product stands for."""

import math
from pathlib import Path

import pytest

import mpisgd
from allreduce.algorithms import build
from allreduce.network import network
from allreduce.simulate import simulate

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.usefixtures("studies_on_the_path")


def test_a_rate_settles_where_both_neighbours_need_more_steps(tmp_path):
    """However far from the guess; results use no seed that chose it."""
    from command import Ledger
    from scaling import SEEDS, TUNING, cell, result_cells, settled

    ledger, tried = Ledger(tmp_path / "runs.jsonl"), []
    asked = "weak", "Local", 16
    while settled(ledger, *asked)[1] is None:
        assert result_cells(ledger, *asked) == []
        for rate in settled(ledger, *asked)[0]:
            if (one := cell(*asked, rate, TUNING)) not in ledger:
                tried.append(rate)
                step = 100 + 50 * abs(math.log2(rate / 0.4))
                ledger.add(one, {"evaluations": {"step": [step], "accuracy": [0.96]}})
    assert tried == [0.025, 0.05, 0.1, 0.2, 0.4, 0.8]
    cells = result_cells(ledger, *asked)
    assert [(one["rate"], one["seed"]) for one in cells] == [(0.4, seed) for seed in SEEDS]
    assert TUNING not in SEEDS
    assert result_cells(ledger, "weak", "overlapped", 16) == []  # as mini-batch, which has none


def test_who_misses_the_target_is_worse_than_who_comes_to_it_late():
    from scaling import score

    late = {"evaluations": {"step": [10.0, 200.0], "accuracy": [0.2, 0.93]}}
    missed = {"evaluations": {"step": [10.0, 200.0], "accuracy": [0.2, 0.92]}}
    far = {"evaluations": {"step": [200.0], "accuracy": [0.3]}}
    scores = [score(line, 200) for line in (late, missed, far, {**far, "failure": "not finite"})]
    assert scores == sorted(scores)
    assert scores[0] == pytest.approx(200)
    assert len(set(scores)) == 4


@pytest.mark.parametrize("link", ["10 Gbit/s", "100 Gbit/s"])
@pytest.mark.parametrize("allreduce", ["tree", "halving-doubling"])
def test_a_small_net_on_slow_links_takes_what_the_large_one_takes(link, allreduce):
    from scaling import SMALL, priced, slowed

    links = network(slowed(link, SMALL))
    schedule = build(allreduce, 16, links.nodes(16))
    small = simulate(schedule, 4 * SMALL, links, itemsize=4).max()
    assert small == pytest.approx(priced(link, allreduce, 16), rel=0.1)  # ties


@pytest.mark.parametrize("name", ["mini-batch", "Local", "DaSGD d=1", "DaSGD d=3"])
def test_seconds_of_a_step_are_those_of_the_virtual_clock(name):
    from scaling import compute_s, priced, run_time, step_s, time_cell

    asked = 16, "10 Gbit/s", "tree"
    assert priced("10 Gbit/s", "tree", 16) > compute_s("weak", 16)  # d = 1 hides a part only
    told = run_time(time_cell(name, *asked))["step_s"]
    ranks, link, allreduce = asked
    assert step_s(name, "weak", ranks, link, allreduce) == pytest.approx(told, rel=1e-2)


def test_nobody_wins_where_one_that_missed_the_target_could_be_quicker(tmp_path):
    from command import Ledger
    from scaling import SEEDS, TUNING, cell, settled, shown
    from scaling_figures import Times, winner_rows

    ledger = Ledger(tmp_path / "runs.jsonl")
    for name, ranks in [("mini-batch", 1)] + [(name, 64) for name in shown("weak")]:
        last, accuracy = (240.0, 0.93) if name == "mini-batch" else (250.0, 0.92)
        line = {"evaluations": {"step": [last], "accuracy": [accuracy]}}
        while settled(ledger, "weak", name, ranks)[1] is None:
            for rate in settled(ledger, "weak", name, ranks)[0]:
                far = 1 + (rate - 0.1) ** 2  # so that a rate settles
                ledger.add(
                    cell("weak", name, ranks, rate, TUNING),
                    {"evaluations": {"step": [last * far], "accuracy": [accuracy / far]}},
                )
        rate = settled(ledger, "weak", name, ranks)[1]
        for seed in SEEDS:
            ledger.add(cell("weak", name, ranks, rate, seed), line)
    (row,) = (
        row
        for row in winner_rows(Times(ledger), 0.93)
        if (row["scaling"], row["workers"]) == ("weak", 64) and "tree" in row["all-reduce"]
    )
    assert row["1 Gbit/s"] == "open"  # Local averages less often
    (late,) = (
        row
        for row in winner_rows(Times(ledger), 0.92)
        if (row["scaling"], row["workers"]) == ("weak", 64) and "tree" in row["all-reduce"]
    )
    assert "open" not in late.values()


def test_models_do_not_depend_on_what_averages_take():
    told = {"model": "softmax", "algorithm": "dasgd", "delay": 3, "steps": 13, "ranks": 4}
    slow = mpisgd.run(**told, network="lab", progress="perfect", step_time_s=1e-6)
    free = mpisgd.run(**told, progress="perfect", step_time_s=1.0)
    assert slow.steps["wait_s"].max() > 0 == free.steps["wait_s"].max()
    assert slow.evaluation["loss"].tobytes() == free.evaluation["loss"].tobytes()


def test_the_committed_page_shows_what_its_runs_say():
    from command import Ledger
    from scaling_figures import page

    folder = ROOT / "results" / "study-scaling"
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert page(text, Ledger(folder / "runs.jsonl")) == text
    assert "not run" not in text
