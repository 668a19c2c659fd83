"""The laws of gossip (Lian et al. 2018, arXiv 1710.06952): averages of pairs, on virtual ranks."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from test_laws import DIGITS, EVEN, NETWORK, OPTIMISERS
from virtual_runs import Finished, far, virtual

import mpisgd
from allreduce.pairs import heard_by_all, partners
from mpisgd.experiment.experiment import Experiment
from mpisgd.report.accounting import row as row_of
from mpisgd.report.lateness import lateness
from mpisgd.store.reader import read
from mpisgd.training.worker import Worker
from mpisgd.values.errors import NotFinite, UsageError

GOSSIP = replace(NETWORK, algorithm="gossip", batch=4)
STILL = replace(GOSSIP, rate=0.0, momentum=0.0, initial="own", delay=0, tau=1)


def met(number: int, ranks: int) -> np.ndarray:
    return partners(GOSSIP.seed, number, ranks)


def column(run: Finished, name: str) -> np.ndarray:
    """[step, rank] of what was recorded."""
    steps = range(1, run.workers[0].step + 1)
    return np.array([[rows.steps[step][name] for rows in run.rows] for step in steps])


# What it is at the ends of its options.


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("tau", [1, 4])
def test_two_ranks_that_average_at_once_are_local_sgd_bit_for_bit(tau, optimiser):
    options: dict[str, Any] = {"tau": tau, "rate_schedule": "linear-tail", **OPTIMISERS[optimiser]}
    run = virtual(GOSSIP, 2, dataset=EVEN, delay=0, **options)
    local = virtual(GOSSIP, 2, dataset=EVEN, algorithm="local", **options)
    assert run.parameters.tobytes() == local.parameters.tobytes()
    later = virtual(GOSSIP, 2, dataset=EVEN, delay=1, **options)
    assert later.parameters.tobytes() != local.parameters.tobytes()


@pytest.mark.parametrize("delay", [0, 1, 3])
def test_two_ranks_that_average_later_are_dasgd_with_the_merge_that_loses_nothing(delay):
    run = virtual(GOSSIP, 2, dataset=EVEN, delay=delay, tau=3)
    dasgd = {"algorithm": "dasgd", "merge": "delta"} if delay else {"algorithm": "local"}
    other = virtual(GOSSIP, 2, dataset=EVEN, tau=3, **{"delay": delay or None, **dasgd})
    assert run.parameters.tobytes() == other.parameters.tobytes()


@pytest.mark.parametrize(("tau", "delay"), [(1, 0), (1, 1), (4, 2)])
def test_one_rank_is_plain_sgd_bit_for_bit(tau, delay):
    run = virtual(GOSSIP, 1, dataset=DIGITS, tau=tau, delay=delay)
    plain = virtual(GOSSIP, 1, dataset=DIGITS, algorithm="minibatch")
    assert run.parameters.tobytes() == plain.parameters.tobytes()


# Averages of pairs.


@pytest.mark.parametrize("ranks", [3, 4, 7, 8])
def test_ranks_that_learn_nothing_meet_as_the_seed_says(ranks):
    begun = virtual(STILL, ranks, dataset=EVEN, steps=1, tau=2).parameters
    expected = begun.copy()
    for number in range(1, 6):
        run = virtual(STILL, ranks, dataset=EVEN, steps=number)
        pairs = met(number, ranks)
        expected = (expected + expected[pairs]) / 2
        assert run.parameters.tobytes() == expected.tobytes()
        others = np.where(pairs == np.arange(ranks), -1, pairs)
        assert np.array_equal(column(run, "partner")[-1], others)
    assert far(run.mean, begun.mean(axis=0)) < 1e-14


@pytest.mark.parametrize(("tau", "delay"), [(1, 0), (1, 1), (3, 0), (3, 2), (3, 3)])
@pytest.mark.parametrize("ranks", [3, 4])
def test_what_all_ranks_learn_is_in_their_mean_and_nothing_else_is(ranks, tau, delay):
    """The mean moves by the mean of the updates, whoever met whom, in flight or not."""
    updates: list[np.ndarray] = []

    def noted(worker: Any) -> None:
        update = worker.update

        def note(gradient: np.ndarray) -> None:
            updates.append(worker.rate(worker.step) * gradient)
            update(gradient)

        worker.update = note

    options: dict[str, Any] = {"tau": tau, "delay": delay, "momentum": 0.0}
    begun = virtual(GOSSIP, ranks, dataset=DIGITS, rate=0.0, steps=1, **options).mean
    run = virtual(GOSSIP, ranks, touch=noted, dataset=DIGITS, **options)
    assert far(run.mean, begun - np.sum(updates, axis=0) / ranks) < 1e-13


@pytest.mark.parametrize("ranks", [2, 4, 6, 9, 16])
def test_the_distance_to_the_mean_falls_as_random_pairs_let_it(ranks):
    """Of sum_j |x^j - mean|^2, n pairs of P leave 1 - n/(P - 1) on average: about half."""
    apart = np.random.default_rng(1).normal(size=(ranks, 40))
    apart -= apart.mean(axis=0)
    left = []
    for number in range(600):
        after = (apart + apart[met(number, ranks)]) / 2
        left.append((after**2).sum() / (apart**2).sum())
    expected = 1 - (ranks // 2) / (ranks - 1)
    error = 5 * np.std(left) / np.sqrt(len(left)) + 1e-12
    assert abs(np.mean(left) - expected) < error
    assert error < 0.02


# Time.


@pytest.mark.parametrize(("tau", "delay"), [(1, 0), (1, 1), (3, 0), (3, 2), (3, 3)])
@pytest.mark.parametrize("ranks", [4, 7])
def test_a_rank_waits_for_whom_it_meets_and_for_nobody_else(ranks, tau, delay):
    """Messages take no time: a merge waits for when the other one began."""
    seconds = np.random.default_rng(0).lognormal(-5, 0.5, (30, ranks))
    run = virtual(
        GOSSIP, ranks, dataset=EVEN, steps=29, tau=tau, delay=delay,
        step_time=lambda rank, step: float(seconds[step, rank]),
    )  # fmt: skip
    ends, now, begun = column(run, "start_s") + column(run, "step_s"), np.zeros(ranks), {}
    for k in range(1, 30):
        now = now + seconds[k]
        if k % tau == 0 and delay < tau:
            begun[k // tau] = now
        if k > delay and (k - delay) % tau == 0:
            number = (k - delay) // tau
            now = np.maximum(now, begun[number][met(number, ranks)])
        if k % tau == 0 and delay == tau:
            begun[k // tau] = now
        assert ends[k - 1] == pytest.approx(now)


def test_a_slow_rank_holds_up_those_whom_it_has_reached():
    """After t rounds at most 2^t ranks: it, whom it met, whom they met since."""
    ranks, slow = 16, 5
    run = virtual(
        GOSSIP, ranks, dataset=EVEN, steps=8, tau=1, delay=0,
        step_time=lambda rank, step: 4e-3 if rank == slow else 1e-3,
    )  # fmt: skip
    reached, counts = np.arange(ranks) == slow, [1]
    for k, waited in enumerate(column(run, "wait_s"), 1):
        reached = reached | reached[met(k, ranks)]
        counts.append(int(reached.sum()))
        others = np.arange(ranks) != slow
        assert (waited[~reached] == 0).all()
        assert (waited[slow], (waited[reached & others] > 0).any()) == (0, True)
    assert all(after <= 2 * before for before, after in pairwise(counts))
    assert counts[3] < ranks == counts[-1]


# Signals: nobody tells all, and all heed them at the end of one step.


@pytest.mark.parametrize(("tau", "delay"), [(1, 0), (2, 1), (2, 2)])
@pytest.mark.parametrize("ranks", [1, 2, 5, 8])
def test_who_is_asked_to_stop_stops_all_at_the_end_of_one_step(ranks, tau, delay):
    """Two are asked, one of them later: the first that all have heard of counts."""
    rounds = {0: 2, ranks - 1: 3}

    def asked(worker: Any) -> None:
        worker.signals = lambda: (
            False, worker.step >= tau * rounds.get(worker.rank, 99), False
        )  # fmt: skip

    run = virtual(GOSSIP, ranks, touch=asked, dataset=DIGITS, steps=90, tau=tau, delay=delay)
    due = min(heard_by_all(GOSSIP.seed, rounds[rank], ranks, rank) for rank in rounds)
    assert {worker.step for worker in run.workers} == {tau * due + delay}
    assert all(worker.stopping for worker in run.workers)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("delay", [0, 1])
def test_what_is_not_finite_is_told_of_and_taken_by_nobody(delay):
    workers: list[Worker] = []

    def broken(worker: Any) -> None:
        workers.append(worker)
        gradient = worker.model.gradient

        def spoil(parameters: Any, inputs: Any, targets: Any, into: Any, *told: Any) -> float:
            loss = gradient(parameters, inputs, targets, into, *told)
            if worker.rank == 2 and worker.step == 4:
                into.flat[3] = np.inf
            return loss

        worker.model.gradient = spoil

    with pytest.raises(NotFinite, match="not finite on rank 2 at step 4"):
        virtual(GOSSIP, 6, touch=broken, dataset=EVEN, steps=90, tau=1, delay=delay)
    spoilt = [not np.isfinite(worker.parameters.flat).all() for worker in workers]
    assert spoilt == [worker.rank == 2 for worker in workers]


# Around a run.


def test_an_evaluation_is_of_the_mean_and_makes_nobody_wait():
    often, never = (
        virtual(
            GOSSIP,
            4,
            dataset=EVEN,
            evaluate_every=every,
            straggler="lognormal:0.5",
            step_time_s=1e-3,
        )
        for every in (1, 0)
    )
    assert column(often, "start_s").tobytes() == column(never, "start_s").tobytes()
    assert often.parameters.tobytes() == never.parameters.tobytes()
    last = often.rows[0].evaluations[11][0], never.rows[0].evaluations[11][0]
    assert np.array_equal(last[0][:3], last[1][:3])


@pytest.mark.parametrize(("tau", "delay"), [(1, 0), (3, 0), (1, 1)])
@pytest.mark.parametrize("ranks", [4, 5])
def test_a_report_has_the_pace_of_all_and_who_held_its_partners_up(tmp_path, ranks, tau, delay):
    """Messages take no time. With `delay` 0 what a rank waits is what its partner came later."""
    path = tmp_path / "run.h5"
    mpisgd.run(algorithm="gossip", ranks=ranks, steps=40, tau=tau, delay=delay, network="ideal",
               straggler="2:3x", step_time_s=1e-3, output=path)  # fmt: skip
    with read(path) as run:
        told = row_of(run, "run")
        assert told["step_s"] == told["time_s"] / 40
        assert told["effective_steps"] == 40
        rows, waited = lateness(run), run.steps["wait_s"].sum()
        assert sum(row["averages"] for row in rows) <= 40 // tau * ranks
        assert rows[0]["rank"] == 2
        assert rows[0]["late_s"] > 0
        held_up = sum(row["held_up_s"] for row in rows)
        assert held_up == pytest.approx(waited) if delay == 0 else held_up > waited > 0


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"wire": "topk:0.1"}, "--wire 'topk:0.1': for averages that all ranks go on from; gossip"),
    ({"wire": "powersgd:2"}, "gossip keeps ranks apart"),
    ({"xi": 0.5}, "xi 0.5: gossip has none"),
    ({"tau": 2, "delay": 3}, "--delay 3: at most --tau, which is 2"),
]


@pytest.mark.parametrize(("given", "told"), MISTAKES)
def test_what_makes_no_sense_is_refused_in_a_line(given, told):
    with pytest.raises(UsageError, match=told):
        mpisgd.run(algorithm="gossip", ranks=3, steps=2, **given)


def test_a_delay_that_hides_a_message_is_less_than_one_that_hides_an_all_reduce():
    delays = [
        mpisgd.run(algorithm=name, ranks=8, steps=12, delay="auto", network="ethernet-10g",
                   step_time_s=2e-5, allreduce="tree").record.config["delay"]
        for name in ("gossip", "dasgd")
    ]  # fmt: skip
    assert 0 < delays[0] < delays[1]


def test_the_experiment_keeps_what_was_asked():
    experiment = Experiment(algorithm="gossip").resolved(4, 100)
    assert (experiment.tau, experiment.delay, experiment.xi) == (4, 1, None)
