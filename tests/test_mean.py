"""The two places that a mean has for later work: what travels, and who took part."""

from typing import Any

import numpy as np
import pytest
from virtual_runs import NOISE, QUADRATIC, Run, far, virtual

from mpisgd.training.mean import CONTROL
from mpisgd.training.parameters import Parameters
from mpisgd.training.worker import Worker

RANKS = 5


class Cast:
    """Values travel as another type; counts the calls."""

    def __init__(self, dtype: str):
        self.dtype, self.calls = dtype, 0

    def room(self, values: np.ndarray) -> np.ndarray:
        return np.empty(values.size, self.dtype)

    def encode(self, values: np.ndarray, room: np.ndarray) -> None:
        self.calls += 1
        room[...] = values

    def decode(self, room: np.ndarray, values: np.ndarray) -> None:
        values[...] = room


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"algorithm": "local", "tau": 3},
        {"algorithm": "dasgd", "tau": 3, "delay": 2},
        {"algorithm": "minibatch-overlap", "bucket_bytes": 1},
    ],
)
def test_a_wire_of_the_same_type_changes_no_bit_and_a_narrow_one_rounds(options):
    def run(wire: Cast | None) -> np.ndarray:
        def touch(worker: Worker) -> None:
            worker.wire = wire

        return virtual(QUADRATIC, RANKS, dataset=NOISE, touch=touch, **options).parameters

    wires = [None, Cast("float64"), Cast("float32")]
    runs = [run(wire) for wire in wires]
    assert np.array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])
    assert far(runs[2], runs[0]) < 1e-5
    assert wires[1] is not None
    assert wires[1].calls >= 23 // 3 * RANKS


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
