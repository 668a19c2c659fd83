"""Means of pairs: who meets whom, the bits, and that nobody else is waited for."""

import time
from itertools import count
from typing import Any

import numpy as np
import pytest

from allreduce.errors import AllreduceError, ScheduleError, Stalled
from allreduce.evaluate import evaluate
from allreduce.pairs import PAIR, Pairs, across, heard_by_all, matching, partners
from allreduce.testing.loopback import World
from allreduce.wire import Wire

SIZES = (1, 2, 3, 5, 8)


@pytest.mark.parametrize("size", SIZES)
def test_who_meets_whom_is_mutual_perfect_and_drawn_from_the_seed_alone(size):
    rounds = [partners(7, number, size) for number in range(40)]
    for number, met in enumerate(rounds):
        assert np.array_equal(met[met], np.arange(size))
        assert (met == np.arange(size)).sum() == size % 2
        assert np.array_equal(met, partners(7, number, size))
    if size > 3:
        assert len({met.tobytes() for met in rounds}) > 2
        assert any((partners(8, k, size) != met).any() for k, met in enumerate(rounds))


@pytest.mark.parametrize(("size", "matchings"), [(3, 3), (4, 3), (5, 15), (6, 15)])
def test_every_matching_is_as_likely_as_any_other(size, matchings):
    draws = 100 * matchings
    met = [partners(3, number, size).tobytes() for number in range(draws)]
    counts = np.array([met.count(each) for each in set(met)])
    assert len(counts) == matchings
    spread = np.sqrt(draws / matchings)  # about, of each count
    assert np.abs(counts - draws / matchings).max() < 4 * spread
    assert ((counts - draws / matchings) ** 2).sum() / (draws / matchings) < 3 * matchings


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rank", [0, -1])
def test_a_rank_knows_when_all_will_have_heard(rank, size):
    """Nobody sooner than doubling allows, and the last one in that round."""
    for begun in (1, 5, 23):
        knows, end = {rank % size}, heard_by_all(2, begun, size, rank % size)
        for number in range(begun, end + 1):
            assert len(knows) < size or number == begun
            met = partners(2, number, size).tolist()
            knows |= {met[one] for one in knows}
        assert len(knows) == size
        assert end - begun + 1 >= (size - 1).bit_length()


def test_only_pairs_make_a_schedule():
    assert len(matching(np.array([1, 0, 2])).rounds[0]) == 2
    with pytest.raises(ScheduleError, match=r"pairs: \[1, 2, 0\] are not mutual"):
        matching(np.array([1, 2, 0]))
    assert across(1).tolist() == [0]
    assert across(5).tolist() == [2, 3, 0, 1, 4]


class Rank:
    """A rank that goes through its rounds as fast as it can, whatever the others do."""

    def __init__(self, world: World, rank: int, vector: np.ndarray, rounds: int, **how: Any):
        self.pairs = Pairs(world.comm(rank), vector, mean=True, **how)
        self.seen: list[bytes] = []
        self.rounds = iter(range(1, rounds + 1))
        self.vector = vector

    def test(self) -> bool:
        if not self.pairs.test():
            return False
        self.seen.append(self.vector.tobytes())
        number = next(self.rounds, None)
        if number is not None:
            self.pairs.meet(partners(5, number, self.pairs.size))
            self.pairs.start()
        return number is None


WAYS: list[tuple[int, Wire | None]] = [
    (1, None), (3, None), (1, Wire("bfloat16", 9, 11)), (2, Wire("int8", 9, 11))
]  # fmt: skip


@pytest.mark.parametrize(("chunks", "wire"), WAYS)
@pytest.mark.parametrize("size", SIZES)
def test_both_of_a_pair_end_with_the_bits_of_their_mean_round_for_round(size, chunks, wire):
    rounds, rng = 6, np.random.default_rng(size)
    vectors = [rng.normal(size=11).astype(np.float32) for _ in range(size)]
    errors = None if wire is None else [np.zeros(11, np.float32) for _ in vectors]
    wanted, theirs = [each.copy() for each in vectors], [np.zeros(11, np.float32) for _ in vectors]
    world = World(size, 3)
    how = [{} if errors is None else {"wire": wire, "error": errors[r]} for r in range(size)]
    ranks = [
        Rank(world, r, vectors[r], rounds, chunks=chunks, **how[r]) for r in range(size)
    ]  # fmt: skip
    world.drive(ranks)
    for number in range(1, rounds + 1):
        met = partners(5, number, size).tolist()
        for one in range(size):
            if one < met[one]:
                pair = one, met[one]
                left = None if wire is None else [theirs[each] for each in pair]
                evaluate(PAIR, [wanted[each] for each in pair], mean=True, wire=wire, errors=left)
        assert [rank.seen[number] for rank in ranks] == [each.tobytes() for each in wanted]
    for rank in ranks:
        rank.pairs.close()
        rank.pairs.close()
    world.check_quiet()


def test_a_rank_waits_for_whom_it_meets_and_for_nobody_else(monkeypatch):
    """Of four, rank 3 never comes: its partner says so, the other two are done."""
    clock = count()
    monkeypatch.setattr(time, "monotonic", lambda: next(clock) * 0.01)
    world = World(4, 1)
    ranks = [Pairs(world.comm(r), np.full(8, r, float), mean=True, deadline=0.2) for r in range(3)]
    for pairs in ranks:
        pairs.meet(across(4))
        pairs.start()
    world.drive([ranks[0], ranks[2]])
    assert ranks[0].result.tolist() == ranks[2].result.tolist() == [1.0] * 8
    told = r"rank 1 has waited .* s for rank 3, which it meets \(.*64 B"
    with pytest.raises(Stalled, match=told):
        any(ranks[1].test() for _ in range(9000))
    for pairs in ranks:
        pairs.close()
    with pytest.raises(AllreduceError, match="pairs was closed while it was in flight"):
        ranks[1].test()
