"""`benchmarks/gpu` runs on the double of a device, and its page tells what is wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from allreduce.testing import device

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "benchmarks" / "gpu"
STAND_IN = str(Path(device.__file__).parent.parent / "stand_in")


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(FOLDER)
    import page

    return page


def test_all_of_it_on_the_double(tmp_path):
    environment = os.environ | {"PYTHONPATH": STAND_IN, "DEVICE_DOUBLE_POLLS": "2"}
    done = subprocess.run(
        [sys.executable, str(FOLDER), str(tmp_path), "--small"],
        env=environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["facts"]["device"]["device_name"] == "a double", done.stdout
    assert [each for each in found["facts"]["checks"] if not each["holds"]] == []
    assert [(each["ranks"], each["wrong"]) for each in found["plans"]] == [(2, [])]
    assert found["plans"][0]["runs"] > 16
    assert {row["chunks"] for row in found["rows"]} == {1, 8}
    assert not any(row["wrong"] for row in found["rows"])
    assert {row["polls"] for row in found["overlap"]} == {0, 16, 256, None}
    failed = [part["part"] for part in found["parts"] if part["failed"]]
    assert failed in ([], ["step-torch"])  # which needs PyTorch
    assert [(run["first"], run["last"], run["right"]) for run in found["training"]] == [
        (0, 0, True)
    ]
    text = (tmp_path / "gpu.md").read_text()
    assert all(part["part"] in text for part in found["parts"])


ROW = {"bytes": 1 << 20, "ranks": 2, "algorithm": "ring", "wrong": 0}
GOOD: dict[str, Any] = {
    "facts": {"checks": [{"holds": True}]},
    "parts": [{"failed": ""}],
    "plans": [{"wrong": [], "copies_s": {"1048576": 1.0}}, {"wrong": [], "copies_s": {}}],
    "rows": [ROW | {"median_s": 3.3}, ROW | {"median_s": 9.0}],
    "host": [ROW | {"median_s": 2.0}],
    "overlap": [
        {"bytes": 1 << 20, "hidden": 0.95, "dilation": 1.01},
        {"bytes": 1 << 20, "hidden": 0.99, "dilation": 1.5},
    ],
    "training": [{"right": True}],
    "steps": {"mlp": 1.2, "torch": 1.0},
}


def test_goals_are_told_by_their_worst_figure(page):
    worst = [(goal["worst"], goal["met"]) for goal in page.goals(GOOD)]
    assert worst == [(pytest.approx(1.1), True), (0.95, True), (pytest.approx(1.2), False)]
    nothing = GOOD | {"rows": [], "overlap": [], "steps": {}}
    assert [(goal["worst"], goal["met"]) for goal in page.goals(nothing)] == [(None, None)] * 3


@pytest.mark.parametrize(
    "fault",
    [
        {"facts": None},
        {"facts": {"checks": [{"holds": False}]}},
        {"parts": [{"failed": "exit code 1"}]},
        {"plans": [None]},
        {"plans": [{"wrong": [{"name": "ring"}]}]},
        {"rows": [ROW | {"wrong": 3}]},
        {"training": [{"right": False}]},
        {"training": [{}]},
    ],
)
def test_each_fault_is_one(page, fault):
    assert not page.broken(GOOD)
    assert page.broken(GOOD | fault)
