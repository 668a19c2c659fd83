"""The studies with stale gradients and servers: their cells, their accounts, their tables."""

import argparse
import importlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
from server_runs import served
from test_studies import RESULTS, SHARED

from mpisgd.experiment.arguments import add_arguments, from_arguments
from mpisgd.experiment.experiment import Experiment

pytestmark = pytest.mark.usefixtures("studies_on_the_path")


def test_every_cell_is_an_experiment():
    import backup_real
    import initial_rate
    import layers
    import saturation
    import staleness

    for cell in staleness.cells():
        Experiment.read(staleness.values(cell))
    for cell in initial_rate.cells():
        given, ranks = initial_rate.values(cell)
        resolved = Experiment.read(given).resolved(ranks, 32_768)
        assert resolved.step_workers == cell.get("gradients", 16)
    for cell in layers.cells():
        Experiment.read(layers.values(cell)).resolved(layers.LAYERS + cell["workers"], 9_000)
    for kind in backup_real.KINDS.values():
        Experiment.read(backup_real.SHARED | kind)
    for cell in [*saturation.virtual_cells(), *saturation.real_cells("mpich")]:
        Experiment.read(saturation.experiment(cell))


def test_seeds_are_paired():
    from staleness import FEWER_SEEDS, RATES, SEEDS, STALENESS, cells

    found: dict[tuple, set[int]] = {}
    for cell in cells():
        key = cell["momentum"], cell["rate"], cell["staleness"]
        assert cell["seed"] not in found.setdefault(key, set())
        found[key].add(cell["seed"])
    assert set(found) == {(m, r, s) for m, rates in RATES.items() for r in rates for s in STALENESS}
    for (momentum, rate, _), seeds in found.items():
        assert seeds == set(FEWER_SEEDS if rate == max(RATES[momentum]) else SEEDS)


def test_a_real_runs_flags_say_what_the_study_means():
    from backup_real import KINDS, SHARED
    from runs import flags

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for kind in KINDS.values():
        options = SHARED | kind
        given = from_arguments(parser.parse_args(flags(options)))
        assert given == Experiment.read(options)


def stale_line(seed: int, percent: float | None) -> dict:
    line = {"cell": {"seed": seed}, "loss": [1.0]}
    return line | ({"failure": "inf"} if percent is None else {"test_error": percent / 100})


def test_differences_are_of_pairs_and_what_was_not_finite_is_shown():
    from staleness import paired, shown

    there = [stale_line(seed, 2.0 + seed) for seed in (1, 2, 3, 4)]
    here = [stale_line(1, 3.4), stale_line(2, 4.6), stale_line(3, 5.5), stale_line(4, None)]
    mean, deviation, t, worse = paired(here[::-1], there)
    assert mean == pytest.approx(0.5)
    assert deviation == pytest.approx(0.1)
    assert t == pytest.approx(0.5 / (0.1 / math.sqrt(3)))
    assert worse == 3
    assert shown(here) == "1 of 4 not finite; 4.5 ± 1.1"
    assert shown([stale_line(1, None)] * 2) == "2 of 2 not finite"
    assert math.isnan(paired([stale_line(1, None)], there)[0])


def planted(tmp_path: Path):
    """iterations = 1000 N^-0.8 at the middle rate, more at others; one seed never gets there at
    the rate that would be the fastest."""
    from command import Ledger
    from initial_rate import ITERATION_RATES, SEEDS, iterations

    ledger = Ledger(tmp_path / "runs.jsonl")
    for seed in SEEDS:
        for cell in iterations(seed):
            place = ITERATION_RATES[cell["gradients"]].index(cell["rate"])
            steps = 1000 * cell["gradients"] ** -0.8 * (0.5, 1.0, 2.0, 3.0)[place]
            high = 0.9 if (place, seed) == (0, 2) else 0.99
            line = {"step": [0.0, steps], "time_s": [0.0, 1.0], "accuracy": [0.1, high]}
            ledger.add(cell, line)
    return ledger


def test_iterations_are_those_of_the_best_rate_that_every_seed_gets_there_with(tmp_path):
    from initial_rate import ITERATION_RATES, counts, exponent, iterations_table

    ledger = planted(tmp_path)
    found = counts(ledger, 0.95)
    assert {n: rate for n, (rate, _) in found.items()} == {
        n: rates[1] for n, rates in ITERATION_RATES.items()
    }
    power, factor = exponent(found)
    assert power == pytest.approx(-0.8)
    assert factor == pytest.approx(1000)
    first = iterations_table(ledger)[0]
    assert first["to 0.9"] == f"500 ± 0 at {ITERATION_RATES[1][0]}*"  # at the edge of its grid
    assert first["to 0.95"] == f"1000 ± 0 at {ITERATION_RATES[1][1]}"
    assert not counts(ledger, 0.995)


def test_the_curve_is_what_advise_reads(tmp_path):
    from initial_rate import curve

    from mpisgd.predict import curves

    path = tmp_path / "iterations.json"
    path.write_text(json.dumps(curve(planted(tmp_path), 0.95)))
    read = curves.curve(str(path), 64)
    for n in (1, 4, 10, 64):
        assert read.iterations(n) == pytest.approx(1000 * n**-0.8)


def test_accounts_find_what_is_missing_and_what_is_double():
    """Two shards, three workers, two steps; each shard's last update is worker 2's second step."""
    from saturation import accounts

    names = ("server", "worker", "step", "arrived_s", "waited_s", "update")
    rows = np.array([
        (s, w, k, k + w / 10, 0.15, 3 * (k - 1) + w + 1) for s in (0, 1) for w in (0, 1, 2)
        for k in (1, 2)
    ], float)  # fmt: skip

    def of(table: np.ndarray, sent: tuple[int, ...] = (2, 2, 2)) -> dict[str, int]:
        return accounts(dict(zip(names, table.T, strict=True)), list(sent), 2)

    assert of(rows) == {"gradients": 12, "missing": 0, "double": 0, "queue": 2}
    assert of(rows[1:])["missing"] == 1  # the first of worker 0
    assert of(np.delete(rows, 1, axis=0))["missing"] == 1  # its last, and the shard had not ended
    assert of(rows, (2, 3, 2))["missing"] == 2  # one that neither shard has
    assert of(rows, (2, 2, 3))["missing"] == 0  # worker 2 knew that both had ended
    dropped = rows.copy()
    dropped[3, 5] = -1  # shard 0 told worker 1 with its second step that it had ended
    assert of(dropped, (2, 3, 2))["missing"] == 1
    assert of(np.vstack([rows, rows[:3]]))["double"] == 3
    rows[:, 4] = 0.25
    assert of(rows)["queue"] == 3


def test_a_saturated_server_is_as_fast_as_its_port_and_two_are_twice_as_fast(monkeypatch):
    import saturation
    from saturation import bound, unloaded

    from mpisgd.worlds.virtual_sites import VirtualServerSite

    monkeypatch.setattr(saturation, "PARAMETERS", 25_000)
    monkeypatch.setattr(saturation, "VIRTUAL_STEP_S", 5e-5)
    longest = [0]
    put = VirtualServerSite.put

    def counting(site, message):
        put(site, message)
        longest[0] = max(longest[0], len(site.inbox))

    monkeypatch.setattr(VirtualServerSite, "put", counting)
    speeds = []
    for servers in (1, 2):
        cell = {"servers": servers, "steps": 12, "seed": 1}
        result = saturation.run_virtual(cell)
        assert result["missing"] == result["double"] == 0
        assert result["queue"] <= saturation.WORKERS
        assert result["updates_per_s"] < min(bound(servers), unloaded(servers))
        speeds.append(result["updates_per_s"])
    assert speeds[0] > 0.9 * bound(1)
    assert speeds[1] == pytest.approx(2 * speeds[0], rel=0.1)
    assert longest[0] <= saturation.WORKERS  # messages alternate: one of each worker at most


def test_predicted_staleness_is_what_virtual_async_sees():
    import backup_real as study

    run = served(
        study.WORKERS + 1, algorithm="async", steps=150, data_samples=320,
        straggler=f"{study.SLOW}:{study.FACTOR}.001x",
    )  # fmt: skip
    rows = [row for row in run.rows if row["used"] and row["version_read"] > 35]
    ages = {
        "slow": [row["staleness"] for row in rows if row["worker"] == study.SLOW],
        "fast": [row["staleness"] for row in rows if row["worker"] != study.SLOW],
        "all": [row["staleness"] for row in rows],
    }
    predicted = study.predicted()
    assert predicted["all"] == pytest.approx(study.WORKERS - 1)
    for name, values in ages.items():
        assert np.mean(values) == pytest.approx(predicted[name], rel=0.02)


def test_a_served_run_stops_where_it_is_enough():
    from runs import Run

    from mpisgd import data

    values = {
        "algorithm": "backup", "backups": 1, "data": "digits", "model": "softmax", "batch": 16,
        "steps": 200, "evaluate_every": 10, "rate": 0.1, "seed": 1,
    }  # fmt: skip
    digits = data.load("digits")
    whole, short = Run(values, 5, digits), Run(values, 5, digits, enough=0.85)
    assert whole.finish() == short.finish() == ""
    accuracy = short.evaluations["accuracy"]
    first = next(i for i, value in enumerate(accuracy) if value >= 0.85)
    assert first < 5
    assert short.evaluations["step"][-1] < 60
    assert whole.evaluations["step"][-1] == 200
    assert whole.evaluations["accuracy"][: first + 1] == accuracy[: first + 1]
    assert short.final_test(digits) == (short.evaluations["loss"][-1], accuracy[-1])
    assert len(whole.result.updates["step"]) >= 600  # three gradients in each update


@pytest.mark.skipif(
    not (SHARED / "mnist").is_dir(), reason="no MNIST files: set MPISGD_DATA to their parent"
)
def test_a_stale_run_learns_and_one_beyond_the_stable_rate_does_not(monkeypatch):
    import mnist
    import staleness

    datasets = mnist.load(str(SHARED / "mnist"))
    monkeypatch.setattr(staleness, "EPOCHS", 0.125)
    cell = {"momentum": 0.0, "rate": 0.1, "staleness": 5, "seed": 1}
    assert staleness.run_cell(cell, datasets)["test_error"] < 0.3
    monkeypatch.setattr(
        staleness, "values",
        lambda cell, known=staleness.values: known(cell) | {"ramp": 0, "rate": 3.0},
    )  # fmt: skip
    bad = staleness.run_cell(cell | {"staleness": 20}, datasets)
    assert "failure" in bad or bad["test_error"] > 0.5


@pytest.mark.parametrize("study", ["staleness", "initial-rate", "saturation", "backup-real"])
def test_the_committed_pages_show_what_their_ledgers_hold(study):
    from command import Ledger

    folder = RESULTS / f"study-{study}"
    text = (folder / "README.md").read_text(encoding="utf-8")
    page = importlib.import_module(study.replace("-", "_")).page
    assert page(text, Ledger(folder / "runs.jsonl")) == text
    assert "not run" not in text
