"""Rounds that begin without the late: the model beside draws, and beside the virtual clock."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from virtual_runs import NOISE as SAMPLES
from virtual_runs import QUADRATIC, virtual

from mpisgd.predict import partial
from mpisgd.predict.advice import advise
from mpisgd.predict.epoch import Conditions, rhythm, rhythm_cost
from mpisgd.values.errors import UsageError

SIGMA, RANKS, STEP_S = 0.3, 8, 0.02
NOISE = math.sqrt(math.expm1(SIGMA**2))


def test_a_round_begins_at_an_order_statistic():
    draws = np.random.default_rng(0).lognormal(-(SIGMA**2) / 2, SIGMA, (40000, RANKS))
    ranked = np.sort(draws, axis=1).mean(axis=0)
    for quorum, expected in (("solo", ranked[0]), (6, ranked[5]), ("all", ranked[7])):
        assert partial.begins(quorum, RANKS, NOISE) == pytest.approx(expected, rel=5e-3)
    assert partial.begins("majority", RANKS, NOISE) == 1
    assert partial.in_time("majority", RANKS, NOISE) == pytest.approx(
        np.mean([(row <= row[0]).mean() for row in draws]), abs=5e-3
    )


@pytest.mark.parametrize("algorithm", ["minibatch-partial", "local", "dasgd"])
def test_nobody_is_late_without_noise(algorithm):
    found = rhythm(algorithm, 4, 2)
    for quorum in ("solo", "majority", 3, None):
        quiet = Conditions(quorum=quorum).of(algorithm)
        assert rhythm_cost(1.0, 2.5, 8, found, quiet) == rhythm_cost(1.0, 2.5, 8, found)
        assert quiet.in_time(8) == 1


def test_all_ranks_are_the_rank_that_comes_last():
    """The same as what a mini-batch waits for by simulation, to its draws."""
    whole = partial.begins("all", RANKS, NOISE) - 1
    simulated = rhythm_cost(1.0, 0.0, RANKS, rhythm("minibatch", 1, 0), Conditions(noise=NOISE))
    assert whole == pytest.approx(simulated.noise_s, rel=0.1)


CLOCK: list[tuple[str, dict[str, Any], float]] = [
    ("minibatch-partial", {}, 0.04), ("local", {"tau": 4}, 0.04),
    ("dasgd", {"tau": 4, "delay": 2}, 0.08),
]  # fmt: skip


@pytest.mark.parametrize("quorum", ["majority", 6])
@pytest.mark.parametrize(("algorithm", "more", "error"), CLOCK)
def test_the_virtual_clock_takes_what_the_model_says(algorithm, more, error, quorum):
    run = virtual(
        replace(QUADRATIC, algorithm=algorithm, step_time_s=STEP_S, **more), RANKS,
        dataset=SAMPLES, quorum=quorum, straggler=f"lognormal:{SIGMA}", progress="perfect",
        steps=120,
    )  # fmt: skip
    ends = [rows.steps[120]["start_s"] + rows.steps[120]["step_s"] for rows in run.rows]
    took = max(ends) / 120
    conditions = Conditions(noise=NOISE, quorum=quorum).of(algorithm)
    tau, delay = more.get("tau", 1), more.get("delay", 0)
    cost = rhythm_cost(STEP_S, 0.0, RANKS, rhythm(algorithm, tau, delay), conditions)
    assert took == pytest.approx(cost.step_s, rel=error)
    used = np.array([r.steps[s]["used"] for r in run.rows for s in r.steps if "used" in r.steps[s]])
    assert (used == 1).mean() == pytest.approx(conditions.in_time(RANKS), abs=0.12)


def test_advice_has_its_row_and_its_line():
    found = advise(0.02, 0.005, RANKS, conditions=Conditions(noise=NOISE, quorum=6))
    rows = {row["algorithm"]: row for row in found.rows}
    mine, plain = rows["minibatch-partial"], rows["minibatch"]
    assert mine["step_s"] < plain["step_s"]
    assert mine["effective_share"] == 0.75
    assert "--algorithm minibatch-partial --quorum 6" in mine["command"]
    assert "--quorum 6" in rows["local"]["command"]
    with pytest.raises(UsageError, match="--quorum 9: at most the ranks, 8"):
        advise(0.02, 0.005, RANKS, conditions=Conditions(noise=NOISE, quorum=9))
