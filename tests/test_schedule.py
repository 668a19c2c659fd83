"""Schedules are values: what the algebra that combines them promises."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allreduce.algorithms import ALGORITHMS, build
from allreduce.schedule import (
    TRANSFER,
    Message,
    Schedule,
    Step,
    beside,
    bounds,
    embed,
    mirror,
    nothing,
    pack,
    pipeline,
    place,
    refine,
    transfers,
)


def as_rows(schedule: Schedule) -> list[list[tuple]]:
    return [part.tolist() for part in schedule.rounds]


CHAIN = Schedule(3, 1, (transfers(2, 1), transfers(1, 0)), "chain")


@given(st.integers(0, 2**40), st.integers(1, 2000))
def test_bounds_cover_everything_once_and_evenly(count, segments):
    edges = bounds(count, segments)
    lengths = np.diff(edges)
    assert edges.dtype == np.int64
    assert edges.size == segments + 1
    assert (edges[0], edges[-1]) == (0, count)
    assert lengths.min() >= 0
    assert lengths.max() - lengths.min() <= 1
    assert (np.diff(lengths) <= 0).all()  # the longer ones come first


def test_bounds_beyond_31_bits():
    assert bounds(2**33 + 1, 4).tolist() == [0, 2**31 + 1, 2**32 + 1, 3 * 2**31 + 1, 2**33 + 1]
    schedule = build("ring", 5)
    count = 10**12 + 7
    edges = bounds(count, schedule.segments)
    sent = [0] * 5
    for part in schedule.rounds:
        for source, _, low, high, _ in part.tolist():
            sent[source] += int(edges[high] - edges[low])
    assert sum(sent) == 2 * 4 * count


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(list(ALGORITHMS)), st.integers(1, 33))
def test_programs_are_the_programs_of_all_ranks(name, size):
    schedule = build(name, size)
    assert schedule.programs() == [schedule.program(rank) for rank in range(size)]


def test_a_program_has_both_ends_of_every_transfer():
    schedule = build("double-tree", 6)
    sends, receives = [], []
    for rank, steps in enumerate(schedule.programs()):
        for step in steps:
            sends += [(step.round, rank, m.peer, *m[1:]) for m in step.sends]
            receives += [(step.round, m.peer, rank, *m[1:]) for m in step.receives]
    planned = [(k, *row) for k, part in enumerate(schedule.rounds) for row in part.tolist()]
    assert sorted(sends) == sorted(receives)
    assert sorted(row[:-1] for row in sends) == sorted(planned)


def test_two_messages_of_a_round_between_one_pair_differ_in_tag():
    twice = Schedule(3, 3, (transfers([0, 0, 2, 0], [1, 1, 1, 2], [0, 1, 2, 0], [1, 2, 3, 1]),))
    assert twice.program(1) == [
        Step(
            0,
            (),
            (
                Message(0, 0, 1, True, 0),
                Message(0, 1, 2, True, 1),
                Message(2, 2, 3, True, 0),
            ),
        )
    ]


def test_mirror_turns_every_transfer_round_and_stores():
    back = mirror(CHAIN)
    assert as_rows(back) == [[(0, 1, 0, 1, False)], [(1, 2, 0, 1, False)]]
    assert back.name == "chain"
    stored = Schedule(3, 1, tuple(reversed(CHAIN.rounds)))
    ends = [(r[0], r[1]) for part in as_rows(mirror(back)) for r in part]
    assert ends == [(r[0], r[1]) for part in reversed(as_rows(stored)) for r in part]


def test_combining_leaves_the_parts_alone():
    before = as_rows(CHAIN)
    mirror(CHAIN), refine(CHAIN, 3), embed(CHAIN, [4, 2, 0], 5), place(CHAIN, 4, 2)
    pack(CHAIN, mirror(CHAIN)), beside(CHAIN, nothing(3)), pipeline([CHAIN], 2)
    assert as_rows(CHAIN) == before


def test_embed_places_ranks():
    moved = embed(CHAIN, [4, 2, 0], 5)
    assert moved.size == 5
    assert as_rows(moved) == [[(0, 2, 0, 1, True)], [(2, 4, 0, 1, True)]]


def test_refine_and_place_move_segments():
    fine = refine(CHAIN, 3)
    assert fine.segments == 3
    assert as_rows(fine) == [[(2, 1, 0, 3, True)], [(1, 0, 0, 3, True)]]
    there = place(CHAIN, 5, 4)
    assert there.segments == 5
    assert as_rows(there)[0] == [(2, 1, 4, 5, True)]


def test_beside_joins_rounds():
    left, right = place(CHAIN, 2, 0), place(CHAIN + CHAIN, 2, 1)
    both = beside(left, right)
    assert [len(part) for part in both.rounds] == [2, 2, 1, 1]


def test_pack_gives_every_port_one_message_and_keeps_all_transfers():
    whole = CHAIN + mirror(CHAIN)
    schedules = [place(whole, 4, k) for k in range(4)]
    packed = pack(*schedules)
    for part in packed.rounds:
        assert len(set(part["source"].tolist())) == len(part)
        assert len(set(part["destination"].tolist())) == len(part)
    wanted = sorted(r for s in schedules for part in as_rows(s) for r in part)
    assert sorted(r for part in as_rows(packed) for r in part) == wanted
    assert len(packed.rounds) < sum(len(s.rounds) for s in schedules)


def test_different_shapes_do_not_combine():
    for combine in (lambda a, b: a + b, beside, pack):
        with pytest.raises(ValueError, match="do not combine"):
            combine(CHAIN, nothing(4))
        with pytest.raises(ValueError, match="do not combine"):
            combine(CHAIN, nothing(3, 2))


def test_the_digest_tells_schedules_apart():
    digests = {
        build(name, size).digest
        for name in (*ALGORITHMS, "hierarchical:ring")
        for size in (12, 13, 16, 17)
    }
    assert len(digests) == (len(ALGORITHMS) + 1) * 4
    assert all(0 <= digest < 2**63 for digest in digests)
    assert build("ring", 5).digest == build("ring", 5).named("other").digest


@pytest.mark.parametrize("field", TRANSFER.names or ())
def test_the_digest_sees_every_field(field):
    schedule = build("halving-doubling", 8)
    rounds = [part.copy() for part in schedule.rounds]
    rounds[2][field][3] = not rounds[2][field][3]
    assert Schedule(8, 8, tuple(rounds)).digest != schedule.digest
    assert Schedule(8, 9, schedule.rounds).digest != schedule.digest
    joined = (np.concatenate(schedule.rounds[:2]), *schedule.rounds[2:])
    assert Schedule(8, 8, joined).digest != schedule.digest


def test_a_name_does_not_copy_the_transfers():
    named = CHAIN.named("mine")
    assert named.name == "mine"
    assert named.rounds is CHAIN.rounds
