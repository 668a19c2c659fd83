"""GOAL text: read back, it is the schedule, and takes as long as the simulation."""

import re
from typing import Any

import pytest
from test_simulate import CLOSED, GAMMA, PLAIN

from allreduce.algorithms import ALGORITHMS, build
from allreduce.network import Network
from allreduce.simulate.goal import goal
from allreduce.simulate.program import messages


def parse_goal(text: str):
    """{rank: ({label: operation}, [(after, before)])}, refusing what GOAL does not know."""
    lines = [line for line in text.splitlines() if line]
    head = re.fullmatch(r"num_ranks (\d+)", lines[0])
    assert head
    ranks = int(head[1])
    programs: dict[int, tuple] = {}
    current: Any = None
    for line in lines[1:]:
        if head := re.fullmatch(r"rank (\d+) \{", line):
            assert current is None
            current = programs[int(head[1])] = ({}, [])
        elif line == "}":
            current = None
        elif need := re.fullmatch(r"(l\d+) requires (l\d+)", line):
            assert {need[1], need[2]} <= set(current[0])
            current[1].append((need[1], need[2]))
        else:
            pattern = r"(l\d+): (?:(send|recv) (\d+)b (?:to|from) (\d+) tag (\d+)|calc (\d+))"
            operation = re.fullmatch(pattern, line)
            assert operation, line
            label, kind, size, peer, tag, calc = operation.groups()
            assert label not in current[0]
            values = ("calc", int(calc)) if calc else (kind, int(size), int(peer), int(tag))
            current[0][label] = values
    assert current is None
    assert sorted(programs) == list(range(ranks))
    return programs


def play_goal(programs, net: Network) -> float:
    """Seconds of a GOAL program without contention: longest path through its operations."""
    sent: dict[tuple, tuple] = {}
    ends: dict[tuple, float] = {}

    def end(rank, label):
        if (rank, label) not in ends:
            operations, needs = programs[rank]
            begin = max((end(rank, b) for a, b in needs if a == label), default=0.0)
            kind, size, *rest = operations[label]
            if kind == "calc":
                begin += size * 1e-9
            elif kind == "send":
                begin += size / net.bandwidth_Bps
            else:
                peer, tag = rest
                begin = max(begin, end(*sent[peer, rank, tag]) + net.latency_s)
            ends[rank, label] = begin
        return ends[rank, label]

    for rank, (operations, _) in programs.items():
        for label, (kind, _, *rest) in operations.items():
            if kind == "send":
                assert (rank, *rest) not in sent  # a tag is used once between a pair
                sent[rank, *rest] = (rank, label)
    received = [
        (rest[0], rank, rest[1])
        for rank, (operations, _) in programs.items()
        for kind, _, *rest in operations.values()
        if kind == "recv"
    ]
    assert sorted(received) == sorted(sent)
    return max(end(rank, label) for rank in programs for label in programs[rank][0])


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_goal_text_says_the_schedule(name, chunks):
    schedule = build(name, 6)
    programs = parse_goal(goal(schedule, 6000, chunks=chunks))
    total = sum(
        operation[1]
        for operations, _ in programs.values()
        for operation in operations.values()
        if operation[0] == "send"
    )
    assert total == messages(schedule, 6000).nbytes.sum()
    assert play_goal(programs, PLAIN) > 0


@pytest.mark.parametrize("name", CLOSED)
def test_goal_text_takes_as_long_as_the_simulation(name):
    text = goal(build(name, 8), 8_000_000, sum_s_per_B=GAMMA)
    assert play_goal(parse_goal(text), PLAIN) == pytest.approx(
        CLOSED[name](8, 8_000_000), rel=1e-6
    )  # calc is in whole ns


def test_goal_text_of_one_rank_is_empty():
    assert parse_goal(goal(build("ring", 1), 100)) == {0: ({}, [])}
