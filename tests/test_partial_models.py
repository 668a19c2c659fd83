"""Averages of models that do without the late: what they equal, who counts, what is repeated."""

from dataclasses import replace
from functools import partial
from math import floor
from typing import Any

import numpy as np
import pytest
from test_partial import DIGITS, EVEN, PARTIAL, STEP_S, UNEVEN, column, watch
from virtual_runs import Finished, prepare, virtual

import mpisgd
from allreduce.algorithms import build
from mpisgd import cli
from mpisgd.commands.replay_models import replay_models
from mpisgd.experiment.building import algorithm_run
from mpisgd.report.accounting import row as row_of
from mpisgd.store.reader import read
from mpisgd.training.parameters import digest
from mpisgd.values.errors import UsageError

LOCAL = replace(PARTIAL, algorithm="local", tau=3, steps=12)
DASGD = replace(LOCAL, algorithm="dasgd", tau=3, delay=1)
KINDS = {
    "local": LOCAL,
    "dasgd": DASGD,
    "dasgd-0": replace(DASGD, delay=0, xi=0.0),
    "dasgd-tau": replace(DASGD, tau=2, delay=2, merge="delta"),
}
WAYS = [(q, late) for q in ("solo", "majority", 3) for late in ("drop", "add")]


# Nobody is late.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [1, 4])
def test_with_all_ranks_it_is_the_algorithm_bit_for_bit(kind, ranks):
    """53 samples: the last batch of an epoch is uneven, and may leave ranks empty."""
    plain = virtual(KINDS[kind], ranks, dataset=DIGITS, momentum=0.9, **UNEVEN)
    for quorum in ("all", ranks):
        run = virtual(KINDS[kind], ranks, dataset=DIGITS, quorum=quorum, momentum=0.9, **UNEVEN)
        assert run.parameters.tobytes() == plain.parameters.tobytes()
        assert column(run, "start_s").tobytes() == column(plain, "start_s").tobytes()


@pytest.mark.parametrize("network", ["ideal", "ethernet-10g"])
@pytest.mark.parametrize("quorum", ["solo", "majority", 2])
@pytest.mark.parametrize("kind", KINDS)
def test_without_stragglers_all_contribute_whoever_begins(kind, quorum, network):
    plain = virtual(KINDS[kind], 5, dataset=EVEN, network=network)
    run = virtual(KINDS[kind], 5, dataset=EVEN, quorum=quorum, network=network)
    assert (column(run, "gradients") == 1).all()
    assert run.parameters.tobytes() == plain.parameters.tobytes()


# Some are.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("quorum", "late"), WAYS)
def test_all_ranks_merge_the_same_mean_of_the_same_ranks(kind, quorum, late):
    """A row tells for itself what came; `local` holds the same model behind it."""
    models: dict[int, set[str]] = {}
    clock, run = prepare(
        KINDS[kind], 5, dataset=DIGITS, quorum=quorum, late=late, network="ethernet-10g",
        steps=24, **UNEVEN,
    )  # fmt: skip
    for worker in run.workers:
        watch(worker, models)
    clock.run([algorithm_run(run.experiment, worker) for worker in run.workers])
    tau, delay = run.experiment.tau or 0, run.experiment.delay or 0
    if delay == 0:
        assert [len(models[step]) for step in range(tau, 25, tau)] == [1] * (24 // tau)
    told = list(range(tau + int(delay), 25, tau))
    used, contributors = rows(run, "used", told), rows(run, "contributors", told)
    assert (used.sum(1) == contributors.T).all()
    least = {"solo": 1, "majority": 1}.get(quorum, quorum)
    assert (contributors >= least).all()
    assert (column(run, "gradients") == 0).any(), "nobody was late, so nothing was tested"


def rows(run: Finished, name: str, steps: list[int]) -> np.ndarray:
    return np.array([[rows.steps[step][name] for rows in run.rows] for step in steps])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("quorum", "late"), WAYS)
def test_each_batch_counts_once_at_most_and_samples_are_those_that_entered(kind, quorum, late):
    run = virtual(KINDS[kind], 5, dataset=EVEN, quorum=quorum, late=late, network="ethernet-10g",
                  steps=36, **UNEVEN)  # fmt: skip
    done, age = column(run, "gradients") == 1, column(run, "staleness")
    batches = [(rank, step - age[step, rank]) for step, rank in zip(*np.nonzero(done), strict=True)]
    assert len(batches) == len(set(batches))
    assert ((age > 0).any()) == (late == "add")
    assert (column(run, "samples") == 3 * done).all()
    tau, delay = run.experiment.tau or 0, int(run.experiment.delay or 0)
    told = range(tau + delay, 37, tau)
    entered = sum(
        3 * done[step - delay - tau : step - delay, rank].sum() * run.rows[rank].steps[step]["used"]
        for step in told for rank in range(5)
    )  # fmt: skip
    open_ = 36 - tau * len(told)  # steps whose mean has not come
    assert run.workers[0].samples_used == entered + 3 * 5 * open_


def test_a_mean_is_over_the_samples_behind_the_models_that_came():
    """Rank 2 takes 2.5 steps' time for one: with drop it counts for nothing, with add for one step
    of three, and the others for three."""
    slow = {"dataset": EVEN, "straggler": "2:2.5x", "progress": "perfect", "steps": 3,
            "momentum": 0.0}  # fmt: skip
    alone = virtual(LOCAL, 3, tau=4, **slow).parameters
    one = virtual(LOCAL, 3, tau=4, **(slow | {"steps": 1})).parameters[2]
    for late, expected in (
        ("drop", alone[:2].mean(0)),
        ("add", (3 * alone[0] + 3 * alone[1] + one) / 7),
    ):
        run = virtual(LOCAL, 3, quorum=2, late=late, **slow)
        assert np.abs(run.parameters - expected).max() < 1e-14


def test_add_takes_the_gradient_under_way_from_the_mean():
    """Rank 1 misses round 1, goes on from its mean with the gradient that it had begun, and is the
    first to come to round 2."""
    slow = {"dataset": EVEN, "straggler": "1:1.5x", "progress": "perfect", "momentum": 0.0}
    one, two = (virtual(LOCAL, 2, **slow, tau=1, quorum=1, late="add", steps=steps)
                for steps in (1, 2))  # fmt: skip
    alone, begun = (virtual(LOCAL, 2, **slow, rate=rate, steps=1).parameters[1]
                    for rate in (0.2, 1e-300))  # fmt: skip
    assert column(two, "used").tolist() == [[1, 0], [0, 1]]
    assert np.abs(two.mean - (one.mean + (alone - begun))).max() < 1e-14


@pytest.mark.parametrize("algorithm", ["local", "dasgd"])
@pytest.mark.parametrize("factor", [4.6, 5.3])
def test_samples_a_second_beside_one_slow_rank(algorithm, factor):
    """M - 1 batches a step's time, and with `add` one more every `factor` steps' times. Behind the
    last merge of `dasgd` each rank does its steps."""
    slow = {"straggler": f"4:{factor}x", "progress": "perfect", "steps": 36}
    merged = 36 if algorithm == "local" else 33
    for late in ("drop", "add"):
        run = virtual(KINDS[algorithm], 5, dataset=EVEN, quorum=4, late=late, **slow)
        more = floor(merged / factor) if late == "add" else 0
        done = column(run, "gradients")[:merged]
        assert done[:, :4].all()
        assert done[:, 4].sum() == more
        ends = column(run, "start_s") + column(run, "step_s")
        assert ends[-1, :4] == pytest.approx(36 * STEP_S)
        if algorithm == "local":
            assert run.workers[0].samples_used == 3 * (36 * 4 + more)


# Around a run.


def stops(worker: Any, asked: int) -> tuple[bool, bool, bool]:
    """The signals of a rank that is asked to stop once it has come to a step."""
    return False, worker.rank == asked % worker.size and worker.step >= asked, False


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("late", ["drop", "add"])
def test_all_stop_at_one_step_and_agree_on_whether_they_are_equal(kind, late):
    """What they evaluate has to be the same: a sum where they are equal, else a mean before it."""
    ends = set()
    for asked in range(1, 12):
        clock, run = prepare(KINDS[kind], 4, dataset=EVEN, quorum="majority", late=late,
                             steps=24, evaluate_every=24, **UNEVEN)  # fmt: skip
        for worker in run.workers:
            worker.signals = partial(stops, worker, asked)  # type: ignore[method-assign]
        seen: list[tuple[int, bool]] = []
        evaluate = clock.evaluate
        clock.evaluate = lambda of, seen=seen, evaluate=evaluate: (  # type: ignore[method-assign]
            seen.append((of.step, of.equal)), evaluate(of)
        )  # fmt: skip
        clock.run([algorithm_run(run.experiment, worker) for worker in run.workers])
        assert len(seen) == 4
        assert len(set(seen)) == 1
        ends.add(seen[0][0])
    assert len(ends) > 1
    assert max(ends) < 24


def options(**more: Any) -> dict[str, Any]:
    named = {"algorithm": "local", "tau": 3, "model": "mlp", "hidden": (7,), "data": "digits",
             "batch": 3, "steps": 24, "rate": 0.2, "step_time": STEP_S, **UNEVEN}  # fmt: skip
    return named | more


@pytest.mark.parametrize("more", [{}, {"algorithm": "dasgd", "delay": 1, "late": "add"}])
def test_a_run_counts_what_was_used(more, tmp_path):
    path = tmp_path / "run.h5"
    run = mpisgd.run(**options(quorum="solo", **more), ranks=5, evaluate_every=6, output=path)
    share = run.evaluation["samples_used"][-1] / (5 * 3 * 24)
    assert share < 1
    plain = 24 if not more else 24 - 0.75 * 7
    assert run.evaluation["steps_effective"][-1] == pytest.approx(plain * share)
    with read(path) as file:
        told = row_of(file, "run")
    assert told["effective_steps"] == pytest.approx(plain * share)
    assert told["step_s"] == told["time_s"] / 24  # no median of rounds, which are of unlike lengths


REPLAYED: dict[str, dict[str, Any]] = {
    "drop": {"quorum": "solo", "momentum": 0.9, "nesterov": True},
    "add": {"quorum": 3, "late": "add", "clip": 0.5, "allreduce": "ring", "weight_decay": 0.01},
    "wire": {"quorum": "majority", "late": "add", "wire": "int8", "error_feedback": True},
}


@pytest.mark.parametrize("name", REPLAYED)
@pytest.mark.parametrize("kind", KINDS)
def test_the_rows_tell_all_that_decides_the_bits(kind, name):
    """53 samples: batches are uneven, and a late gradient may be of a smaller one."""
    experiment = replace(KINDS[kind], steps=25, network="ethernet-10g", **REPLAYED[name])
    clock, run = prepare(experiment, 4, dataset=DIGITS, data_samples=53, straggler="lognormal:0.7")
    clock.run([algorithm_run(run.experiment, worker) for worker in run.workers])
    told = {name: column(run, name).astype(int) for name in ("gradients", "staleness")}
    schedule = build(run.experiment.allreduce, 4)
    again = replay_models(run.experiment, told, schedule)
    assert clock.evaluated is not None
    assert digest(again) == digest(clock.evaluated.flat)
    done = told["gradients"][:20]
    done[done == 0], told["staleness"][:20] = 1, 0
    assert digest(replay_models(run.experiment, told, schedule)) != digest(clock.evaluated.flat)


@pytest.mark.parametrize("wrong", [{"gradients": 2}, {"gradients": -1}, {"staleness": 9}])
def test_rows_that_cannot_be_are_refused(wrong):
    told = {"gradients": np.ones((5, 2), int), "staleness": np.zeros((5, 2), int)}
    for name, value in wrong.items():
        told[name][1, 1] = value
    with pytest.raises(UsageError, match="/steps/gradients: tell of 0 or 1 gradient"):
        replay_models(replace(LOCAL, ranks=2), told, build("tree", 2))


def test_replay_reads_a_file(tmp_path, capsys):
    mpisgd.run(**options(quorum=3, late="add"), ranks=5, output=tmp_path / "run.h5")
    assert cli.main(["replay", str(tmp_path / "run.h5"), "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith("True")


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"quorum": 5}, "quorum 5: at most the ranks, 4"),
    ({"quorum": "solo", "wire": "topk:0.1"}, "--wire 'topk:0.1': in a format that rounds"),
    ({"quorum": 2, "algorithm": "slowmo"}, "quorum 2: slowmo has none"),
    ({"late": "add"}, "late 'add': needs a --quorum"),
]


@pytest.mark.parametrize(("given", "told"), MISTAKES)
def test_what_makes_no_sense_is_refused_in_a_line(given, told):
    with pytest.raises(UsageError, match=told):
        mpisgd.run(**options(**given), ranks=4)
