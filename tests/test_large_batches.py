"""The study of large batches: what is compared, at which rates, and its page."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "results" / "study-large-batches"

pytestmark = pytest.mark.usefixtures("studies_on_the_path")


def finished(ledger, cells, best) -> None:
    """Loss grows by the factor between the rate and the best."""
    for cell in cells:
        ledger.add(cell, {"loss": [max(cell["rate"] / best, best / cell["rate"])]})


def test_all_runs_compute_equally_many_samples_and_are_experiments():
    from large_batches import BATCHES, LEAST, NAMES, RANKS, SAMPLES, cell, steps, values

    from mpisgd.experiment.experiment import Experiment

    for total in (LEAST, *BATCHES):
        for name in NAMES:
            told = values(cell(name, total, 0.1, 1))
            assert told["steps"] * told["batch"] * RANKS == SAMPLES
            Experiment.read(told)
            assert (told["warm_up"] > 0) == (name == "mini-batch, scaled rate, warm-up")
            assert told["warm_up"] < steps(total) / 4


def test_scaled_rates_are_the_least_batchs_times_the_factor(tmp_path):
    from command import Ledger
    from large_batches import LEAST, NAMES, SEEDS, TUNED, TUNING, rate_of, settled, wanted

    ledger = Ledger(tmp_path / "runs.jsonl")
    while settled(ledger, "mini-batch", LEAST)[1] is None:
        cells = wanted(ledger, LEAST, SEEDS)
        assert {cell["seed"] for cell in cells} == {TUNING}
        finished(ledger, [cell for cell in cells if cell not in ledger], 0.1)
    assert {cell["seed"] for cell in wanted(ledger, LEAST, SEEDS)} == set(SEEDS)
    least = rate_of(ledger, "mini-batch", LEAST)
    for name in NAMES:
        scaled = None if name in TUNED else least * 4
        assert rate_of(ledger, name, 4 * LEAST) == scaled


def test_the_committed_page_shows_what_its_runs_say():
    from command import Ledger
    from large_batches import page

    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert page(text, Ledger(FOLDER / "runs.jsonl")) == text
    assert "not run\n" not in text
