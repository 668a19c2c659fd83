"""Laws of the algorithms around the delayed average: what each is at the ends of its options."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from test_laws import DIGITS, EVEN, NETWORK, OPTIMISERS
from virtual_runs import far, virtual

from mpisgd.predict.epoch import rhythm, rhythm_cost
from mpisgd.training.effective import averages, effective_steps
from mpisgd.training.worker import Worker

RANKS = 3


def parameters(ranks: int = RANKS, steps: int = 13, **options: Any) -> np.ndarray:
    experiment = replace(NETWORK, steps=steps, rate_schedule="linear-tail")
    return virtual(experiment, ranks, dataset=DIGITS, **options).parameters


def same(one: dict[str, Any], other: dict[str, Any], **common: Any) -> bool:
    return parameters(**one, **common).tobytes() == parameters(**other, **common).tobytes()


PLAIN: dict[str, Any] = {"outer_momentum": 0.0, "outer_rate": 1.0}


@pytest.mark.parametrize("optimiser", ["momentum", "rmsprop"])
@pytest.mark.parametrize("tau", [1, 4])
def test_diloco_without_momentum_at_rate_1_is_local_sgd_bit_for_bit(tau, optimiser):
    diloco = {"algorithm": "diloco", **PLAIN}
    assert same(diloco, {"algorithm": "local"}, tau=tau, **OPTIMISERS[optimiser])


@pytest.mark.parametrize("outer_rate", [1.0, 0.5])
def test_diloco_at_each_step_is_sgd_with_nesterovs_momentum(outer_rate):
    """Of one step the average has moved rate times the mean gradient."""
    experiment = replace(NETWORK, batch=4, momentum=0.0)
    outer: dict[str, Any] = {"outer_momentum": 0.8, "outer_rate": outer_rate}
    run = virtual(experiment, RANKS, dataset=EVEN, algorithm="diloco", tau=1, **outer)
    plain = virtual(
        experiment, RANKS, dataset=EVEN, momentum=0.8, nesterov=True, rate=0.2 * outer_rate
    )
    assert far(run.mean, plain.mean) < 1e-12


@pytest.mark.parametrize(("tau", "delay"), [(1, 0), (1, 1), (4, 0), (4, 1), (4, 4), (5, 3)])
def test_streaming_diloco_of_one_fragment_is_dasgd_bit_for_bit(tau, delay):
    one = {"algorithm": "streaming-diloco", "fragments": 1, **PLAIN}
    assert same(one, {"algorithm": "dasgd"}, tau=tau, delay=delay, xi=0.3)


@pytest.mark.parametrize("fragments", [2, 3, 7])
def test_each_fragment_is_merged_by_itself_a_phase_after_the_one_before(fragments):
    """With a rate of 0 only merges change anything: ranks that begin apart meet part by part."""

    def apart(worker: Worker) -> None:
        worker.parameters.flat[:] = worker.rank

    tau = 8
    options = {"algorithm": "streaming-diloco", "tau": tau, "delay": 1, "xi": 0.0, **PLAIN}
    for steps in range(tau, 2 * tau + 2):
        experiment = replace(NETWORK, rate=0.0, momentum=0.0, batch=4, steps=steps)
        run = virtual(experiment, RANKS, touch=apart, dataset=EVEN, fragments=fragments, **options)
        size = run.workers[0].parameters.size
        edges = [size * i // fragments for i in range(fragments + 1)]
        for part in range(fragments):
            values = run.parameters[:, edges[part] : edges[part + 1]]
            merged = steps > tau + part * tau // fragments
            expected = np.ones(RANKS) if merged else np.arange(RANKS)
            assert np.allclose(values, expected[:, None], atol=1e-12)


def test_of_what_streaming_throws_away_each_fragment_has_its_share():
    config = {"algorithm": "streaming-diloco", "tau": 4, "delay": 2, "xi": 0.5}
    assert effective_steps(config | {"fragments": 1}, 10) == 10 - 2 * 0.5 * 2
    # Of two, the second merges at 8 alone, the first at 6 and 10.
    assert effective_steps(config | {"fragments": 2}, 10) == 10 - 2 * 0.5 * (2 + 1) / 2


@pytest.mark.parametrize("optimiser", ["momentum", "rmsprop"])
def test_post_local_is_local_sgd_at_one_end_and_minibatch_at_the_other(optimiser):
    options = OPTIMISERS[optimiser]
    post = {"algorithm": "post-local", "tau": 3}
    assert same({**post, "switch": 0}, {"algorithm": "local", "tau": 3}, **options)
    assert same({**post, "switch": 13}, {"algorithm": "minibatch"}, **options)
    assert not same({**post, "switch": 6}, {"algorithm": "minibatch"}, **options)
    assert same({**post, "switch": 6}, post, **options)  # half of 13


def test_easgd_without_elasticity_leaves_ranks_alone():
    alone = {"algorithm": "local", "tau": 99}
    assert same({"algorithm": "easgd", "tau": 3, "elasticity": 0.0}, alone)
    assert not same({"algorithm": "easgd", "tau": 3, "elasticity": 0.1}, alone)


def apart_at_rest(steps: int, elasticity: float, ranks: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Ranks that begin apart and learn nothing: their parameters, and the centres that they keep
    after the averages that have come."""

    def apart(worker: Any) -> None:
        worker.parameters.flat[:] = worker.rank
        worker.keep = lambda name, value: Worker.keep(worker, name, np.zeros_like(value))

    experiment = replace(NETWORK, rate=0.0, momentum=0.0, batch=4, steps=steps)
    run = virtual(
        experiment, ranks, touch=apart, dataset=EVEN, algorithm="easgd", tau=1,
        elasticity=elasticity,
    )  # fmt: skip
    return run.parameters, np.array([worker.kept["centre"] for worker in run.workers])


def test_the_springs_of_easgd_neither_make_nor_lose_anything():
    """Sum of the ranks + centre is the same after every round: the forces are equal, opposite."""
    totals = []
    for steps in range(1, 6):
        after, _ = apart_at_rest(steps, 0.6)
        _, centre = apart_at_rest(steps + 1, 0.6)  # of the round before
        totals.append(after.sum(axis=0) + centre[0])
        assert (centre == centre[0]).all()
    assert far(np.array(totals), np.array(totals[:1] * 5)) < 1e-12


def test_easgd_draws_ranks_together():
    after, centre = apart_at_rest(60, 0.9)
    assert np.ptp(after, axis=0).max() < 1e-4
    assert far(after[0], centre[0]) < 1e-4


# Ranks that begin apart, and rates that begin low.


@pytest.mark.parametrize("name", ["local", "dasgd"])
def test_ranks_that_draw_their_own_parameters_meet_by_averages_alone(name):
    """At rate 0 Local SGD holds the mean of what was drawn, DaSGD that and xi of the distance."""
    experiment = replace(NETWORK, rate=0.0, momentum=0.0, batch=4, tau=2, initial="own")
    begun = virtual(experiment, RANKS, dataset=EVEN, algorithm=name, steps=1).parameters
    assert len({row.tobytes() for row in begun}) == RANKS
    equal = virtual(experiment, RANKS, dataset=EVEN, algorithm=name, steps=1, initial="equal")
    assert len({row.tobytes() for row in equal.parameters}) == 1
    run = virtual(experiment, RANKS, dataset=EVEN, algorithm=name, steps=4).parameters
    left = {"local": 0.0, "dasgd": 0.25}[name]
    expected = left * begun + (1 - left) * begun.mean(axis=0)
    assert far(run, expected) < 1e-12


def test_with_linear_scaling_a_warm_up_begins_at_the_rate_of_one_worker():
    options = {"rate_schedule": "constant", "warm_up": 4, "batch": 4}
    for scaling, rates in ((True, [0.3, 0.4, 0.5, 0.6, 0.6]), (False, [0.05, 0.1, 0.15, 0.2, 0.2])):
        run = virtual(NETWORK, RANKS, dataset=EVEN, linear_scaling=scaling, steps=5, **options)
        assert [run.rows[0].steps[k]["rate"] for k in range(1, 6)] == pytest.approx(rates)


# What docs/algorithms.md and `predict` say of seconds is what the clock gives.

STEP_S = 1e-3


@pytest.mark.parametrize("link_s", [0.4, 1.7, 6.0])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("local", {}),
        ("diloco", {}),
        ("dasgd", {"delay": 1}),
        ("streaming-diloco", {"delay": 1, "fragments": 2}),
        ("easgd", {}),
        ("gossip", {"delay": 1}),
    ],
)
def test_rounds_take_the_seconds_that_are_predicted(name, options, link_s, tmp_path):
    """Messages that cost bytes alone; t_c of all parameters is `link_s` steps."""
    tau, steps, ranks = 4, 41, 4
    size = virtual(NETWORK, 1, dataset=EVEN, steps=1).workers[0].parameters.buffer.nbytes
    network = tmp_path / "bytes.toml"
    rate = 2 * size / (link_s * STEP_S)  # a butterfly of 4 ranks sends all twice
    network.write_text(
        f"latency_s = 0\noverhead_s = 0\nbandwidth_Bps = {rate}\nsum_s_per_B = 0\nlook_s = 0\n"
    )
    experiment = replace(
        NETWORK, algorithm=name, tau=tau, steps=steps, network=str(network), progress="perfect",
        batch=2,
    )  # fmt: skip
    experiment = replace(experiment, **options)
    run = virtual(experiment, ranks, dataset=EVEN, step_time=lambda rank, step: STEP_S)
    last = run.rows[0].steps[steps]
    seconds = last["start_s"] + last["step_s"]
    found = rhythm(name, tau, options.get("delay", 0))
    part_s = link_s * STEP_S / (2 if found.pairs else found.parts)  # a pair sends all once
    cost = rhythm_cost(STEP_S, part_s, ranks, found)
    late = [tau * part // found.parts for part in range(found.parts)]  # phases
    rounds = np.mean([averages({"tau": tau, "delay": found.delay}, steps - d) for d in late])
    assert seconds == pytest.approx(steps * STEP_S + rounds * tau * cost.exposed_s, rel=0.02)
