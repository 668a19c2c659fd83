"""The places that a mean has for who took part. What travels: tests/test_wire.py."""

from typing import Any

import pytest
from virtual_runs import NOISE, QUADRATIC, Run, virtual

from mpisgd.training.mean import CONTROL
from mpisgd.training.parameters import Parameters
from mpisgd.training.worker import Worker

RANKS = 5


def averages(shares: list[float], places: int) -> list[Any]:
    """What each rank's mean gives, of values 1 .. RANKS: (value, shares told)."""
    told: list[Any] = [None] * RANKS

    def algorithm(worker: Worker) -> Run:
        source = Parameters({"a": (3,)}, "float64", CONTROL + places)
        average = worker.mean(source)
        source.flat[:] = worker.rank + 1
        average.start(shares[worker.rank])
        value = yield from average.wait()
        told[worker.rank] = value.tolist(), average.shares.tolist()

    virtual(QUADRATIC, RANKS, algorithm, dataset=NOISE)
    return told


@pytest.mark.parametrize("places", [0, 1, RANKS])
def test_where_all_take_part_the_mean_is_that_of_all(places):
    told = averages([1.0] * RANKS, places)
    shares = [[], [float(RANKS)], [1.0] * RANKS][[0, 1, RANKS].index(places)]
    assert told == [([3.0] * 3, shares)] * RANKS


@pytest.mark.parametrize("places", [1, RANKS])
def test_who_takes_no_part_does_not_count(places):
    told = averages([1.0, 0.0, 1.0, 0.0, 0.0], places)
    assert told[0][0] == pytest.approx([2.0] * 3)
    assert told == [told[0]] * RANKS
    assert told[0][1] == ([2.0] if places == 1 else [1.0, 0.0, 1.0, 0.0, 0.0])


def test_without_a_place_for_it_shares_are_weights_that_add_up_to_the_ranks():
    told = averages([5.0, 0.0, 0.0, 0.0, 0.0], 0)
    assert told == [([1.0] * 3, [])] * RANKS
