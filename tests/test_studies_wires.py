"""The study of wires: what its scaled network stands for, and where fewer bytes cease to pay."""

import math

import pytest

from allreduce.algorithms import build
from allreduce.simulate import simulate


@pytest.fixture
def wires(studies_on_the_path):
    import wires

    return wires


@pytest.mark.parametrize("gbps", [0.1, 3.0, 100.0])
def test_the_small_network_on_slow_links_takes_as_long_as_the_large_one(wires, gbps):
    average_s = simulate(build(wires.SCHEDULE, 8), wires.NBYTES, wires.link(gbps)).max()
    for name, averages in (("minibatch", 1), ("local", 1 / wires.TAU)):
        found = wires.run_use({"name": name, "ranks": 8, "gbps": gbps})["use"]
        assert found == pytest.approx(
            wires.STEP_S / (wires.STEP_S + averages * average_s), rel=0.01
        )


def test_a_crossover_is_where_the_gain_ends(wires):
    assert wires.crossover(lambda gbps: 2.5 - gbps) == "2.5"
    assert wires.crossover(lambda gbps: 1.0) == "above 100"
    assert wires.crossover(lambda gbps: -1.0) == "none, from 0.01 on"
    assert wires.crossover(lambda gbps: math.nan) == "-"


def test_what_costs_no_coding_pays_at_low_rates_by_its_bytes(wires):
    """At 10 Mbit/s messages are all that counts."""
    full = wires.average_s(wires.FULL, 0.01)
    assert wires.average_s("bfloat16", 0.01) / full == pytest.approx(0.5, abs=0.01)
    pairs = math.ceil(0.01 * wires.COUNT)
    gathered = 8 * pairs * (wires.RANKS - 1) / (8 * wires.COUNT * (wires.RANKS - 1) / wires.RANKS)
    assert wires.average_s("topk:0.01", 0.01) / full == pytest.approx(gathered, rel=0.05)


def test_what_is_coded_are_bytes_of_the_network_that_is_trained(wires):
    from mpisgd.models.mlp import MLP

    assert tuple(MLP("mlp", 784, (wires.HIDDEN,), 10).shapes.values()) == wires.SHAPES
    small = MLP("mlp", 64, wires.SMALL_LAYERS, 10).shapes.values()
    assert sum(math.prod(shape) for shape in small) == wires.SMALL
