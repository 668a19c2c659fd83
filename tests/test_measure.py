"""The timing method: intervals that hold what they promise, stopping, checks that catch faults."""

import itertools
import math

import numpy as np
import pytest

from allreduce import measure
from allreduce.errors import AllreduceError
from allreduce.measure import Rule, median_interval, overlap, pattern, summarise, trials, wrong
from allreduce.testing.loopback import World

# --- intervals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [6, 7, 10, 25, 70, 401])
def test_the_interval_misses_the_median_as_rarely_as_promised_and_not_more(count):
    low, high = median_interval(np.arange(1, count + 1))
    j = int(low)
    assert high == count + 1 - j

    def misses(rank: int) -> float:
        return 2 * sum(math.comb(count, i) for i in range(rank)) / 2**count

    assert misses(j) <= 0.05 < misses(j + 1)


def test_the_interval_covers_skewed_samples_too():
    random = np.random.default_rng(1)
    samples = np.exp(2 * random.standard_normal((2000, 35)))  # their median is 1
    intervals = np.array([median_interval(row) for row in samples])
    covered = np.mean((intervals[:, 0] <= 1) & (intervals[:, 1] >= 1))
    assert 0.94 < covered < 0.98


def test_fewer_than_six_values_give_no_interval():
    assert all(np.isnan(median_interval([1.0] * 5)))
    assert median_interval([3.0, 1.0, 2.0, 6.0, 5.0, 4.0]) == (1.0, 6.0)


def test_a_repetition_takes_as_long_as_its_slowest_rank():
    seconds = np.ones((10, 3))
    seconds[:, 1] = np.arange(10, 20)
    found = summarise(seconds)
    assert (found.repetitions, found.median_s) == (10, 14.5)
    assert found.p10_s == pytest.approx(10.9)
    assert found.p90_s == pytest.approx(18.1)
    assert (found.ci_low_s, found.ci_high_s) == (11, 18)
    assert found.p99_s == pytest.approx(18.91)
    assert found.skew_s == 13.5  # the median of 9 to 18


def test_osu_columns_average_over_repetitions_first():
    seconds = np.array([[1.0, 4.0], [3.0, 8.0]])
    assert measure.osu(seconds) == {"osu_avg_s": 4.0, "osu_min_s": 2.0, "osu_max_s": 6.0}


def test_bandwidths():
    assert measure.algorithm_bandwidth(100, 2.0) == 50
    assert measure.bus_bandwidth(100, 2.0, 2) == 50
    assert measure.bus_bandwidth(100, 2.0, 4) == 75
    assert math.isnan(measure.bus_bandwidth(100, 2.0, 1))
    assert math.isnan(measure.algorithm_bandwidth(0, 0.0))


# --- when to stop -------------------------------------------------------------------------------


def noisy(repetitions: int, spread: float, operations: int = 1) -> np.ndarray:
    random = np.random.default_rng(0)
    return 1 + spread * random.random((operations, repetitions, 2))


def test_repetitions_end_when_tight_when_many_and_when_time_is_over():
    rule = Rule(minimum=10, maximum=100, budget_s=1.0, tolerance=0.02)
    assert rule.more(noisy(0, 1), 0.0) == 10
    assert rule.more(noisy(4, 1), 0.0) == 6
    assert rule.more(noisy(10, 0.001), 0.1) == 0  # tight
    assert rule.more(noisy(10, 1), 0.01) == 10  # as many again
    assert rule.more(noisy(80, 1), 0.01) == 20  # up to the maximum
    assert rule.more(noisy(100, 1), 0.01) == 0
    assert rule.more(noisy(10, 1), 0.7) == 4  # what the rest of the time allows
    assert rule.more(noisy(10, 1), 1.2) == 0


def test_all_operations_must_be_tight():
    rule = Rule(minimum=10, maximum=100)
    both = np.concatenate([noisy(20, 0.001), noisy(20, 1)])
    assert rule.more(both, 0.01) == 20
    assert rule.more(both[:1], 0.01) == 0


def test_too_few_repetitions_for_an_interval_are_never_tight():
    rule = Rule(minimum=2, maximum=100)
    assert rule.more(noisy(2, 0.0), 0.01) == 2
    assert rule.more(noisy(8, 0.0), 0.01) == 0


def test_repeat_calls_in_turn_and_leaves_out_the_warm_up():
    world, calls = World(1), []
    seconds = measure.repeat(
        world.comm(0),
        [lambda: calls.append("a"), lambda: calls.append("b")],
        Rule(minimum=7, maximum=7, warm_up=2),
    )
    assert seconds.shape == (2, 7, 1)
    assert (seconds > 0).all()
    assert calls == ["a", "b"] * 9
    world.check_quiet()


# --- overlap: what the numbers are where the truth is known ----------------------------------


def synthetic(share: float, compute: float, communication: float) -> tuple[float, ...]:
    """A communication of which `share` goes on beside the work, as far as there is work."""
    exposed = communication - min(share * communication, compute)
    return compute, communication, compute + exposed, exposed


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("compute", [1.0, 3.0])
def test_overlap_of_synthetic_cases(share, compute):
    found = overlap(*synthetic(share, compute, 1.0))
    assert found == pytest.approx((share, 100 * share, 100 * share, 1.0))


def test_no_more_can_be_hidden_than_there_is_work():
    found = overlap(*synthetic(1.0, 0.25, 1.0))
    assert found.hidden == pytest.approx(0.25)
    assert found.osu_overlap_percent == pytest.approx(25)
    assert found.imb_overlap_percent == pytest.approx(100)  # all that could be


def test_work_that_is_slowed_down_shows_as_dilation_not_as_exposed():
    found = overlap(1.0, 1.0, 1.5, 0.0)
    assert found == pytest.approx((1.0, 50.0, 50.0, 1.5))


def test_a_communication_that_makes_all_slower_is_no_overlap():
    assert overlap(1.0, 1.0, 3.0, 1.5).imb_overlap_percent == 0
    assert overlap(1.0, 1.0, 3.0, 1.5).osu_overlap_percent == pytest.approx(-100)
    assert overlap(1.0, 1.0, 3.0, 1.5).hidden == pytest.approx(-0.5)


# --- validation, and the validation of the validation -------------------------------------------

KINDS = ["float16", "float32", "float64", "int8", "int32", "uint16"]


def contributions(size, count, dtype, trial):
    return [pattern(rank, size, count, dtype, trial) for rank in range(size)]


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 60])
def test_sums_in_any_order_are_right(size, dtype):
    random = np.random.default_rng(size)
    for trial in range(trials(size, dtype)):
        vectors = contributions(size, 50, dtype, trial)
        random.shuffle(vectors)
        while len(vectors) > 1:  # any tree of sums
            vectors.append(vectors.pop(0) + vectors.pop(random.integers(len(vectors))))
        assert vectors[0].dtype == dtype
        assert wrong(vectors[0], size, trial) == 0


@pytest.mark.parametrize(("size", "dtype"), [(2, "float16"), (5, "float32"), (40, "int8"),
                                             (40, "float16"), (9, "float64")])  # fmt: skip
@pytest.mark.parametrize("count", [1, 2, 7])
def test_one_rank_dropped_and_another_counted_twice_is_seen_in_every_element(size, dtype, count):
    caught = np.zeros((size, size, count), bool)
    for trial in range(trials(size, dtype)):
        vectors = np.array(contributions(size, count, dtype, trial))
        right = vectors.sum(axis=0, dtype=dtype)
        for pair, (dropped, doubled) in enumerate(itertools.permutations(range(size), 2)):
            result = right - vectors[dropped] + vectors[doubled]
            caught[dropped, doubled] |= result != right
            if pair < 20:
                assert wrong(result, size, trial) == np.count_nonzero(result != right)
    assert caught[~np.eye(size, dtype=bool)].all()


def test_256_ranks_in_float16_differ_pairwise():
    size, dtype = 256, "float16"
    seen = np.array([[pattern(rank, size, 1, dtype, trial)[0] for trial in range(4)]
                     for rank in range(size)])  # fmt: skip
    assert trials(size, dtype) == 3
    assert len(np.unique(seen[:, :3], axis=0)) == size
    assert seen.sum(axis=0).max() <= 2048


def test_segments_in_the_wrong_place_are_seen():
    size, count = 4, 4096
    right = np.sum(contributions(size, count, "float32", 0), axis=0, dtype="float32")
    for segment in (1, 2, 64, 1024, 2048):
        swapped = right.reshape(-1, segment)[::-1].ravel()
        assert wrong(swapped, size) > count / 2
    stale = right.copy()
    stale[17] = 0.5
    assert wrong(stale, size) == 1


def test_too_many_ranks_for_a_dtype_are_refused():
    with pytest.raises(AllreduceError, match="64 ranks cannot be validated in int8"):
        trials(64, "int8")
    assert trials(1024, "float16") == 10
