"""The study of partial rounds: its cells, and the page made from its ledger."""

from pathlib import Path

import pytest

from mpisgd.experiment.experiment import Experiment

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "study-partial"


pytestmark = pytest.mark.usefixtures("studies_on_the_path")


def test_every_cell_is_an_experiment_of_32_workers():
    from partial import KINDS, WORKERS, cells_of, deep, ranks, timed, values

    for cell in [*timed(), *deep(), *(cell for name in KINDS for cell in cells_of(name))]:
        experiment = Experiment.read({"rate": 0.1, **values(cell)}).resolved(ranks(cell), 1000)
        assert experiment.workers == WORKERS


def test_the_page_shows_the_ledgers_numbers():
    from command import Ledger
    from partial import TRAINED, deep, page, real, timed, tuned

    ledger = Ledger(RESULTS / "runs.jsonl")
    cells = tuned(ledger)
    assert {cell["name"] for cell in cells} == set(TRAINED)
    assert all(cell in ledger for cell in [*cells, *timed(), *deep(), *real()])
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    assert page(text, ledger) == text
