"""The study that asks who wins from which t_c / t_p on."""

import math
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


pytestmark = pytest.mark.usefixtures("studies_on_the_path")


def test_steps_to_a_target_lie_between_evaluations():
    from crossover import steps_to

    line = {"evaluations": {"step": [8.0, 16.0], "accuracy": [0.5, 0.9]}}
    assert steps_to(line, 0.7) == pytest.approx(12.0)
    assert steps_to(line, 0.5) == pytest.approx(8.0)
    assert steps_to(line, 0.3) == pytest.approx(4.0)  # from 0.1, that of a guess
    assert math.isnan(steps_to(line, 0.91))


def test_the_quickest_is_told_apart_only_beyond_the_seeds():
    """Who needs fewer steps wins where averages are free; who averages less where they are dear."""
    from crossover import Way, winner

    often = Way({"algorithm": "minibatch"}, [10.0, 11.0, 12.0])
    seldom = Way({"algorithm": "local", "tau": 4}, [20.0, 21.0, 22.0])
    both = {"mini-batch": often, "Local": seldom}
    assert winner(both, 0.0) == ("mini-batch", True)
    assert winner(both, 8.0) == ("Local", True)
    near = {"mini-batch": often, "Local": Way(seldom.cell, [9.0, 12.0, 11.0])}
    assert winner(near, 0.0) == ("Local", False)


def test_times_are_those_of_the_virtual_clock():
    from crossover import Way

    import mpisgd

    told = {"model": "softmax", "steps": 66, "ranks": 4, "batch": 4, "network": "ethernet-10g"}
    told |= {"step_time_s": 2e-5, "progress": "perfect", "evaluate_every": 0}
    whole = mpisgd.run(algorithm="minibatch", **told).summary["time_s"]
    ratio = whole / 66 / 2e-5 - 1
    assert ratio > 2  # the delay below hides a part
    for cell in ({"algorithm": "local", "tau": 4}, {"algorithm": "dasgd", "tau": 4, "delay": 2}):
        (expected,) = Way(cell, [66.0]).times(ratio) * 2e-5
        assert mpisgd.run(**cell, **told).summary["time_s"] == pytest.approx(expected, rel=0.03)


def test_the_committed_page_shows_what_the_runs_say():
    from command import Ledger
    from crossover import page

    text = (ROOT / "results" / "study-crossover" / "README.md").read_text(encoding="utf-8")
    assert page(text, Ledger(ROOT / "results" / "study-mnist" / "runs.jsonl")) == text
    assert "not run" not in text
