"""The study of a network without batch normalisation: what is compared, at which rates."""

from itertools import chain

import pytest

pytestmark = pytest.mark.usefixtures("studies_on_the_path")


def finished(ledger, cells, best) -> None:
    """Loss grows by the factor between the rate and the best."""
    for cell in cells:
        factor = max(cell["rate"] / best, best / cell["rate"])
        ledger.add(cell, {"loss": [9.0, factor]})


def test_all_settings_compute_equally_many_samples_and_are_experiments():
    from plain_net import ABLATED, BASE, LARGE, SAMPLES, SMALL, TABLE, steps, values

    from mpisgd.experiment.experiment import Experiment

    for setting in chain(TABLE, SMALL, LARGE, *ABLATED.values()):
        assert steps(setting) * setting["ranks"] * setting["batch"] == SAMPLES
        Experiment.read(values(setting | {"rate": 0.1, "seed": 1}))
    assert all(BASE in several for several in ABLATED.values())
    assert BASE in TABLE


def test_a_warmed_up_rate_ends_at_what_is_told_and_begins_at_one_ranks():
    from plain_net import LARGE, RANKS, values

    from mpisgd.experiment.building import build_rate
    from mpisgd.experiment.experiment import Experiment

    for setting in LARGE:
        told = values(setting | {"rate": 0.8, "seed": 1})
        rate = build_rate(Experiment.read(told).resolved(RANKS, 7680))
        if setting["warm_up"]:
            assert rate(0) == pytest.approx(0.8 / RANKS)
            assert rate(setting["warm_up"] // 2) < 0.8
        assert rate(setting["warm_up"] or 1) == pytest.approx(0.8)


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


def test_names_tell_settings_of_a_table_apart():
    from plain_net import LARGE, SMALL, TABLE
    from plain_net_figures import name

    for table in (TABLE, [*SMALL, *LARGE]):
        assert len({name(setting) for setting in table}) == len(table)
    assert name(LARGE[1]) == "mini-batch, 1,024 a step, warm-up of 5"
