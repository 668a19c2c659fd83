"""Sparse all-reduces: the sums of dense ones, in as many bytes as there are rows."""

import math

import numpy as np
import pytest

from allreduce import evaluate as dense_evaluate
from allreduce import simulate
from allreduce.algorithms import ALGORITHMS, allgather, build
from allreduce.errors import AllreduceError, Stalled
from allreduce.network import network
from allreduce.sparse import HEADER_B, Sparse, SparsePlan, add, evaluate, of_dense
from allreduce.testing.loopback import World

HEIGHT, WIDTH = 37, 3
SIZES = (1, 2, 3, 4, 7, 8, 12)


def parts(size, density=0.2, seed=0, dtype=np.float32):
    """A part of each rank, some of them empty."""
    generator = np.random.default_rng((seed, size))
    matrices = generator.standard_normal((size, HEIGHT, WIDTH)).astype(dtype)
    matrices *= generator.random((size, HEIGHT, 1)) < density
    matrices[size // 2] *= size < 4
    return [of_dense(matrix) for matrix in matrices]


def schedules(size):
    return [allgather(size), *(build(name, size) for name in ALGORITHMS)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_schedule_makes_the_sums_of_its_dense_self(name, size):
    """Bit for bit, on all ranks: the same additions in the same order."""
    schedule = build(name, size)
    for density in (0.0, 0.2, 1.0):
        given = parts(size, density)
        vectors = [part.dense(HEIGHT) for part in given]
        # Segments are of rows here and of elements there, so rows are compared one at a time.
        columns = [[np.ascontiguousarray(v[:, k]) for v in vectors] for k in range(WIDTH)]
        for column in columns:
            dense_evaluate(schedule, column, mean=True)
        results, _ = evaluate(schedule, given, HEIGHT, mean=True)
        for rank, result in enumerate(results):
            wanted = np.stack([column[rank] for column in columns], axis=1)
            assert np.array_equal(result.dense(HEIGHT), wanted)
            assert result.values.tobytes() == results[0].values.tobytes()


@pytest.mark.parametrize("size", SIZES)
def test_gathered_parts_are_added_in_order_of_ranks(size):
    given = parts(size)
    total = given[0]
    for part in given[1:]:
        total = add(total, part)
    results, octets = evaluate(allgather(size), given, HEIGHT)
    for result in results:
        assert np.array_equal(result.rows, total.rows)
        assert result.values.tobytes() == total.values.tobytes()
    carried = sum(part.octets - HEADER_B for part in given)
    headers = sum(len(records) for records in allgather(size).rounds) * HEADER_B
    assert sum(octets) == carried * (size - 1) + headers
    assert len(allgather(size).rounds) == math.ceil(math.log2(size))


@pytest.mark.parametrize("size", SIZES)
def test_a_plan_has_the_bits_of_evaluate(size):
    for number, schedule in enumerate(schedules(size)):
        world, given = World(size, seed=number), parts(size, seed=number)
        wanted, _ = evaluate(schedule, given, HEIGHT, mean=True)
        plans = [SparsePlan(world.comm(r), schedule, HEIGHT, mean=True) for r in range(size)]
        for _ in range(2):  # it may be started again
            for plan, part in zip(plans, given, strict=True):
                plan.start(part)
            world.drive(plans)
            for plan, result in zip(plans, wanted, strict=True):
                assert np.array_equal(plan.wait().rows, result.rows)
                assert plan.wait().values.tobytes() == result.values.tobytes()


def test_who_waits_in_vain_says_so():
    plan = SparsePlan(World(2).comm(0), build("butterfly", 2), HEIGHT, deadline=0.05)
    plan.start(parts(2)[0])
    with pytest.raises(Stalled, match="rank 0 waits in round 0"):
        plan.wait()


def same_rows(size, rows):
    return [Sparse(np.arange(rows), np.ones((rows, WIDTH), np.float32))] * size


def disjoint_rows(size, rows):
    return [Sparse(np.arange(r * rows, (r + 1) * rows), np.ones((rows, WIDTH), np.float32))
            for r in range(size)]  # fmt: skip


@pytest.mark.parametrize("size", [2, 8, 16])
def test_bytes_of_merging_are_between_two_closed_forms(size):
    """A rank sends log2 p parts where all have the same rows, p - 1 where none has another's, as
    much as gathering: so merging never sends more rows."""
    row_b, rounds = 8 + 4 * WIDTH, int(math.log2(size))
    for given, sent in ((same_rows, rounds), (disjoint_rows, size - 1)):
        _, octets = evaluate(build("butterfly", size), given(size, 5), 5 * size)
        assert sum(octets) == size * (sent * 5 * row_b + rounds * HEADER_B)
    for seed in range(5):
        given = parts(size, 0.3, seed)
        rows = [sum(evaluate(s, given, HEIGHT)[1]) - HEADER_B * sum(map(len, s.rounds))
                for s in (build("butterfly", size), allgather(size))]  # fmt: skip
        assert rows[0] <= rows[1]


def test_a_full_matrix_costs_what_as_many_bytes_cost():
    for name, links in (("butterfly", "ethernet-10g"), ("tree", "lab")):
        schedule = build(name, 6)
        full = [of_dense(np.ones((HEIGHT, WIDTH), np.float32))] * 6
        _, octets = evaluate(schedule, full, HEIGHT)
        assert set(octets) == {full[0].octets}
        priced = simulate(schedule, octets, network(links))
        whole = simulate(schedule, full[0].octets, network(links), method="events")
        np.testing.assert_array_equal(priced, whole)


def test_fewer_rows_take_less_time():
    links = network("ethernet-10g")
    ends = [simulate(build("butterfly", 8), evaluate(build("butterfly", 8), parts(8, density),
            HEIGHT)[1], links).max() for density in (0.05, 0.3, 1.0)]  # fmt: skip
    assert ends == sorted(ends)
    assert ends[0] < ends[-1]


@pytest.mark.parametrize("rows", [[-1], [HEIGHT], [3, 3], [5, 2]])
def test_rows_that_are_none_are_refused(rows):
    bad = Sparse(np.array(rows), np.ones((len(rows), WIDTH), np.float32))
    with pytest.raises(AllreduceError, match="rows of rank 1 must be ascending, each once"):
        evaluate(build("ring", 2), [parts(2)[0], bad], HEIGHT)


def test_bytes_by_transfer_are_one_each():
    with pytest.raises(AllreduceError, match="3 sizes for 2 transfers"):
        simulate(build("butterfly", 2), (8, 8, 8), network("lab"))
