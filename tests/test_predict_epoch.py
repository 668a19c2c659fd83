"""The epoch model against its oracles and laws: delays, stalls, noise, overlap, studies."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allreduce.network import PRESETS
from mpisgd.predict import costs, epoch, nets, paleo, study
from mpisgd.predict.devices import DEVICES
from mpisgd.predict.epoch import Bucket, Conditions, averaging_cost, overlap_cost
from mpisgd.values.errors import UsageError

TITANX = DEVICES["titanx"]
ETH20 = PRESETS["eth20-pcie3"]
PALEO_NET = nets.layers("resnet50-paleo")
MESSAGE = 102e6
TIMES = st.floats(1e-6, 1e3)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [(8, (821.99, 786.08, 774.12)), (32, (256.66, 209.37, 193.61))],
)
def test_epoch_oracle(ranks, expected):
    asked = study.Study(
        TITANX,
        ETH20,
        ("resnet50-paleo",),
        (ranks,),
        algorithms=("minibatch", "local", "dasgd"),
        tau=4,
        delay=1,
        nbytes=MESSAGE,
    )
    rows = list(study.epoch_rows(asked))
    assert tuple(round(row["epoch_s"], 2) for row in rows) == expected
    for row in rows:
        parts = row["epoch_compute_s"] + row["epoch_exposed_s"] + row["epoch_waiting_s"]
        assert parts == pytest.approx(row["epoch_s"], rel=1e-12)


def test_the_paper_counts_2450_iterations():
    assert 50 * epoch.iterations(50_000, 32, 32) == 2450


@pytest.mark.parametrize(
    ("t_p", "t_c", "workers", "delay"),
    [
        (1.0, 0.0, 8, 1),
        (1.0, 0.5, 8, 1),
        (1.0, 1.0, 8, 1),
        (1.0, 1.0 + 1e-6, 8, 2),
        (0.1, 0.3, 8, 3),  # 0.3/0.1 is a little above 3 in floating point
        (0.7, 4.9, 3, 7),
        (1.0, 5.0, 1, 0),
        (1.0, 0.0, 1, 0),
    ],
)
def test_delay_rule(t_p, t_c, workers, delay):
    assert epoch.delay_rule(t_p, t_c, workers) == delay


@given(TIMES, st.floats(0, 1e3), st.integers(2, 300))
def test_the_rule_is_the_smallest_delay_that_hides(t_p, t_c, workers):
    delay = epoch.delay_rule(t_p, t_c, workers)
    assert t_c <= delay * t_p * (1 + 1e-8) + 1e-9 * t_p
    assert delay == 1 or t_c > (delay - 1) * t_p
    cost = averaging_cost(t_p, t_c, workers, delay + 1, delay)
    assert cost.exposed_s == pytest.approx(0, abs=1e-8 * t_p)


@pytest.mark.parametrize(
    ("t_p", "t_c"),
    [(0.0, 1.0), (-1.0, 1.0), (math.nan, 1.0), (math.inf, 1.0), (1.0, -1.0), (1.0, math.nan)],
)
def test_bad_times(t_p, t_c):
    with pytest.raises(UsageError, match=r"t_p|t_c"):
        epoch.delay_rule(t_p, t_c, 4)
    with pytest.raises(UsageError, match=r"t_p|t_c"):
        averaging_cost(t_p, t_c, 4)


def test_times_too_far_apart():
    with pytest.raises(UsageError, match="too small"):
        epoch.delay_rule(5e-324, 1e300, 4)


@given(TIMES, st.floats(0, 1e3), st.integers(1, 8), st.data())
def test_stall_is_what_the_window_leaves(t_p, t_c, tau, data):
    delay = data.draw(st.integers(0, tau))
    cost = averaging_cost(t_p, t_c, 4, tau, delay)
    assert cost.exposed_s * tau == pytest.approx(max(0.0, t_c - delay * t_p), rel=1e-9, abs=1e-9)
    assert cost.slowed_s == cost.noise_s == 0
    # The network port is serial: a delay beyond tau hides no more than tau.
    assert averaging_cost(t_p, t_c, 4, tau, tau + 3) == averaging_cost(t_p, t_c, 4, tau, tau)


def test_degenerate_algorithms():
    t_p, t_c = 0.3, 0.2
    assert averaging_cost(t_p, t_c, 4, 1, 0).step_s == pytest.approx(t_p + t_c)
    assert averaging_cost(t_p, t_c, 4, 5, 0).step_s == pytest.approx(t_p + t_c / 5)
    assert averaging_cost(t_p, 0.0, 4, 5, 0).step_s == t_p


def test_progress_share():
    def exposed(share):
        return averaging_cost(1.0, 0.8, 4, 2, 1, Conditions(progress=share)).exposed_s

    assert exposed(1.0) == 0
    assert exposed(0.0) == pytest.approx(0.8 / 2)
    assert exposed(0.5) == pytest.approx(0.4 / 2)


@given(st.floats(0, 2), st.floats(0, 5))
def test_slowdown_keeps_the_balance_of_seconds(slow, t_c):
    """In flight for t_c beside a window of d steps: the work done meanwhile is slowed."""
    tau, delay, t_p = 3, 2, 1.0
    cost = averaging_cost(t_p, t_c, 4, tau, delay, Conditions(slowdown=slow))
    hidden = t_c - cost.exposed_s * tau
    work = hidden / (1 + slow)
    assert work <= delay * t_p + 1e-9
    assert cost.slowed_s * tau == pytest.approx(slow * work, abs=1e-9)


def test_noise_without_spread_is_no_noise():
    quiet = averaging_cost(1.0, 0.5, 16, 4, 1, Conditions(noise=1e-12))
    assert quiet.noise_s == pytest.approx(0, abs=1e-9)


def test_noise_grows_with_ranks_and_is_hidden_by_delay():
    def noise(workers, tau, delay):
        return averaging_cost(1.0, 0.5, workers, tau, delay, Conditions(noise=0.1)).noise_s

    assert noise(1, 1, 0) == 0
    assert 0 < noise(2, 1, 0) < noise(16, 1, 0) < noise(256, 1, 0)
    assert noise(16, 4, 0) < noise(16, 1, 0)
    assert noise(16, 4, 2) < noise(16, 4, 0)
    # The mean of the largest of two normal values is 1/sqrt(pi) deviations above the mean.
    assert noise(2, 1, 0) == pytest.approx(0.1 / math.sqrt(math.pi), rel=0.15)


def test_overlap_by_hand():
    parts = [Bucket(2.0, 1.0), Bucket(3.0, 2.0), Bucket(4.0, 1.0)]
    # 2..3.5, then 3.5..6.5, then 6.5..8 against an end of backward at 4
    cost = overlap_cost(4.5, 4.0, parts, lambda nbytes: 1.5 * nbytes, 4)
    assert cost.exposed_s == pytest.approx(4.0)
    assert cost.step_s == pytest.approx(8.5)
    # Communication that is quick leaves only the last bucket exposed.
    assert overlap_cost(4.5, 4.0, parts, lambda n: 0.1 * n, 4).exposed_s == pytest.approx(0.1)
    assert overlap_cost(4.5, 4.0, parts, lambda n: 0.0, 4).exposed_s == 0


@given(st.floats(1e-4, 10), st.integers(1, 9))
def test_overlap_never_loses_to_minibatch_in_bandwidth(t_c, count):
    parts = epoch.even_buckets(1.0, t_c, count, 2 / 3)
    cost = overlap_cost(1.0, 1.0, parts, float, 4)
    assert t_c / count - 1e-9 <= cost.exposed_s <= t_c + 1e-9
    serial = overlap_cost(1.0, 1.0, parts, float, 4, Conditions(progress=0.0))
    assert serial.exposed_s == pytest.approx(t_c)


@pytest.mark.parametrize("bucket_bytes", [1.0, 25e6, 1e12])
def test_buckets_hold_the_whole_gradient_in_backward_order(bucket_bytes):
    step = paleo.step_time(PALEO_NET, TITANX, 64)
    parts = epoch.buckets(step, MESSAGE, bucket_bytes)
    assert sum(part.nbytes for part in parts) == pytest.approx(MESSAGE)
    ready = [part.ready_s for part in parts]
    assert ready == sorted(ready)
    assert step.forward_s < ready[0]
    assert ready[-1] == pytest.approx(step.forward_s + step.backward_s)
    assert len(parts) == {1.0: 54, 25e6: len(parts), 1e12: 1}[bucket_bytes]


def test_a_share_or_a_merge_that_there_is_not_is_refused():
    with pytest.raises(UsageError, match="--xi"):
        epoch.check_merge(1.5, "convex")
    with pytest.raises(UsageError, match="--merge"):
        epoch.check_merge(0.5, "average")


def asked(**changes):
    return study.Study(TITANX, ETH20, **({"workers": (4,)} | changes))


def test_delay_equal_to_tau_is_allowed_and_beyond_is_not():
    (row,) = study.epoch_rows(asked(algorithms=("dasgd",), tau=2, delay=2))
    assert (row["tau"], row["delay"], row["effective_share"]) == (2, 2, pytest.approx(0.25))
    with pytest.raises(UsageError, match="--delay 3: at most tau = 2"):
        asked(tau=2, delay=3)
    slow = replace(ETH20, bandwidth_Bps=0.1e9 / 8)
    with pytest.raises(UsageError, match="--delay"):
        list(study.epoch_rows(study.Study(TITANX, slow, workers=(64,), tau=2, topology="flat")))


def test_work_that_is_all_thrown_away_takes_for_ever():
    (row,) = study.epoch_rows(asked(algorithms=("dasgd",), tau=2, delay=2, xi=0.0))
    assert row["effective_step_s"] == math.inf


def test_one_rank_has_no_communication():
    for allreduce in costs.COSTS:
        for row in study.epoch_rows(asked(workers=(1,), allreduces=(allreduce,))):
            assert (row["exposed_s"], row["hidden_share"]) == (0, None)
            assert row["delay"] == 0 or row["algorithm"] == "easgd"
            assert row["step_s"] == row["compute_s"]


def test_ranks_that_are_no_power_of_two():
    three, four = study.epoch_rows(asked(workers=(3, 4), algorithms=("minibatch",)))
    assert three["allreduce_s"] == four["allreduce_s"]
    folded, _ = study.epoch_rows(asked(workers=(3, 4), algorithms=("minibatch",), rounding="fold"))
    assert folded["allreduce_s"] == pytest.approx(1.5 * three["allreduce_s"])


def test_strong_scaling():
    rows = list(
        study.epoch_rows(
            asked(workers=(1, 3, 64), algorithms=("minibatch",), batch=64, scaling="strong")
        )
    )
    assert [row["local_batch"] for row in rows] == [64, 22, 1]
    assert len({row["iterations"] for row in rows}) == 1
    assert rows[0]["compute_s"] > rows[1]["compute_s"] > rows[2]["compute_s"]
    with pytest.raises(UsageError, match="at most --batch 64"):
        asked(workers=(65,), batch=64, scaling="strong")


def test_delay_rows_follow_the_rule():
    for row in study.delay_rows(asked(nets=("vgg16-cifar", "resnet50"), workers=(1, 128))):
        assert row["delay"] == epoch.delay_rule(row["compute_s"], row["allreduce_s"], row["ranks"])
        assert row["tau"] == row["delay"] + 1
        assert row["source"] == "model"


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"workers": (0,)}, "--ranks"),
        ({"batch": 0}, "--batch"),
        ({"samples": 0}, "--samples"),
        ({"xi": math.nan}, "--xi"),
        ({"scaling": "medium"}, "--scaling"),
        ({"algorithms": ("sgd",)}, "--algorithms"),
        ({"tau": 0}, "--tau"),
        ({"delay": -1}, "--delay"),
    ],
)
def test_study_refuses(changes, place):
    with pytest.raises(UsageError, match=place):
        asked(**changes)


@pytest.mark.parametrize("name", ["progress", "slowdown", "noise"])
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_conditions_refuse(name, value):
    with pytest.raises(UsageError, match=f"--{name}"):
        Conditions(**{name: value})
