"""The straggler study: its cells, its runs, and the page made from its ledger."""

from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "study-stragglers"


pytestmark = pytest.mark.usefixtures("studies_on_the_path")


def test_a_short_run_of_every_rule_and_its_arrivals():
    from stragglers import SEED, WORKERS, played

    from mpisgd.report.servers import arrival_seconds

    ends = {}
    for backups, stale in ((0, "finish"), (4, "abandon")):
        cell = {"part": "run", "backups": backups, "stale": stale, "seed": SEED}
        pushes = played(cell, 2)
        place, seconds = arrival_seconds(pushes)
        used = pushes["used"] == 1
        assert used.sum() == 2 * (WORKERS - backups)
        last = seconds[place == WORKERS - backups]
        ends[backups] = (pushes["arrived_s"] + pushes["waited_s"])[used].max()
        np.testing.assert_allclose(last.sum(), ends[backups])
    assert ends[4] < ends[0]


def test_the_page_shows_the_ledgers_numbers():
    from command import Ledger
    from stragglers import cells, page

    ledger = Ledger(RESULTS / "runs.jsonl")
    assert all(cell in ledger for cell in cells())
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    assert page(text, ledger) == text
