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
    from full_length import SCREEN, best, choosing

    ledger = Ledger(tmp_path / "runs.jsonl")
    finished(ledger, choosing("delta", 0.1, SCREEN), lambda cell: 1.0)
    assert best(ledger, "delta", [0.1, 0.2], SCREEN) is None  # one is missing
    (cell,) = choosing("delta", 0.2, SCREEN)
    ledger.add(cell, {"loss": [9.0], "failure": "not finite"})
    assert best(ledger, "delta", [0.1, 0.2], SCREEN) == 0.1


def test_the_corrected_rate_makes_as_much_of_a_step_as_locals(tmp_path):
    from command import Ledger
    from full_length import CORRECTED, SETTLE, choosing, wanted

    ledger = Ledger(tmp_path / "runs.jsonl")
    assert wanted(ledger, CORRECTED) == []
    finished(ledger, wanted(ledger, "Local"), lambda cell: abs(math.log(cell["rate"] / 0.04)))
    for rate in (0.02, 0.04, 0.08):
        finished(ledger, choosing("Local", rate, SETTLE), lambda c: abs(math.log(c["rate"] / 0.04)))
    (rate,) = {one["rate"] for one in wanted(ledger, CORRECTED)}
    assert rate == pytest.approx(0.04 / (1 - 0.75 / 4), rel=1e-3)  # tau 4, d 1, xi 0.25


def test_accuracy_at_equal_time_lies_on_the_line_between_evaluations():
    from full_length_figures import at_time

    line = {"time_s": [1.0, 2.0], "accuracy": [0.3, 0.5]}
    assert at_time(line, 1.5) == pytest.approx(0.4)
    assert at_time(line, 0.5) == pytest.approx(0.2)  # from 0.1, that of a guess


def test_the_committed_page_shows_what_its_runs_say():
    from command import Ledger
    from full_length_figures import page

    folder = ROOT / "results" / "study-full-length"
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert page(text, Ledger(folder / "runs.jsonl")) == text
    assert "not run\n" not in text
