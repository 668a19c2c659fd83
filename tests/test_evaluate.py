"""`evaluate` gives sums: exact where they can be, with the same bits on every rank always."""

import numpy as np
import pytest

from allreduce.algorithms import ALGORITHMS, build
from allreduce.arrays import DTYPES
from allreduce.errors import ScheduleError
from allreduce.evaluate import evaluate

NAMES = (*ALGORITHMS, "hierarchical:ring")


def exact_vectors(size: int, count: int, dtype: np.dtype) -> list[np.ndarray]:
    """Numbers that differ by rank and whose sums are exact in any order, in any dtype."""
    rank, index = np.ogrid[0:size, 0:count]
    return list(((rank * 5 + index * 3) % 7).astype(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_sums_of_every_dtype(name, dtype):
    for size in (1, 2, 3, 5, 8, 13):
        for count in {0, 1, 2, size - 1, size, size + 1, 101}:
            vectors = exact_vectors(size, count, dtype)
            total = np.sum(vectors, axis=0, dtype=dtype)
            evaluate(build(name, size), vectors)
            assert all(vector.dtype == dtype for vector in vectors)
            assert all((vector == total).all() for vector in vectors), (name, size, count)


@pytest.mark.parametrize("name", NAMES)
def test_all_ranks_hold_the_same_bits_near_the_sum(name):
    rng = np.random.default_rng(0)
    for size in range(2, 18):
        vectors = [rng.standard_normal(37) * 10.0 ** rng.integers(-6, 6, 37) for _ in range(size)]
        total, most = np.sum(vectors, axis=0), np.sum(np.abs(vectors), axis=0)
        evaluate(build(name, size), vectors)
        assert len({vector.tobytes() for vector in vectors}) == 1, (name, size)
        assert (np.abs(vectors[0] - total) <= size * 2.0**-52 * most).all()


def test_integers_wrap_and_signed_zeros_and_nans_agree():
    vectors = [np.array([127, -128], np.int8) for _ in range(3)]
    evaluate(build("ring", 3), vectors)
    assert all(vector.tolist() == [125, -128] for vector in vectors)
    odd = [np.array([-0.0, np.nan if rank == 2 else 1.0, np.inf]) for rank in range(5)]
    evaluate(build("halving-doubling", 5), odd)
    assert len({vector.tobytes() for vector in odd}) == 1
    assert np.signbit(odd[0][0])
    assert np.isnan(odd[0][1])


def test_a_mean_is_the_sum_divided_once():
    for dtype in DTYPES[:3]:
        sums, means = exact_vectors(6, 10, dtype), exact_vectors(6, 10, dtype)
        evaluate(build("butterfly", 6), sums)
        evaluate(build("butterfly", 6), means, mean=True)
        assert means[3].dtype == dtype
        assert means[3].tobytes() == (sums[3] / dtype.type(6)).tobytes()


@pytest.mark.parametrize(("size", "value"), [(4, 20_000), (256, 1_000), (7, 65_504), (5, 6e-8)])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_mean_of_halves_is_where_their_sum_is_not(name, size, value):
    vectors = [np.full(3, value, np.float16) for _ in range(size)]
    evaluate(build(name, size), vectors, mean=True)
    assert all(vector.tolist() == [np.float16(value)] * 3 for vector in vectors)
    sums = [np.full(3, value, np.float16) for _ in range(size)]
    with np.errstate(over="ignore"):
        evaluate(build(name, size), sums)  # a sum is what its type can hold
    assert np.isinf(sums[0]).all() == (size * value > 65_520)


def test_vectors_that_do_not_fit_are_refused():
    schedule = build("ring", 3)
    good = [np.zeros(4) for _ in range(3)]
    wrong: tuple[list, ...] = (
        good[:2],
        [*good[:2], np.zeros(5)],
        [*good[:2], np.zeros(4, np.float32)],
        [np.zeros((2, 2)) for _ in range(3)],
        [],
    )
    for bad in wrong:
        with pytest.raises(ScheduleError, match="ring needs 3 equal vectors"):
            evaluate(schedule, bad)
