"""What studies of algorithms at several rates share, and the reduced Table I: cells, tables."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
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
    import table_one as table

    assert table.SAMPLES % (table.BATCH * table.RANKS) == 0
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


def test_tables_average_what_is_finite_at_the_end():
    from pages import ends

    wanted = {"final loss": ("loss", 10, 1), "error": ("test_error", 1, 2)}
    assert ends([line(2.0), line(4.0)], wanted) == {
        "final loss": "30.0 ± 14.1", "error": "0.30 ± 0.14"
    }  # fmt: skip
    assert ends([line(1.0, failure="not finite")], wanted) == {"final loss": "-", "error": "-"}
