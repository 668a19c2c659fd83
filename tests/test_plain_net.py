"""The study of a network without batch normalisation: what is compared, at which rates."""

from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.usefixtures("studies_on_the_path")


def finished(ledger, cells, best) -> None:
    """Loss grows by the factor between the rate and the best."""
    for cell in cells:
        factor = max(cell["rate"] / best, best / cell["rate"])
        ledger.add(cell, {"loss": [9.0, factor]})


def test_all_settings_compute_equally_many_samples_and_are_experiments():
    from plain_net import ABLATED, BASE, SAMPLES, TABLE, halves, steps, values

    from mpisgd.experiment.experiment import Experiment

    for setting in chain(TABLE, *ABLATED.values()):
        assert steps(setting) * setting["ranks"] * setting["batch"] == SAMPLES
        Experiment.read(values(setting | {"rate": 0.1, "seed": 1}))
    for cell in halves():
        Experiment.read(values(cell))
    assert all(BASE in several for several in ABLATED.values())
    assert BASE in TABLE


def test_halves_are_as_long_as_those_of_the_residual_net_on_their_seeds():
    import full_length
    from command import Ledger
    from plain_net import halves

    ledger = Ledger(ROOT / "results" / "study-full-length" / "runs.jsonl")
    ours, theirs = (
        {(cell["seed"], cell["rate"], cell["steps"]) for cell in cells}
        for cells in (halves(), full_length.halves(ledger))
    )
    assert ours == theirs


def test_rates_are_judged_on_a_seed_of_their_own_then_results_follow(tmp_path):
    from command import Ledger
    from plain_net import BASE, SEEDS, TUNING, common, own

    ledger = Ledger(tmp_path / "runs.jsonl")
    assert common(ledger) == []
    judging = own(ledger, [BASE])
    assert {cell["seed"] for cell in judging} == {TUNING}
    finished(ledger, judging, 0.1)
    (more,) = (cell for cell in own(ledger, [BASE]) if cell not in ledger)
    assert more == BASE | {"rate": 0.16, "seed": TUNING}
    finished(ledger, [more], 0.1)
    assert own(ledger, [BASE], SEEDS[:3]) == [BASE | {"rate": 0.08, "seed": s} for s in (1, 2, 3)]
    assert {cell["rate"] for cell in common(ledger)} == {0.08}
    assert TUNING not in {cell["seed"] for cell in common(ledger)}


def test_the_committed_page_shows_what_its_runs_say():
    from command import Ledger
    from plain_net_figures import page

    folder = ROOT / "results" / "study-plain-net"
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert page(text, Ledger(folder / "runs.jsonl")) == text
    assert "not run\n" not in text
