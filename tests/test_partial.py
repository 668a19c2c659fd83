"""The laws of partial all-reduces (Li et al. 2020, arXiv 1908.04207), on virtual ranks."""

from dataclasses import replace
from math import floor
from typing import Any

import numpy as np
import pytest
from virtual_runs import Finished, prepare, virtual

import mpisgd
from allreduce.algorithms import build
from mpisgd import cli
from mpisgd.commands.replay_rounds import replay_rounds
from mpisgd.data import load
from mpisgd.experiment.building import algorithm_run
from mpisgd.experiment.experiment import Experiment
from mpisgd.report.accounting import row as row_of
from mpisgd.store.reader import read
from mpisgd.training.parameters import digest
from mpisgd.values.errors import UsageError

DIGITS = load("digits", samples=53)
EVEN = load("digits", samples=480)
STEP_S = 0.02
PARTIAL = Experiment(
    algorithm="minibatch-partial", model="mlp", hidden=(7,), data="digits", batch=3, steps=11,
    rate=0.2, dtype="float64", evaluate_every=0, step_time_s=STEP_S,
)  # fmt: skip
UNEVEN: dict[str, Any] = {"straggler": "lognormal:0.3"}
WAYS = [(q, late) for q in ("solo", "majority", 3) for late in ("drop", "add")]


def column(run: Finished, name: str) -> np.ndarray:
    """[step, rank] of what was recorded."""
    steps = range(1, run.workers[0].step + 1)
    return np.array([[rows.steps[step][name] for rows in run.rows] for step in steps])


def shares(run: Finished) -> list[np.ndarray]:
    """The mask that each rank has of the last round."""
    return [worker.means[0].shares for worker in run.workers]


# Nobody is late.


@pytest.mark.parametrize("late", ["drop", "add"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_with_all_ranks_it_is_minibatch_bit_for_bit(ranks, late):
    """53 samples: the last batch of an epoch is uneven, and may leave ranks empty."""
    plain = virtual(
        PARTIAL, ranks, dataset=DIGITS, algorithm="minibatch", momentum=0.9, **UNEVEN
    )  # fmt: skip
    for quorum in ("all", ranks):
        run = virtual(PARTIAL, ranks, dataset=DIGITS, quorum=quorum, late=late, **UNEVEN)
        assert run.parameters.tobytes() == plain.parameters.tobytes()
        assert column(run, "start_s").tobytes() == column(plain, "start_s").tobytes()


@pytest.mark.parametrize("network", ["ideal", "ethernet-10g"])
@pytest.mark.parametrize("quorum", ["solo", "majority", 2])
def test_without_stragglers_all_contribute_whoever_begins(quorum, network):
    """On a wire ranks begin steps microseconds apart: less than from a look to the end."""
    for ranks in (3, 8):
        plain = virtual(PARTIAL, ranks, dataset=EVEN, algorithm="minibatch", network=network)
        run = virtual(PARTIAL, ranks, dataset=EVEN, quorum=quorum, network=network)
        assert (column(run, "gradients") == 1).all()
        assert run.parameters.tobytes() == plain.parameters.tobytes()


# Some are.


@pytest.mark.parametrize("network", ["ideal", "ethernet-10g"])
@pytest.mark.parametrize(("quorum", "late"), WAYS)
@pytest.mark.parametrize("ranks", [3, 5, 8])
def test_all_ranks_know_the_same_subset_and_hold_the_same_model_after_every_round(
    ranks, quorum, late, network
):
    models: dict[int, set[str]] = {}
    clock, run = prepare(
        PARTIAL, ranks, dataset=DIGITS, quorum=quorum, late=late, network=network, **UNEVEN
    )
    for worker in run.workers:
        watch(worker, models)
    clock.run([algorithm_run(run.experiment, worker) for worker in run.workers])
    assert [len(models[step]) for step in range(1, 12)] == [1] * 11
    masks = shares(run)
    assert all(mask.tobytes() == masks[0].tobytes() for mask in masks)
    assert masks[0].tolist() == column(run, "samples")[-1].tolist()
    if ranks > 3:
        assert (column(run, "gradients") == 0).any(), "nobody was late, so nothing was tested"


def watch(worker: Any, models: dict[int, set[str]]) -> None:
    """Note the bits of its parameters at the end of each step."""
    end = worker.site.end_step

    def noted(**columns: float) -> None:
        models.setdefault(worker.step, set()).add(digest(worker.parameters.flat))
        end(**columns)

    worker.site.end_step = noted


@pytest.mark.parametrize(("quorum", "late"), WAYS)
def test_each_gradient_counts_once_at_most_and_the_count_is_that_of_the_rows(quorum, late):
    run = virtual(PARTIAL, 5, dataset=EVEN, quorum=quorum, late=late, network="ethernet-10g",
                  steps=40, **UNEVEN)  # fmt: skip
    gradients, age = column(run, "gradients"), column(run, "staleness")
    brought = [
        (rank, step - back)
        for step in range(40)
        for rank in range(5)
        for back in {0: (), 1: (age[step, rank],), 2: (0, age[step, rank])}[gradients[step, rank]]
    ]
    assert len(brought) == len(set(brought)) == gradients.sum()
    assert (gradients <= (1 if late == "drop" else 2)).all()
    assert ((age > 0).any(), (gradients == 2).any()) == (late == "add", late == "add")
    assert ((gradients > 0).sum(1) == column(run, "contributors").T).all()
    least = {"solo": 1, "majority": 1}.get(quorum, quorum)
    fresh = gradients - (age > 0)
    assert (fresh.sum(1) >= least).all()
    assert (column(run, "samples") == 3 * gradients).all()
    assert run.workers[0].samples_used == 3 * gradients.sum()


def test_the_mean_is_over_the_samples_that_came():
    """One step of plain SGD: rank 2 is late, and with it its batch."""
    run = virtual(PARTIAL, 3, dataset=EVEN, quorum=2, straggler="2:4x", steps=1, momentum=0.0)
    lone = virtual(PARTIAL, 3, dataset=EVEN, algorithm="minibatch", steps=1, momentum=0.0,
                   touch=without_rank_2)  # fmt: skip
    assert np.abs(run.mean - lone.mean).max() < 1e-14
    whole = virtual(PARTIAL, 3, dataset=EVEN, algorithm="minibatch", steps=1, momentum=0.0)
    assert np.abs(run.mean - whole.mean).max() > 1e-4


def without_rank_2(worker: Any) -> None:
    worker.share = lambda steps=1: [1.5, 1.5, 0.0][worker.rank]


@pytest.mark.parametrize("factor", [4.6, 5.3])
@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_samples_a_second_beside_one_slow_rank(ranks, factor):
    """M - 1 batches a step's time, and with `add` one more every `factor` steps' times."""
    slow = {"straggler": f"{ranks - 1}:{factor}x", "progress": "perfect", "steps": 37}
    for late, more in (("drop", 0), ("add", floor(37 / factor))):
        run = virtual(PARTIAL, ranks, dataset=EVEN, quorum=ranks - 1, late=late, **slow)
        assert run.workers[0].samples_used == 3 * (37 * (ranks - 1) + more)
        ends = column(run, "start_s") + column(run, "step_s")
        assert ends[-1] == pytest.approx(37 * STEP_S)
    ages = column(run, "staleness")[:, -1]
    assert set(ages[ages > 0]) <= {floor(factor), floor(factor) + 1}


def test_majority_waits_for_the_slow_rank_when_it_is_drawn():
    """Then all contribute, after its time; else all but it, after a step's."""
    run = virtual(PARTIAL, 4, dataset=EVEN, straggler="3:5x", progress="perfect", steps=60)
    seconds, count = column(run, "step_s").max(1), column(run, "contributors")[:, 0]
    drawn = count == 4
    assert 5 < drawn.sum() < 30
    assert seconds == pytest.approx(np.where(drawn, 5, 1) * STEP_S)
    assert (count[~drawn] == 3).all()


def test_a_rank_that_only_looks_between_layers_holds_the_round_up_until_then():
    slow = {"quorum": 3, "straggler": "3:5x", "steps": 9}
    seconds = [
        column(virtual(PARTIAL, 4, dataset=EVEN, progress=progress, **slow), "step_s").max()
        for progress in ("perfect", "poll")
    ]
    assert seconds[0] == pytest.approx(STEP_S)
    assert STEP_S * 1.01 < seconds[1] < 5 * STEP_S


# Around a run.


def test_a_run_counts_what_was_used(tmp_path):
    path = tmp_path / "run.h5"
    run = mpisgd.run(**options(quorum="solo", late="add"), ranks=5, evaluate_every=5, output=path)
    table, steps = run.evaluation, run.steps
    for row, step in enumerate(table["step"]):
        assert table["samples_used"][row] == steps["samples"][: int(step)].sum()
    assert table["samples_used"][-1] < 5 * 3 * 11
    share = steps["gradients"].mean()
    assert table["steps_effective"][-1] == pytest.approx(11 * share)
    assert table["samples_effective"].tolist() == pytest.approx(table["samples_used"].tolist())
    with read(path) as file:
        told = row_of(file, "run")
    assert told["effective_steps"] == pytest.approx(11 * share)
    assert told["effective_step_s"] == pytest.approx(told["step_s"] / share)


def options(**more: Any) -> dict[str, Any]:
    named = {"algorithm": "minibatch-partial", "model": "mlp", "hidden": (7,), "data": "digits",
             "batch": 3, "steps": 11, "rate": 0.2, "step_time_s": STEP_S, **UNEVEN}  # fmt: skip
    return named | more


REPLAYED: dict[str, dict[str, Any]] = {
    "drop": {"quorum": "solo", "momentum": 0.9, "nesterov": True},
    "add": {"quorum": 3, "late": "add", "clip": 0.5, "allreduce": "ring", "weight_decay": 0.01},
    "wire": {"late": "add", "wire": "int8", "error_feedback": True, "allreduce": "double-tree"},
    "rmsprop": {"quorum": "solo", "late": "add", "optimiser": "rmsprop", "dtype": "float32"},
}


@pytest.mark.parametrize("name", REPLAYED)
def test_the_rows_tell_all_that_decides_the_bits(name):
    """53 samples: batches are uneven, and a late gradient may be of a smaller one."""
    experiment = replace(PARTIAL, steps=25, network="ethernet-10g", **REPLAYED[name])
    run = virtual(experiment, 4, dataset=DIGITS, data_samples=53, straggler="lognormal:0.7")
    rows = {name: column(run, name).astype(int) for name in ("gradients", "staleness")}
    schedule = build(run.experiment.allreduce, 4)
    again = replay_rounds(run.experiment, rows, schedule)
    assert again.tobytes() == run.parameters[0].tobytes()
    brought = rows["gradients"][20]
    brought[brought > 0] = 1 - brought[brought > 0] % 2  # others than those that came
    assert replay_rounds(run.experiment, rows, schedule).tobytes() != again.tobytes()


@pytest.mark.parametrize("wrong", [{"gradients": 3}, {"gradients": -1}, {"staleness": 9}])
def test_rows_that_cannot_be_are_refused(wrong):
    rows = {"gradients": np.ones((5, 2), int), "staleness": np.zeros((5, 2), int)}
    for name, value in wrong.items():
        rows[name][1, 1] = value
    with pytest.raises(UsageError, match="/steps/gradients: tell of 0, 1 or 2 gradients"):
        replay_rounds(replace(PARTIAL, ranks=2), rows, build("tree", 2))
    with pytest.raises(UsageError, match="/steps/gradients: is needed"):
        replay_rounds(replace(PARTIAL, ranks=2), {}, build("tree", 2))


def test_replay_reads_a_file(tmp_path, capsys):
    mpisgd.run(**options(late="add"), ranks=5, output=tmp_path / "run.h5")
    assert cli.main(["replay", str(tmp_path / "run.h5"), "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith("True")


def test_nothing_is_told_where_nobody_is_late():
    run = virtual(PARTIAL, 4, dataset=EVEN, quorum="all")
    assert all(worker.site.interrupts is None and not worker.site.noticed for worker in run.workers)


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"quorum": 5}, "quorum 5: at most the ranks, 4"),
    ({"quorum": 0}, "quorum 0: a whole number >= 1, or solo, or majority, or all"),
    ({"wire": "topk:0.1"}, "--wire 'topk:0.1': in a format that rounds"),
    ({"late": "keep"}, "late 'keep': one of drop, add"),
    (
        {"algorithm": "slowmo", "quorum": "solo"},
        "quorum 'solo': slowmo has none; minibatch-",
    ),
]


@pytest.mark.parametrize(("given", "told"), MISTAKES)
def test_what_makes_no_sense_is_refused_in_a_line(given, told):
    with pytest.raises(UsageError, match=told):
        mpisgd.run(**options(**given), ranks=4)


@pytest.mark.parametrize("late", ["drop", "add"])
@pytest.mark.parametrize("how", [{}, {"algorithm": "local", "tau": 2}])
def test_who_is_away_holds_up_no_round_that_can_do_without_it(how, late):
    """For longer than the run. As real ranks, it hears of rounds all the time."""
    away = {"straggler": "3:pause@3+2s", "quorum": 3, "late": late}
    run = virtual(PARTIAL, 4, dataset=EVEN, **how, **away)
    ends = column(run, "start_s")[-1] + column(run, "step_s")[-1]
    assert ends[:3] == pytest.approx([11 * STEP_S] * 3)
    waited_for = virtual(PARTIAL, 4, dataset=EVEN, **how, **away | {"quorum": 4})
    assert column(waited_for, "step_s").max() > 1
