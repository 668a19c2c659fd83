"""Shards as properties: who computes which samples of an epoch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpisgd.data.shards import Sampler
from mpisgd.values.errors import UsageError

dealt = given(st.integers(1, 200), st.integers(1, 17), st.integers(1, 9), st.integers(0, 3))


@dealt
@settings(max_examples=150, deadline=None)
def test_an_epoch_is_the_permutation_dealt_once(samples, size, batch, epoch):
    sampler = Sampler(samples, size, batch, seed=5)
    first = epoch * sampler.steps_per_epoch + 1
    seen = []
    for step in range(first, first + sampler.steps_per_epoch):
        assert sampler.epoch(step) == epoch
        pieces = [sampler.indices(step, rank) for rank in range(size)]
        sizes = sampler.batch_sizes(step)
        assert sizes == tuple(len(piece) for piece in pieces)
        assert max(sizes) <= batch
        assert max(sizes) - min(sizes) <= 1
        assert sum(sizes) > 0
        seen += [index for piece in pieces for index in piece]
        assert sampler.samples_until(step) == epoch * samples + len(seen)
    assert sorted(seen) == list(range(samples))
    whole = np.random.default_rng((5, epoch)).permutation(samples)
    assert seen == whole.tolist()


@dealt
@settings(max_examples=60, deadline=None)
def test_ranks_together_see_what_one_rank_with_the_whole_batch_sees(samples, size, batch, seed):
    many, one = Sampler(samples, size, batch, seed), Sampler(samples, 1, size * batch, seed)
    assert many.steps_per_epoch == one.steps_per_epoch
    for step in range(1, 2 * one.steps_per_epoch + 1):
        together = np.concatenate([many.indices(step, rank) for rank in range(size)])
        assert together.tolist() == one.indices(step, 0).tolist()


def test_fewer_samples_than_ranks():
    sampler = Sampler(3, 8, 4)
    assert sampler.steps_per_epoch == 1
    assert sampler.batch_sizes(1) == (0, 0, 1, 0, 0, 1, 0, 1)
    assert sampler.samples_until(0) == 0


def test_epochs_and_seeds_shuffle_differently_and_going_back_is_possible():
    sampler = Sampler(100, 2, 25, seed=1)
    first, second = sampler.indices(1, 0).copy(), sampler.indices(3, 0).copy()
    assert first.tolist() != second.tolist()
    assert sampler.indices(1, 0).tolist() == first.tolist()
    assert Sampler(100, 2, 25, seed=2).indices(1, 0).tolist() != first.tolist()


def test_nobody_can_spoil_the_permutation():
    with pytest.raises(ValueError, match="read-only"):
        Sampler(10, 1, 5).indices(1, 0)[0] = 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 1), "samples 0"),
        ((5, 0, 1), "ranks 0"),
        ((5, 1, 0), "--batch 0"),
        ((5, 1, 1, -1), "--seed -1"),
    ],
)
def test_impossible_shards_are_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        Sampler(*arguments)
