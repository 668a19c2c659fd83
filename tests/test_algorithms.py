"""Every algorithm costs what its docstring says."""

import math

import numpy as np
import pytest

from allreduce.algorithms import ALGORITHMS, PIECES, RANKS_PER_NODE, build, hierarchical
from allreduce.errors import AllreduceError, ScheduleError
from allreduce.schedule import Schedule


def cost(schedule: Schedule) -> tuple[int, float]:
    """Rounds, and what the busiest rank sends, in vectors."""
    sent = np.zeros(schedule.size)
    for part in schedule.rounds:
        np.add.at(sent, part["source"], (part["high"] - part["low"]) / schedule.segments)
    return len(schedule.rounds), sent.max()


@pytest.mark.parametrize("size", [2, 4, 8, 16, 64, 256])
def test_costs_of_powers_of_two(size):
    log = int(math.log2(size))
    scattered = 2 * (size - 1) / size
    assert cost(build("tree", size)) == (2 * log, log)
    assert cost(build("butterfly", size)) == (log, log)
    assert cost(build("halving-doubling", size)) == (2 * log, pytest.approx(scattered))
    assert cost(build("ring", size)) == (2 * (size - 1), pytest.approx(scattered))


@pytest.mark.parametrize("size", [2, 3, 7, 8, 16, 33, 64, 100, 256])
def test_double_tree_loads_no_rank_twice_as_much(size):
    steps, sent = cost(build("double-tree", size))
    assert sent <= 2
    assert steps <= 1.25 * (4 * math.log2(size) + 4 * PIECES)


@pytest.mark.parametrize("size", [3, 5, 6, 7, 9, 12, 100, 255])
def test_costs_of_other_sizes(size):
    core = 1 << (size.bit_length() - 1)
    for name in ("butterfly", "halving-doubling"):
        steps, sent = cost(build(name, core))
        assert cost(build(name, size)) == (steps + 2, pytest.approx(sent + 1))
    assert cost(build("tree", size))[0] == 2 * math.ceil(math.log2(size))
    assert cost(build("ring", size)) == (2 * (size - 1), pytest.approx(2 * (size - 1) / size))


def test_hierarchical_costs_its_parts():
    steps, _ = cost(build("hierarchical:ring", 4 * RANKS_PER_NODE))
    assert steps == 2 * int(math.log2(RANKS_PER_NODE)) + 2 * 3


def test_hierarchical_crosses_between_nodes_only_among_their_first_ranks():
    nodes = [7, 2, 7, 7, 2, 5, 2]
    leaders = {0, 1, 5}
    for part in hierarchical(7, nodes, "ring").rounds:
        for source, destination, *_ in part.tolist():
            if nodes[source] != nodes[destination]:
                assert {source, destination} <= leaders


def test_one_rank_has_nothing_to_do():
    for name in ALGORITHMS:
        assert not any(len(part) for part in build(name, 1).rounds)


def test_every_round_of_every_algorithm_moves_something():
    for name in ALGORITHMS:
        for size in range(2, 20):
            assert all(len(part) for part in build(name, size).rounds), (name, size)


def test_mistakes_name_what_is_allowed():
    with pytest.raises(ScheduleError, match=r"'rings'.*butterfly.*hierarchical:INNER"):
        build("rings", 4)
    for name in ("ring:tree", "hierarchical:", "hierarchical:mpi", "mpi"):
        with pytest.raises(ScheduleError, match="no all-reduce named"):
            build(name, 4)
    with pytest.raises(ScheduleError, match="at least 1 rank"):
        build("ring", 0)
    with pytest.raises(ScheduleError, match="one node for each of 3 ranks"):
        hierarchical(3, [0, 1])
    assert issubclass(ScheduleError, AllreduceError)


def test_schedules_carry_their_name():
    for name in (*ALGORITHMS, "hierarchical:ring"):
        assert build(name, 6).name == name
