"""The studies of Chen et al.: the MNIST CNN, hours and epochs, PixelCNN; and how rates settle."""

import importlib
import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mpisgd.experiment.experiment import Experiment

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
SHARED = Path(os.environ.get("MPISGD_DATA", ROOT.parent / "shared" / "data"))

pytestmark = pytest.mark.usefixtures("studies_on_the_path")
needs_mnist = pytest.mark.skipif(
    not (SHARED / "mnist").is_dir(), reason="no MNIST files: set MPISGD_DATA to their parent"
)


def test_a_rate_is_settled_once_both_its_neighbours_are_worse():
    from settling import settled

    known: dict[float, float] = {}

    def optimum(rate: float) -> float:
        return abs(math.log2(rate / 0.1))

    asked = []
    while (found := settled(0.4, known.get))[1] is None:
        missing = [rate for rate in found[0] if rate not in known]
        asked.append(missing)
        known |= {rate: optimum(rate) for rate in missing}
    assert asked == [[0.2, 0.4, 0.8], [0.1], [0.05]]
    assert found == ([0.05, 0.1, 0.2, 0.4, 0.8], 0.1)
    above = settled(1.0, lambda rate: -rate if rate < 8 else math.inf)
    assert above == ([0.5, 1.0, 2.0, 4.0, 8.0], 4.0)  # up too, and not to one that does not train


def test_a_mean_loss_waits_for_all_seeds_and_is_infinite_if_one_failed(tmp_path):
    from command import Ledger
    from settling import mean_loss

    ledger = Ledger(tmp_path / "runs.jsonl")
    cells = [{"rate": 0.1, "seed": seed} for seed in (101, 102)]
    ledger.add(cells[0], {"loss": [9.0, 1.0]})
    assert mean_loss(ledger, cells) is None
    ledger.add(cells[1], {"loss": [9.0, 2.0]})
    assert mean_loss(ledger, cells) == 1.5
    ledger.add(cells[1], {"loss": [9.0], "failure": "not finite"})
    assert mean_loss(ledger, cells) == math.inf


def test_values_that_are_not_finite_are_told_beside_the_mean_of_the_rest():
    from pages import banded

    assert banded([1.0, 3.0], 1) == "2.0 ± 12.7"  # Student's t of two values
    assert banded([1.0, 3.0, math.nan], 1) == "2.0 ± 12.7 (1 of 3 not finite)"
    assert banded([math.nan], 1) == "not finite"


def test_ages_are_run_at_their_own_rates_and_at_others(tmp_path):
    from cnn_stale import ENDS, FEW, SEEDS, TUNING, crossed, rate_of, wanted
    from command import Ledger

    ledger = Ledger(tmp_path / "runs.jsonl")
    assert crossed(ledger) == []
    for s, best in zip(ENDS, (0.05, 0.0125), strict=True):
        while rate_of(ledger, s)[1] is None:
            missing = [cell for cell in wanted(ledger, s) if cell not in ledger]
            assert {cell["seed"] for cell in missing} == set(TUNING)
            for cell in missing:
                ledger.add(cell, {"ema_loss": [abs(math.log(cell["rate"] / best))]})
        assert rate_of(ledger, s)[1] == best
        assert [cell["seed"] for cell in wanted(ledger, s)] == list(SEEDS)
    assert not set(SEEDS) & set(TUNING)
    rates = {(cell["name"], cell["rate"]) for cell in crossed(ledger)}
    assert rates == {("s = 0", 0.0125), *((f"s = {s}", 0.05) for s in (5, 10, 20, 50))}
    assert {cell["seed"] for cell in crossed(ledger)} == set(FEW) <= set(SEEDS)


def test_averages_look_back_the_papers_share_of_the_run():
    from cnn_stale import BATCH, EPOCHS, SAMPLES, STARTS, cell, ranks, split, updates, values

    for name in STARTS:
        kind, count = split(name)
        given = values(cell(name, 0.1, 1))
        resolved = Experiment.read(given).resolved(ranks(name), SAMPLES)
        workers = 1 if kind == "s" else count
        assert given["steps"] * BATCH * workers == EPOCHS * SAMPLES
        if workers == 1:
            assert resolved.staleness == count
            assert resolved.ramp == 3 * SAMPLES // BATCH
        else:
            assert (resolved.workers, resolved.step_workers) == (count, count)
            assert updates(name) * resolved.update_gradients == given["steps"] * count
        share = 1 / (1 - given["ema"]) / updates(name)
        assert share == pytest.approx(10_000 / 46_875, rel=1e-2)


@needs_mnist
def test_a_run_of_a_result_seed_is_judged_by_the_test_images_alone(monkeypatch):
    import cnn_stale

    validation, final = (
        replace(part, test_inputs=part.test_inputs[:64], test_targets=part.test_targets[:64])
        for part in cnn_stale.load(str(SHARED / "mnist"))
    )
    images = [
        {image.tobytes() for image in inputs}
        for inputs in (final.train_inputs, validation.test_inputs, final.test_inputs)
    ]
    assert not images[0] & images[1] | images[0] & images[2] | images[1] & images[2]
    monkeypatch.setattr(cnn_stale, "UPDATES", 40)
    results = [
        cnn_stale.run_cell(cnn_stale.cell("s = 5", 0.05, seed), (validation, final))
        for seed in (1, 101)
    ]
    for result in results:
        assert result["samples_computed"] == [40 * 32]
        assert 0 < result["ema_loss"][0] < 3
    assert results[0]["loss"] != results[1]["loss"]
    free = cnn_stale.run_cell(cnn_stale.cell("async, 8", 0.05, 1), (validation, final))
    assert free["samples_computed"][0] >= 40 * 32
    assert 2 < free["staleness_mean"] < 7 <= free["staleness_most"]  # of 40 updates 8 begin at 0
    waits = cnn_stale.run_cell(cnn_stale.cell("sync, 8", 0.05, 1), (validation, final))
    assert waits["staleness_most"] == 0
    assert waits["time_s"] > free["time_s"]


def test_messages_take_of_a_step_what_inceptions_take():
    from hours import (
        CLUSTER,
        EPOCHS,
        INCEPTION,
        NAMES,
        OURS,
        OWN,
        SAMPLES,
        SERVERS,
        SHARED,
        cell,
        scaled,
        split,
        values,
    )

    from allreduce.network import network

    assert pytest.approx(23.8e6, rel=0.01) == INCEPTION  # torchvision's, without auxiliary heads
    small, large = network(scaled(SHARED)), network(CLUSTER)
    for rate in ("bandwidth_Bps", "uplink_Bps", "node_bandwidth_Bps"):
        took = INCEPTION / getattr(large, rate), OURS / getattr(small, rate)
        assert took[1] == pytest.approx(took[0], rel=1e-5)
    assert small.ranks_per_node == large.ranks_per_node
    own = network(scaled(OWN))
    assert own.bandwidth_Bps == small.bandwidth_Bps
    for workers, servers in SERVERS.items():  # shard s lives on rank s
        assert len(set(own.nodes(workers)[:servers])) == servers
        assert len(set(small.nodes(workers)[:servers])) < servers / 4
    for name in NAMES:
        for part in ("epochs", "time", "whole", "time" + OWN, "whole" + OWN):
            given = values(cell(part, name, 0.1, 1))
            resolved = Experiment.read(given).resolved(split(name)[1], SAMPLES)
            assert resolved.workers == split(name)[1]
            used = resolved.step_workers * resolved.batch * given["steps"]
            assert part.startswith("time") or used == pytest.approx(EPOCHS * SAMPLES, rel=0.01)


def test_epochs_to_a_target_lie_between_evaluations():
    from hours_pages import epochs_to, steps_to

    line = {"step": [10, 20], "time_s": [2.0, 4.0], "ema_accuracy": [0.5, 0.9],
            "samples_used": [1024.0, 2048.0]}  # fmt: skip
    assert steps_to(line, 0.7) == pytest.approx(15)
    assert steps_to(line, 0.7, "time_s") == pytest.approx(3.0)
    assert steps_to(line, 0.3) == pytest.approx(5)  # from 0.1, that of a guess
    assert math.isnan(steps_to(line, 0.95))
    assert epochs_to(line, 0.7) == pytest.approx(15 * 102.4 / 10_240)


@needs_mnist
def test_hours_come_of_epochs_with_one_server_and_seconds_with_all(monkeypatch):
    import hours

    monkeypatch.setattr(hours, "SERVERS", {53: 2})
    monkeypatch.setattr(hours, "TIMED", 2)
    monkeypatch.setattr(hours, "EPOCHS", 0.02)
    monkeypatch.setattr(hours, "MEMORY", 0.9)
    datasets = hours.load(str(SHARED / "mnist"))
    epochs = hours.run_cell(hours.cell("epochs", "backup, 53", 0.1, 1), datasets)
    assert epochs["samples_used"][-1] == 2 * 50 * 2
    assert 0 < epochs["ema_accuracy"][-1] < 1
    timed = hours.run_cell(hours.timed("async, 53", hours.OWN)[0], datasets)
    assert timed["step"] == [2]
    assert timed["time_s"][0] > 2 * 0.9 * hours.STEP_S
    assert "ema_accuracy" not in timed


def test_pixelcnns_algorithms_use_equally_many_gradients():
    from pixelcnn import ALGORITHMS, GRADIENTS, SERVERS, cell, until, updates_of, values

    for name, (_, workers, rate) in ALGORITHMS.items():
        given = values(cell(name, rate, 1))
        ranks = workers + SERVERS if workers > 1 else 1
        resolved = Experiment.read(given).resolved(ranks, 7_680)
        assert resolved.workers == workers
        used = given["steps"] * resolved.step_workers
        assert used == updates_of(name) * resolved.update_gradients
        assert used == GRADIENTS - GRADIENTS % resolved.update_gradients  # no update is of fewer
    line = {"loss": [7.0, 6.0, 5.0], "time_s": [1.0, 2.0, 3.0]}
    assert until(line, 5.5, "time_s") == pytest.approx(2.5)
    assert math.isnan(until(line, 4.0, "time_s"))


@pytest.mark.skipif(
    not (SHARED / "cifar10").is_dir(), reason="no CIFAR-10 files: set MPISGD_DATA to their parent"
)
def test_a_pixelcnn_learns(monkeypatch):
    pytest.importorskip("torch", reason="no PyTorch")
    import pixelcnn

    monkeypatch.setattr(pixelcnn, "GRADIENTS", 14)
    monkeypatch.setattr(pixelcnn, "EVALUATIONS", 2)
    datasets = pixelcnn.reduced(str(SHARED / "cifar10"))
    assert datasets[0].train_inputs.shape == (7_680, 3, 8, 8)
    assert datasets[0].train_inputs.dtype == np.uint8
    result = pixelcnn.run_cell(pixelcnn.cell("sync, 7 + 1", 1e-3, 1), datasets)
    assert result["samples_used"][-1] == 14 * 4
    assert 7 < result["loss"][-1] < result["loss"][0] < 9  # a guess is 8 bits


@pytest.mark.parametrize("study", ["mnist-cnn", "hours", "cnn-stale", "pixelcnn"])
def test_the_committed_pages_show_what_their_ledgers_hold(study):
    from command import Ledger

    folder = RESULTS / f"study-{study}"
    text = (folder / "README.md").read_text(encoding="utf-8")
    pages = study.replace("-", "_") + ("_pages" if study in ("cnn-stale", "hours") else "")
    assert importlib.import_module(pages).page(text, Ledger(folder / "runs.jsonl")) == text
    assert "not run\n" not in text
