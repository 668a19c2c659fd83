"""Slow ranks on demand: what specifications say, and that the draws depend on nothing else."""

import math

import numpy as np
import pytest
from virtual_runs import prepare as prepare_averaging

from allreduce.errors import Stalled
from mpisgd.experiment.experiment import Experiment
from mpisgd.experiment.stragglers import BLOCK, StepTimer, parse, step_timer, unmet
from mpisgd.values.errors import UsageError

STEPS = 20_000


def draws(text: str, rank: int = 0, seed: int = 0) -> np.ndarray:
    straggler = parse(text, seed)
    return np.array([straggler.factor(rank, step) for step in range(1, STEPS + 1)])


def test_constant_factors_multiply():
    straggler = parse("3:5x,1-3:2x,0:0.5x")
    assert [straggler.factor(rank, 7) for rank in range(5)] == [0.5, 2, 2, 10, 1]


@pytest.mark.parametrize(
    ("text", "mean", "deviation"),
    [
        ("exponential", 1, 1),
        ("shifted:0.25", 1, 0.25),
        ("lognormal:0.5", 1, math.sqrt(math.exp(0.25) - 1)),
        ("pareto:5", 5 / 4, math.sqrt(5 / (4**2 * 3))),
        ("pareto:5:0.1", 1 + 0.1 / 4, None),
        ("2:3x,exponential", 3, 3),
    ],
)
def test_moments(text, mean, deviation):
    values = draws(text, rank=2, seed=1)
    assert values.mean() == pytest.approx(mean, rel=0.03)
    if deviation is not None:
        assert values.std() == pytest.approx(deviation, rel=0.08)


def test_tails():
    assert draws("shifted:0.25").min() >= 0.75
    hit = draws("pareto:1.1:0.2") > 1
    assert hit.mean() == pytest.approx(0.2, rel=0.05)
    assert (draws("pareto:1.1") > 100).mean() == pytest.approx(100**-1.1, rel=0.3)


def test_draws_depend_on_seed_rank_and_step_alone():
    forwards, backwards = parse("exponential", 5), parse("exponential", 5)
    steps = range(1, 2 * BLOCK + 3)
    there = [forwards.factor(1, step) for step in steps]
    back = [backwards.factor(1, step) for step in reversed(steps)]
    assert there == back[::-1]
    assert len(set(there)) == len(there)
    assert parse("exponential", 6).factor(1, 1) != there[0]
    assert parse("exponential", 5).factor(2, 1) != there[0]


def test_traces_repeat(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("# rank 0, rank 1\n1, 2\n3, 4 # a bad day\n")
    straggler = parse(f"trace:{file}")
    assert [straggler.factor(0, step) for step in (1, 2, 3)] == [1, 3, 1]
    assert [straggler.factor(rank, 2) for rank in (0, 1, 2)] == [3, 4, 3]


def test_death_is_for_ever():
    straggler = parse("3:die@100")
    assert straggler.factor(3, 99) == 1
    assert math.isinf(straggler.factor(3, 100))
    assert math.isinf(straggler.factor(3, 5000))
    assert straggler.factor(2, 5000) == 1


@pytest.mark.parametrize(
    "text",
    ["", "3:0x", "3:-1x", "3:x", "3-1:2x", "3:die@0", "gauss", "exponential:2", "shifted",
     "shifted:1.5", "lognormal:-1", "pareto", "pareto:1:2", "pareto:1:1:1", "3:nanx", "3:infx",
     "exponential,,", "trace:/nowhere/at/all", "3:5x 4:5x"],
)  # fmt: skip
def test_nonsense_is_one_line(text):
    with pytest.raises(UsageError) as mistake:
        parse(text)
    assert str(mistake.value).startswith("--straggler")
    assert "\n" not in str(mistake.value)
    with pytest.raises(UsageError):
        Experiment.read({"straggler": text})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1:2x,3:5", "'3:5': behind RANK: or RANK-RANK: stands 5x"),
        ("3-1:2x", "'3-1:2x': ranks go up, as in 1-3"),
        ("3:0x", "'3:0x': before the x stands a number > 0"),
        ("3:die@0", "'3:die@0': steps count from 1"),
        ("3:die@5+2s", "'3:die@5+2s': who dies does not come back"),
        ("3:pause@5", "'3:pause@5': for how long"),
        ("3:pause@5+2parsecs", "an absence is a time, as in 2s, or a number of steps"),
        ("3:join@0", "an absence is a time, as in 2s, or a number of steps"),
        ("shifted:1.5", "'shifted:1.5': shifted:SHARE, one number > 0 and <= 1"),
        ("pareto:2:x", "'pareto:2:x': pareto:ALPHA or pareto:ALPHA:PROBABILITY"),
        ("exponential:2", "'exponential:2': has no number behind it"),
        ("gauss", "'gauss': no such term: terms such as 3:5x"),
    ],
)  # fmt: skip
def test_the_part_that_is_wrong_is_told_and_what_may_stand_there(text, told):
    with pytest.raises(UsageError) as mistake:
        parse(text)
    assert told in str(mistake.value)


def test_what_is_said_in_vain_is_found():
    """Of steps that the run has not, and of absences that outlast it; no more than that."""
    assert unmet("3:die@100", 99, None) == ["rank 3 at step 100: the run has 99 steps"]
    assert unmet("3:die@100,2:5x", 100, None) == unmet(None, 1, None) == []
    (told,) = unmet("1:pause@8+4", 10, None)
    assert told.startswith("rank 1 from step 8 on: away for 4 steps, and 3 are left")
    assert unmet("1:pause@8+3", 10, None) == unmet("1:pause@8+3s", 10, 1.0) == []
    assert len(unmet("1:pause@8+3.1s,0:join@11s", 10, 1.0)) == 2
    assert unmet("1:pause@8+9s", 10, None) == []  # nobody says how long a step is


@pytest.mark.parametrize("text", ["", "a", "1,2\n3", "1,-2", "inf", "\0"])
def test_damaged_traces_are_one_line(tmp_path, text):
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(UsageError, match="--straggler trace:"):
        parse(f"trace:{file}")


def test_the_pace_is_of_the_step_time_or_of_what_was_measured():
    assert StepTimer(None, None)(0, 1, 0.25) == 0.25
    assert step_timer(None, 2.0, 0)(0, 1, 0.25) == 2.0
    assert step_timer("0:3x", 2.0, 0)(0, 1, 0.25) == 6.0
    assert step_timer("0:3x", None, 0)(0, 1, 0.25) == 0.75


def test_averaging_ranks_straggle_too():
    """A step of mini-batch takes as long as its slowest rank."""
    experiment = Experiment.read(
        {"model": "quadratic", "data": "noise", "steps": 50, "step_time_s": 1.0,
         "straggler": "exponential", "evaluate_every": 0}
    )  # fmt: skip
    clock, finished = prepare_averaging(experiment, 4)
    from mpisgd.experiment.building import algorithm_run

    clock.run([algorithm_run(finished.experiment, worker) for worker in finished.workers])
    straggler = parse("exponential", 0)
    slowest = [max(straggler.factor(rank, k) for rank in range(4)) for k in range(1, 51)]
    assert max(clock.times) == pytest.approx(sum(slowest))


def test_an_average_without_a_dead_rank_stalls():
    experiment = Experiment.read(
        {"model": "quadratic", "data": "noise", "steps": 9, "straggler": "1:die@3"}
    )
    clock, finished = prepare_averaging(experiment, 3)
    from mpisgd.experiment.building import algorithm_run

    with pytest.raises(Stalled):
        clock.run([algorithm_run(finished.experiment, worker) for worker in finished.workers])
