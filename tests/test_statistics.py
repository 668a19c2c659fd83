"""Student's t against the tables, and intervals that hold the truth as often as they say."""

import math

import numpy as np
import pytest

from mpisgd.values.statistics import half_width, student, within


@pytest.mark.parametrize(
    ("freedom", "share", "t"),
    [
        (1, 0.95, 12.7062), (2, 0.95, 4.30265), (3, 0.95, 3.18245), (4, 0.95, 2.77645),
        (5, 0.95, 2.57058), (9, 0.95, 2.26216), (10, 0.95, 2.22814), (30, 0.95, 2.04227),
        (120, 0.95, 1.97993), (1, 0.5, 1.0), (2, 0.99, 9.92484), (7, 0.9, 1.89458),
    ],
)  # fmt: skip
def test_t_is_that_of_the_tables(freedom, share, t):
    assert student(freedom, share) == pytest.approx(t, rel=2e-5)
    assert within(student(freedom, share), freedom) == pytest.approx(share, abs=1e-12)


def test_intervals_of_three_seeds_hold_the_true_mean_as_often_as_they_say():
    values = np.random.default_rng(0).normal(5, 2, (4000, 3))
    held = np.mean([abs(row.mean() - 5) <= half_width(row.tolist()) for row in values])
    assert held == pytest.approx(0.95, abs=0.015)
    two_errors = 2 * values.std(axis=1, ddof=1) / math.sqrt(3)
    assert np.mean(abs(values.mean(axis=1) - 5) <= two_errors) < 0.85  # what it replaces
    assert math.isnan(half_width([1.0]))
