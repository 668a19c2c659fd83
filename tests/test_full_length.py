"""The study of Table I at full length: how a rate is settled, and what is compared."""

import math
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


pytestmark = pytest.mark.usefixtures("studies_on_the_path")


def finished(ledger, cells, loss) -> None:
    for cell in cells:
        ledger.add(cell, {"loss": [9.0, loss(cell)]})


def test_a_rate_is_settled_once_its_neighbours_are_worse(tmp_path):
    """However far it lies from the screening's best; and results use no seed that chose it."""
    from command import Ledger
    from full_length import RATES, SEEDS, SETTLE, STEPS, TUNING, settled, wanted

    ledger, name = Ledger(tmp_path / "runs.jsonl"), "Local"
    assert [cell["rate"] for cell in wanted(ledger, name)] == list(RATES)
    finished(ledger, wanted(ledger, name), lambda cell: abs(math.log(cell["rate"] / 0.04)))
    steps = []
    while settled(ledger, name)[1] is None:
        missing = [cell for cell in wanted(ledger, name) if cell not in ledger]
        steps.append({cell["rate"] for cell in missing})
        finished(ledger, missing, lambda cell: abs(math.log(cell["rate"] / 0.01)))
    assert steps == [{0.02, 0.04, 0.08}, {0.01}, {0.005}]
    assert settled(ledger, name)[1] == 0.01
    results = wanted(ledger, name)
    assert {(cell["rate"], cell["steps"]) for cell in results} == {(0.01, STEPS)}
    assert [cell["seed"] for cell in results] == list(SEEDS)
    assert not set(SEEDS) & set(TUNING)
    assert SETTLE < STEPS


def test_a_rate_that_is_not_finite_is_not_chosen(tmp_path):
    from command import Ledger
    from full_length import RATES, SCREEN, SETTLE, choosing, settled

    ledger, name = Ledger(tmp_path / "runs.jsonl"), "Local"
    for rate in RATES:
        finished(ledger, choosing(name, rate, SCREEN), lambda cell: abs(cell["rate"] - 0.04))
    finished(ledger, choosing(name, 0.02, SETTLE), lambda cell: cell["rate"])
    finished(ledger, choosing(name, 0.04, SETTLE), lambda cell: cell["rate"])
    assert settled(ledger, name) == ([0.02, 0.04, 0.08], None)  # one is missing
    for cell in choosing(name, 0.08, SETTLE):
        ledger.add(cell, {"loss": [9.0], "failure": "not finite"})
    finished(ledger, choosing(name, 0.01, SETTLE), lambda cell: 1.0)
    assert settled(ledger, name) == ([0.01, 0.02, 0.04, 0.08], 0.02)


def test_those_in_dasgds_time_take_it_at_the_tuned_rate():
    """By the times of the committed runs of full length: within one step of theirs."""
    from command import Ledger
    from full_length import IN_TIME, STEPS, cell, settled, wanted

    ledger = Ledger(ROOT / "results" / "study-full-length" / "runs.jsonl")
    (until,) = ledger[cell("DaSGD, xi 0.25", 0.04, 1, STEPS)]["time_s"][-1:]
    for name, steps in IN_TIME.items():
        whole = name.partition(",")[0]
        step_s = ledger[cell(whole, 0.04, 1, STEPS)]["time_s"][-1] / STEPS
        assert abs(steps * step_s - until) < step_s
        shown = {(one["rate"], one["steps"]) for one in wanted(ledger, name)}
        assert shown == {(settled(ledger, whole)[1], steps)}


def test_differences_are_those_of_seeds_that_both_have():
    from full_length_figures import compared

    def lines(**accuracies):
        return [
            {"cell": {"seed": int(seed[1:])}, "test_accuracy": value, "test_loss": 1 - value}
            for seed, value in accuracies.items()
        ]

    found = {"one": lines(s3=0.5, s1=0.2, s2=0.4), "other": lines(s2=0.3, s3=0.5, s9=0.9)}
    (row,) = compared(found, [("one", "other"), ("one", "absent")])
    assert row["seeds"] == 2
    assert row["test accuracy, points"].startswith("5.0 ± 7.1 (")  # of 0 and 10
    assert row["test loss"].startswith("-0.050 ± 0.071 (")
    assert row["test loss"].endswith("not told apart)")


def test_at_the_even_ratio_both_take_equally_long():
    from full_length_figures import STEPS, ratio

    for steps, waits in ((1486, 0.0), (1800, 0.25), (2000, 1 / 16)):
        even = ratio(steps, waits)
        assert steps * (1 + even) == pytest.approx(STEPS * (1 + waits * even))


def test_the_corrected_rate_makes_as_much_of_a_step_as_locals(tmp_path):
    from command import Ledger
    from full_length import CORRECTED, SETTLE, choosing, wanted

    ledger = Ledger(tmp_path / "runs.jsonl")
    assert wanted(ledger, CORRECTED) == []
    finished(ledger, wanted(ledger, "Local"), lambda cell: abs(math.log(cell["rate"] / 0.04)))
    for rate in (0.02, 0.04, 0.08):
        finished(ledger, choosing("Local", rate, SETTLE), lambda c: abs(math.log(c["rate"] / 0.04)))
    assert {one["rate"] for one in wanted(ledger, "delta")} == {0.04}
    (rate,) = {one["rate"] for one in wanted(ledger, CORRECTED)}
    assert rate == pytest.approx(0.04 / (1 - 0.75 / 4), rel=1e-3)  # tau 4, d 1, xi 0.25


def test_the_outer_rate_that_is_best_in_short_runs_goes_on_alone(tmp_path):
    from command import Ledger
    from full_length import DILOCO, LOW, SETTLE, wanted

    ledger, (first, second, third) = Ledger(tmp_path / "runs.jsonl"), DILOCO
    short = wanted(ledger, first)
    assert {(one["name"], one["rate"]) for one in short} == {(n, r) for n in DILOCO for r in LOW}
    finished(ledger, short[:-1], lambda cell: 2 - (cell["name"] == second) + cell["rate"])
    assert wanted(ledger, second) == short
    finished(ledger, short[-1:], lambda cell: 2.0)
    assert wanted(ledger, first) == wanted(ledger, third) == []
    judging = wanted(ledger, second)
    assert {one["steps"] for one in judging} == {SETTLE}
    assert {one["rate"] for one in judging} == {0.00125, 0.0025, 0.005}


def test_what_varies_is_the_decay_or_the_workers_at_the_rate_of_the_rest():
    from command import Ledger
    from full_length import (
        BATCH,
        DECOUPLED,
        LONG,
        LONG_IN_TIME,
        RANKS,
        SCALED,
        STEPS,
        VARIANTS,
        WIDE,
        ranks,
        values,
        wanted,
    )

    from mpisgd.experiment.experiment import Experiment

    ledger = Ledger(ROOT / "results" / "study-full-length" / "runs.jsonl")
    for name, plain in (DECOUPLED | WIDE | SCALED).items():
        one, (whole, *_) = wanted(ledger, name)[0], wanted(ledger, plain)
        differ = {key for key, value in values(one).items() if values(whole).get(key) != value}
        Experiment.read(values(one))
        if name in DECOUPLED:
            assert differ == {"decoupled"}
            continue
        samples = one["steps"] * BATCH * ranks(name)
        assert 0 <= STEPS * BATCH * RANKS - samples < BATCH * ranks(name)  # equally many
        assert differ == {"steps", "evaluate_every", "step_time_s", *["rate"] * (name in SCALED)}
        assert one["rate"] / whole["rate"] == (ranks(name) / RANKS if name in SCALED else 1)
    for name, plain in LONG.items():  # at rates of their own
        one, whole = wanted(ledger, name)[0], wanted(ledger, plain)[0]
        differ = {key for key, value in values(one).items() if values(whole).get(key) != value}
        assert differ - {"rate"} == {"step_time_s"}
    (name,) = LONG_IN_TIME
    assert wanted(ledger, name)[0]["rate"] == wanted(ledger, next(iter(LONG)))[0]["rate"]
    assert {*WIDE, *SCALED, *DECOUPLED, *LONG, *LONG_IN_TIME} == {*VARIANTS}


def test_pairs_are_with_the_first_and_with_the_second():
    from full_length_figures import versus

    assert versus(["a", "b", "c"]) == [("b", "a"), ("c", "a"), ("c", "b")]


def test_the_committed_page_shows_what_its_runs_say():
    from command import Ledger
    from full_length_figures import page

    folder = ROOT / "results" / "study-full-length"
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert page(text, Ledger(folder / "runs.jsonl")) == text
    assert "not run\n" not in text
