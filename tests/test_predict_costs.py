"""The cost formulas of all-reduces against their oracles and laws."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allreduce.network import PRESETS, Network
from mpisgd.predict import costs, networks, wires
from mpisgd.values.errors import UsageError

ETH20 = PRESETS["eth20-pcie3"]
MESSAGE = 102e6


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ("one-to-all", (0, 81.6, 163.2, 326.4, 571.2)),
        ("tree", (0, 81.6, 163.2, 244.8, 244.8)),
        ("butterfly", (0, 40.8, 81.6, 122.4, 122.4)),
    ],
)
def test_flat_costs(algorithm, expected):
    for ranks, milliseconds in zip((1, 2, 3, 5, 8), expected, strict=True):
        seconds = costs.allreduce_s(algorithm, ranks, MESSAGE, ETH20, topology="flat")
        assert seconds == pytest.approx(milliseconds / 1e3, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize(
    ("gbps", "ranks", "milliseconds"),
    [
        (20, 2, 6.375),
        (20, 8, 19.125),
        (20, 32, 100.725),
        (20, 128, 182.325),
        (10, 32, 182.325),
        (10, 128, 345.525),
    ],
)
def test_leader_costs(gbps, ranks, milliseconds):
    network = PRESETS[f"eth{gbps}-pcie3"]
    seconds = costs.allreduce_s("butterfly", ranks, MESSAGE, network)
    assert seconds == pytest.approx(milliseconds / 1e3, rel=1e-9)
    tree = costs.allreduce_s("tree", ranks, MESSAGE, network)
    assert tree == pytest.approx(2 * seconds, rel=1e-9)


def test_hierarchical_halving_doubling():
    seconds = costs.allreduce_s("halving-doubling", 256, MESSAGE, ETH20)
    assert round(1e3 * seconds, 1) == 90.2


def test_shared_nic_takes_the_servers_size_longer_between_servers():
    shared = {"topology": "shared-nic"}
    inside = costs.allreduce_s("butterfly", 8, MESSAGE, ETH20)
    between = costs.allreduce_s("butterfly", 32, MESSAGE, ETH20) - inside
    assert costs.allreduce_s("butterfly", 32, MESSAGE, ETH20, **shared) == pytest.approx(
        inside + 8 * between, rel=1e-9
    )
    assert costs.allreduce_s("butterfly", 8, MESSAGE, ETH20, **shared) == inside


@pytest.mark.parametrize(
    ("algorithm", "form"),
    [
        ("tree", lambda p, lg, a, b, g: 2 * lg * a + 2 * lg * b + lg * g),
        ("butterfly", lambda p, lg, a, b, g: lg * (a + b + g)),
        (
            "halving-doubling",
            lambda p, lg, a, b, g: 2 * lg * a + 2 * (p - 1) / p * b + (p - 1) / p * g,
        ),
        ("ring", lambda p, lg, a, b, g: 2 * (p - 1) * a + 2 * (p - 1) / p * b + (p - 1) / p * g),
        ("linear", lambda p, lg, a, b, g: p * (a + b)),
        ("bound", lambda p, lg, a, b, g: 2 * (p - 1) / p * b),
    ],
)
@pytest.mark.parametrize("ranks", [2, 4, 64, 1024])
def test_alpha_beta_gamma(algorithm, form, ranks):
    network = Network("test", 3e-6, 1e9, sum_s_per_B=2e-10)
    nbytes = 1e6
    expected = form(ranks, round(math.log2(ranks)), 3e-6, nbytes / 1e9, nbytes * 2e-10)
    seconds = costs.allreduce_s(algorithm, ranks, nbytes, network, topology="flat")
    assert seconds == pytest.approx(expected, rel=1e-9)


@given(st.sampled_from(sorted(costs.COSTS)), st.integers(1, 5000))
def test_no_algorithm_beats_the_bound(algorithm, ranks):
    assert costs.counts(algorithm, ranks).volume >= costs.counts("bound", ranks).volume * 0.999999
    assert costs.counts(algorithm, 1) == (0, 0, 0)


@given(st.integers(1, 3000))
def test_folding_costs_two_messages_more_than_the_power_below(ranks):
    power = 2 ** math.floor(math.log2(ranks))
    for algorithm in costs.FOLDED:
        folded = costs.counts(algorithm, ranks, "fold")
        base = costs.counts(algorithm, power)
        extra = 0 if power == ranks else 2
        assert folded.messages == base.messages + extra
        assert folded.volume == base.volume + extra
    assert costs.counts("ring", ranks, "fold") == costs.counts("ring", ranks)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 7, 8, 9, 2**40, 2**40 + 1, 2**60 + 1])
def test_log2_is_exact(ranks):
    steps = costs.log2_ceil(ranks)
    assert 2**steps >= ranks
    assert steps == 0 or 2 ** (steps - 1) < ranks


def test_costs_refuse():
    with pytest.raises(UsageError, match="--allreduce 'star'"):
        costs.allreduce_s("star", 2, 1.0, ETH20)
    with pytest.raises(UsageError, match="--rounding"):
        costs.counts("tree", 2, "up")
    bad_ranks: list = [0, -1, 1.5, math.nan]
    for ranks in bad_ranks:
        with pytest.raises(UsageError, match="ranks"):
            costs.allreduce_s("tree", ranks, 1.0, ETH20)
    for nbytes in (-1.0, math.inf, math.nan):
        with pytest.raises(UsageError, match="bytes"):
            costs.allreduce_s("tree", 2, nbytes, ETH20)


def test_an_average_of_fewer_bytes_takes_what_these_take():
    how = (64, MESSAGE, ETH20, "ceil", "flat")
    plain = ETH20.with_(sum_s_per_B=0.0)
    full, half = (
        costs.allreduce_s("ring", 64, n, plain, "ceil", "flat") for n in (MESSAGE, MESSAGE / 2)
    )
    assert wires.allreduce_s("bfloat16", 0.5, "ring", *how[:2], plain, *how[3:]) == half < full
    sums = costs.counts("ring", 64).sums * MESSAGE * 1e-9
    slow = plain.with_(sum_s_per_B=1e-9)  # sums are of the vector, not of the messages
    taken = wires.allreduce_s("bfloat16", 0.5, "ring", *how[:2], slow, *how[3:])
    assert taken == pytest.approx(half + sums)
    gathered = wires.allreduce_s("topk:0.01", 0.02, "ring", *how)
    link = networks.between(ETH20)
    assert gathered == pytest.approx(6 * link.latency_s + 63 * 0.02 * MESSAGE / link.bandwidth)
    twice = wires.allreduce_s("powersgd:4", 0.02, "ring", *how)
    assert twice == 2 * costs.allreduce_s("ring", 64, 0.01 * MESSAGE, ETH20, "ceil", "flat")


def test_what_travels_of_a_network_is_what_a_mean_of_its_parameters_sends():
    """VGG-16: 13 convolutions and 3 full layers, with biases."""
    assert wires.share("bfloat16", "vgg16") == 0.5
    assert wires.share("topk:0.01", "vgg16") == pytest.approx(0.02, rel=1e-6)
    convolutions = [64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    inputs = [3, *convolutions]
    sides = [(n, 9 * m) for n, m in zip(convolutions, inputs, strict=False)]
    sides += [(4096, 25088), (4096, 4096), (1000, 4096)]
    biases, values = sum(n for n, _ in sides), sum(4 * (n + m) for n, m in sides)
    every = sum(n * m for n, m in sides) + biases
    assert every == 138_357_544
    assert wires.share("powersgd:4", "vgg16") == pytest.approx((values + biases) / every)
