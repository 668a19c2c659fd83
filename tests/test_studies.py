"""The studies' scripts: their cells, their ledger, their tables, and the problem of the rates."""

import importlib
import json
import math
import os
import signal
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
SHARED = Path(os.environ.get("MPISGD_DATA", ROOT.parent / "shared" / "data"))


pytestmark = pytest.mark.usefixtures("studies_on_the_path")


def test_a_ledger_knows_finished_runs_whatever_the_order_of_their_values(tmp_path):
    from command import Ledger

    path = tmp_path / "runs.jsonl"
    ledger = Ledger(path)
    ledger.add({"rate": 0.1, "seed": 1}, {"loss": 2.0})
    again = Ledger(path)
    assert {"seed": 1, "rate": 0.1} in again
    assert {"seed": 2, "rate": 0.1} not in again
    assert again[{"seed": 1, "rate": 0.1}]["loss"] == 2.0


def test_a_line_cut_off_by_a_kill_is_run_again(tmp_path):
    from command import Ledger

    path = tmp_path / "runs.jsonl"
    Ledger(path).add({"seed": 1}, {})
    whole = path.read_text()
    path.write_text(whole + whole[:10])
    ledger = Ledger(path)
    assert len(ledger.lines) == 1
    ledger.add({"seed": 2}, {})
    assert [json.loads(line)["cell"]["seed"] for line in path.read_text().splitlines()] == [1, 2]


def test_every_cell_is_an_experiment_of_equal_samples():
    from mnist import PARTS, SAMPLES, part, values

    from mpisgd.experiment.experiment import Experiment

    for name in PARTS:
        for cell in part(name):
            given = values(cell)
            Experiment.read(given)
            assert SAMPLES % (cell["ranks"] * cell["batch"]) == 0  # no ragged last step
            steps = given["epochs"] * SAMPLES / (cell["ranks"] * cell["batch"])
            assert steps % given["evaluate_every"] == 0
            assert name == "large" or given["epochs"] * SAMPLES == 98_304


def test_a_corrected_rate_makes_up_for_what_merges_throw_away():
    from mnist import GRID, corrected_rate, share

    for cell in GRID:
        if share(cell):
            assert corrected_rate(cell) * share(cell) == pytest.approx(0.1)


def test_the_studies_step_makes_an_average_about_two_steps_long():
    from mnist import HIDDEN, NETWORK, STEP_S

    from allreduce.algorithms import build
    from allreduce.network import network
    from allreduce.simulate import simulate

    elements = 784 * HIDDEN[0] + HIDDEN[0] + HIDDEN[0] * 10 + 10 + 2
    cluster = network(NETWORK).with_(progress="perfect")
    ends = simulate(build("butterfly", 32, cluster.nodes(32)), 4 * elements, cluster, itemsize=4)
    assert 1.95 < ends.max() / STEP_S < 2.0


def test_targets_that_are_not_reached_stay_in_the_table():
    from mnist import MINIBATCH, TARGETS, targets

    cell = MINIBATCH | {"rate": 0.1}
    lines = [
        {"evaluations": {"time_s": [0.1, 0.2, 0.3], "accuracy": [0.8, high, 0.86]}}
        for high in (0.91, 0.88)
    ]
    (row,) = targets([(cell, lines)])
    assert row[f"ms to {TARGETS[0]:.2f}"] == "200 ± 0"
    assert row[f"ms to {TARGETS[1]:.2f}"] == "not reached (1 of 2 seeds did)"
    assert row[f"ms to {TARGETS[-1]:.2f}"] == "not reached (0 of 2 seeds did)"


def test_the_best_rate_is_chosen_on_validation_loss_and_never_one_that_failed(tmp_path):
    from command import Ledger
    from mnist import RATES, best, part

    ledger = Ledger(tmp_path / "runs.jsonl")
    for cell in part("rates"):
        if cell["algorithm"] == "local":
            # The test loss falls with the rate, the validation loss rises; the lowest rate fails.
            line = {"evaluations": {"loss": [cell["rate"]]}, "test_loss": 1 - cell["rate"]}
            if cell["rate"] == RATES[0] and cell["seed"] == 2:
                line["failure"] = "not finite"
            ledger.add(cell, line)
    ((chosen, lines),) = best(ledger)
    assert chosen["rate"] == RATES[1]
    assert len(lines) == 3


def test_own_rates_are_settled_on_seeds_that_no_result_uses(tmp_path):
    from command import Ledger
    from mnist_own_rates import OWN_SEEDS, TUNING, ablation, finished, rates, run, settings

    def run_cell(cell):
        """The best of 32 workers is 0.8 with tau 1, 0.2 with 4; a rate four times that fails."""
        best = 0.8 / cell.get("tau", 4) * cell["ranks"] / 32
        line = {"evaluations": {"loss": [9.0, 0.1 + abs(math.log2(cell["rate"] / best))]}}
        return line | ({"failure": "not finite"} if cell["rate"] >= 4 * best else {})

    ledger = Ledger(tmp_path / "runs.jsonl")
    assert not rates(ledger)
    run(ledger, run_cell)
    for one in settings():
        rate, lines = finished(ledger, one)
        assert rate == 0.8 / one.get("tau", 4) * one["ranks"] / 32
        assert [line["cell"]["seed"] for line in lines] == list(OWN_SEEDS)
    assert not set(OWN_SEEDS) & set(TUNING)
    told = ablation(ledger, "tau")[0]
    assert told == {"algorithm": "Local", "at": "own rate"} | {
        f"tau {tau}": f"0.100 ± 0.000 ({0.8 / tau:g})" for tau in (1, 2, 4, 8)
    }
    assert len(rates(ledger)) == len(settings())
    assert "0.8: not finite" in rates(ledger)[0]["loss at each rate"]


def test_a_page_shows_the_tables_it_has_marks_for():
    from pages import fill, markdown, plus_minus

    page = "a\n<!-- table x -->\nold\n<!-- end -->\nb\n"
    filled = fill(page, "x", markdown([{"k": 1, "v": plus_minus(0.5, math.nan, 2)}]))
    assert filled == "a\n<!-- table x -->\n| k | v |\n|---|---|\n| 1 | 0.50 |\n<!-- end -->\nb\n"
    with pytest.raises(ValueError, match="0 tables named y"):
        fill(page, "y", "")


def test_gradient_and_least_value_of_the_convex_problem():
    from rate import Objective, problem

    objective = Objective(problem())
    least = objective.least()
    assert np.abs(objective.gradient(least)).max() < 1e-12
    generator = np.random.default_rng(0)
    here, there = generator.standard_normal((2, len(least)))
    change = objective.value(here + 1e-6 * there) - objective.value(here - 1e-6 * there)
    assert objective.gradient(here) @ there == pytest.approx(change / 2e-6, rel=1e-6)
    for _ in range(20):
        away = least + 0.1 * generator.standard_normal(len(least))
        assert objective.value(away) > objective.value(least)


def test_a_rate_run_trains_on_the_problem_and_measures_its_average():
    from command import Ledger
    from rate import ALGORITHMS, Objective, problem, run_cell

    objective = Objective(problem())
    least = objective.value(objective.least())
    cell = ALGORITHMS["Local, tau 4"] | {"ranks": 8, "steps": 32, "seed": 1}
    result = run_cell(cell, objective, least)
    committed = Ledger(RESULTS / "study-rate" / "runs.jsonl")[cell]
    for quantity in ("error", "last_error", "slope"):
        assert result[quantity] == pytest.approx(committed[quantity], rel=1e-3)
    worse = run_cell(cell | {"factor": 0.01}, objective, least)
    assert worse["error"] > result["error"] > result["last_error"] > 0


def test_a_run_that_a_signal_stopped_is_no_result():
    """In a ledger it would stand as one that failed, and never be run again."""
    import runs

    from mpisgd import data

    values = {"algorithm": "local", "model": "softmax", "steps": 50, "batch": 4,
              "evaluate_every": 10}  # fmt: skip
    run = runs.Run(values, 2, data.load("digits"))
    run._told["until"] = lambda row: row["step"] == 10 and os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(SystemExit, match="stopped by signal 15 after step"):
        run.finish()


@pytest.mark.skipif(
    not (SHARED / "mnist").is_dir(), reason="no MNIST files: set MPISGD_DATA to their parent"
)
def test_an_mnist_cell_learns_and_keeps_validation_and_test_apart(monkeypatch):
    import mnist

    validation, final = mnist.load(str(SHARED / "mnist"))
    sets = [final.train_inputs, validation.test_inputs, final.test_inputs]
    images = [{image.tobytes() for image in inputs} for inputs in sets]
    assert [len(inputs) for inputs in sets] == [32_768, 5_000, 10_000]
    assert not images[0] & images[1]
    assert not images[0] & images[2]
    assert not images[1] & images[2]
    monkeypatch.setattr(mnist, "EPOCHS", 0.125)
    cell = {"algorithm": "local", "tau": 4, "ranks": 4, "batch": 32, "rate": 0.1, "seed": 1}
    result = mnist.run_cell(cell, (validation, final))
    assert result["test_accuracy"] > 0.7
    assert result["evaluations"]["accuracy"][-1] > 0.7
    assert result["test_loss"] != result["evaluations"]["loss"][-1]


@pytest.mark.parametrize(
    "study",
    ["embedding", "layers", "mnist", "planned_backups", "rate", "sparse", "table_one", "wires"],
)
def test_the_committed_pages_show_what_their_ledgers_hold(study):
    from command import Ledger

    folder = RESULTS / f"study-{study.replace('_', '-')}"
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert importlib.import_module(study).page(text, Ledger(folder / "runs.jsonl")) == text
    assert "not run" not in text


@pytest.mark.parametrize("ledger", sorted(RESULTS.glob("study-*/runs.jsonl")), ids=str)
def test_pages_name_the_commits_that_their_runs_were_made_with(ledger):
    """Changes that were not committed, `+`, cannot be made again: the page says so."""
    page = (ledger.parent / "README.md").read_text(encoding="utf-8")
    commits = {json.loads(line).get("commit", "") for line in ledger.read_text().splitlines()}
    for commit in commits:
        if commit.endswith("+"):
            assert commit.removesuffix("+") in page
            assert "not committed" in page
