"""The two studies of convolutional networks: their cells, their tables, what a run keeps."""

import importlib
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
SHARED = Path(os.environ.get("MPISGD_DATA", ROOT.parent / "shared" / "data"))


pytestmark = pytest.mark.usefixtures("studies_on_the_path")


def line(loss, **more):
    return {"loss": [9.0, loss], "test_error": loss / 10, **more}


def test_the_best_rate_is_chosen_by_validation_loss_once_all_are_there(tmp_path):
    from command import Ledger
    from pages import best_rate

    cells = [{"name": "x", "rate": rate, "seed": 1} for rate in (0.1, 0.2, 0.3)]
    ledger = Ledger(tmp_path / "runs.jsonl")
    for cell, loss in zip(cells[:2], (2.0, 1.0), strict=True):
        ledger.add(cell, line(loss))
    assert best_rate(ledger, cells) is None
    ledger.add(cells[2], line(0.1, failure="not finite"))
    assert best_rate(ledger, cells) == 0.2


def test_a_difference_is_taken_seed_by_seed():
    from pages import difference

    same = difference([line(2.0), line(4.0)], [line(1.9), line(4.1)], "test_error", 100, 1)
    assert same["difference"] == "0.0 ± 1.4"
    assert (same["95 % interval"], same["told apart"]) == ("-12.7 to 12.7", "no")
    other = difference([line(2.0), line(4.0)], [line(1.0), line(3.1)], "test_error", 100, 1)
    assert other["difference"] == "9.5 ± 0.7"  # 19 standard errors, and 12.7 are asked for
    assert (other["95 % interval"], other["told apart"]) == ("3.1 to 15.9", "yes")


def test_an_optimum_on_the_edge_of_its_grid_is_marked():
    from pages import marked

    grid = (0.01, 0.04, 0.16)
    assert [marked(rate, grid) for rate in grid] == [
        "0.01 (edge of the grid)", "0.04", "0.16 (edge of the grid)"
    ]  # fmt: skip
    assert marked(0.1, [0.1]) == "0.1"


def test_all_algorithms_compute_equally_many_samples():
    import mnist_cnn as mnist
    import table_one as table

    assert mnist.STEPS * mnist.WORKERS * mnist.BATCH == mnist.EPOCHS * mnist.SAMPLES
    assert mnist.SAMPLES % (mnist.BATCH * mnist.WORKERS) == 0  # no ragged step
    assert mnist.STEPS % mnist.EVALUATIONS == 0
    assert table.SAMPLES % (table.BATCH * table.RANKS) == 0
    assert len(mnist.common()) == len(mnist.SEEDS) * len(mnist.ALGORITHMS) == 18
    assert len(table.sweep()) == len(table.RATES) * len(table.ALGORITHMS) == 9


def test_the_table_ones_step_has_the_ratio_its_page_states():
    from table_one import FIXED, NETWORK, RANKS, STEP_S, sweep, values

    from allreduce.algorithms import build
    from allreduce.network import network
    from allreduce.simulate import simulate
    from mpisgd.experiment.experiment import Experiment

    for cell in sweep():
        Experiment.read(values(cell))
    assert FIXED["hidden"] == (8,)
    cluster = network(NETWORK).with_(progress="perfect")
    nbytes = 4 * (19_218 + 2)
    ends = simulate(build("butterfly", RANKS, cluster.nodes(RANKS)), nbytes, cluster, itemsize=4)
    assert ends.max() / STEP_S == pytest.approx(0.65, abs=0.01)


@pytest.mark.skipif(
    not (SHARED / "mnist").is_dir(), reason="no MNIST files: set MPISGD_DATA to their parent"
)
def test_a_cell_of_the_mnist_cnn_keeps_validation_and_test_apart(monkeypatch):
    import mnist_cnn

    validation, final = (
        replace(part, test_inputs=part.test_inputs[:64], test_targets=part.test_targets[:64])
        for part in mnist_cnn.load(str(SHARED / "mnist"))
    )
    assert validation.samples == final.samples == mnist_cnn.SAMPLES
    assert not {image.tobytes() for image in validation.test_inputs} & {
        image.tobytes() for image in final.test_inputs
    }
    monkeypatch.setattr(mnist_cnn, "STEPS", 10)
    monkeypatch.setattr(mnist_cnn, "WORKERS", 2)
    for name in ("serial", "DaSGD", "async"):
        varied, ranks = mnist_cnn.ALGORITHMS[name]
        shrunk = varied, min(ranks, 2) + (ranks > 8)
        monkeypatch.setitem(mnist_cnn.ALGORITHMS, name, shrunk)
        cell = {"name": name, "rate": 0.03, "seed": 1}
        result = mnist_cnn.run_cell(cell, (validation, final))
        assert result["samples_computed"][-1] == 10 * 2 * 32
        assert len(result["loss"]) == mnist_cnn.EVALUATIONS
        assert all(math.isfinite(value) for value in result["train_loss"])
        assert result["test_loss"] != result["loss"][-1]


@pytest.mark.skipif(
    not (SHARED / "cifar10").is_dir(), reason="no CIFAR-10 files: set MPISGD_DATA to their parent"
)
def test_the_table_ones_images_are_split_once():
    import table_one

    validation, final = table_one.load(str(SHARED / "cifar10"))
    sets = [final.train_inputs, validation.test_inputs, final.test_inputs]
    assert [len(part) for part in sets] == [7_680, 1_000, 1_310]
    images = [{image.tobytes() for image in part} for part in sets]
    assert not images[1] & images[2]
    assert len(images[0] & (images[1] | images[2])) == 0


@pytest.mark.parametrize("study", ["mnist-cnn", "table-one"])
def test_the_committed_pages_show_what_their_ledgers_hold(study):
    from command import Ledger

    folder = RESULTS / f"study-{study}"
    text = (folder / "README.md").read_text(encoding="utf-8")
    page = importlib.import_module(study.replace("-", "_")).page
    assert page(text, Ledger(folder / "runs.jsonl")) == text


def test_both_studies_tables_choose_group_and_average_alike(tmp_path):
    from command import Ledger
    from pages import chosen, ends

    ledger = Ledger(tmp_path / "runs.jsonl")
    cells = [{"name": name, "rate": 0.1, "seed": seed} for seed in (1, 2) for name in "ab"]
    for cell, loss in zip(cells[:3], (2.0, 5.0, 4.0), strict=True):
        ledger.add(cell, line(loss))
    common = chosen(ledger, "common", lambda: cells, lambda ledger: [])
    assert [(cell, len(lines)) for cell, lines in common] == [
        ({"name": "a", "rate": 0.1}, 2), ({"name": "b", "rate": 0.1}, 1)
    ]  # fmt: skip
    best = chosen(ledger, "best", list, lambda found: cells[:1] if found is ledger else [])
    assert [lines for _, lines in best] == [[ledger[cells[0]]]]
    wanted = {"final loss": ("loss", 10, 1), "error": ("test_error", 1, 2)}
    assert ends(common[0][1], wanted) == {"final loss": "30.0 ± 14.1", "error": "0.30 ± 0.14"}
    assert ends([line(1.0, failure="not finite")], wanted) == {"final loss": "-", "error": "-"}
