"""The benchmarks without MPI: what is asked for, in which order, and that faults are seen."""

import argparse
import math
import time
import timeit
from dataclasses import replace

import numpy as np
import pytest

from allreduce import lowering
from allreduce import measure as timing
from allreduce.algorithms import ALGORITHMS, build
from allreduce.native import NATIVE
from allreduce.plan import Plan
from allreduce.testing.loopback import World
from mpisgd import cli
from mpisgd.bench import allreduce, overlap, record, work
from mpisgd.bench.operations import MOCK_UPS, Vectors, operation
from mpisgd.bench.work import Gemm, Sleep, beside, stops
from mpisgd.commands import bench


def settings(*words: str):
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    arguments = parser.parse_args(words)
    return bench.BENCHMARKS[arguments.benchmark][0].settings(arguments)


# --- what is measured ---------------------------------------------------------------------------


def test_all_means_every_algorithm_and_what_the_library_must_not_lose_to():
    chosen = settings("allreduce", "--algorithms", "all", "--sizes", "4,1K")
    assert chosen.algorithms == (*ALGORITHMS, *NATIVE, *MOCK_UPS)
    assert chosen.sizes == (4, 1024)
    assert settings("allreduce", "--algorithms", "mpi", "--no-mock-ups").algorithms == ("mpi",)
    assert settings("allreduce", "--algorithms", "ring").algorithms == ("ring",)


def test_default_sizes_are_whole_elements():
    assert settings("allreduce", "--dtype", "float64").sizes[0] == 8
    assert settings("allreduce").sizes == tuple(4 << i for i in range(19))


@pytest.mark.parametrize("turn", [[], ["--in-turn"]])
def test_every_case_is_measured_once_in_an_order_that_follows_from_the_seed(turn):
    words = ("allreduce", "--algorithms", "ring,tree,mpi", "--sizes", "4,8", "--both",
             "--chunks", "1,4", *turn)  # fmt: skip
    chosen = settings(*words)
    cases = chosen.cases()
    assert len(cases) == len(set(cases)) == (2 * 2 + 3) * 2 * 2  # the library has no chunks
    order = [case for block in chosen.blocks() for case in block]
    assert sorted(order) == sorted(cases)
    assert order != cases
    assert chosen.blocks() == settings(*words).blocks()
    assert chosen.blocks() != settings(*words, "--seed", "1").blocks()


def test_in_turn_measures_all_algorithms_of_a_size_together():
    words = ("allreduce", "--sizes", "4,8,16", "--algorithms", "ring,mpi", "--no-mock-ups")
    blocks = settings(*words, "--in-turn").blocks()
    assert sorted(len(block) for block in blocks) == [2, 2, 2]
    assert all(len({case.bytes for case in block}) == 1 for block in blocks)
    assert all(len(block) == 1 for block in settings(*words).blocks())


def test_overlap_sweeps_polls_and_has_one_row_for_the_thread():
    chosen = settings("overlap", "--algorithms", "ring", "--sizes", "64K", "--polls", "0,4")
    ways = [(case.progress, case.polls) for case in chosen.cases()]
    assert ways == [("poll", 0), ("poll", 4), ("thread", 0)]
    alone = settings("overlap", "--progress", "thread")
    assert {case.progress for case in alone.cases()} == {"thread"}


def test_overlap_takes_what_auto_chose_for_each_size_once():
    chosen = settings("overlap", "--algorithms", "ring,auto", "--sizes", "4,8", "--polls", "0",
                      "--progress", "poll")  # fmt: skip
    found = ((4, "ring", 1, "here"), (8, "butterfly", 8, "there"))
    assert [case[:3] for case in replace(chosen, auto=found).cases()] == [
        ("ring", 4, 1), ("ring", 8, 1), ("butterfly", 8, 8)
    ]  # fmt: skip


MISTAKES = [
    (["allreduce", "--sizes", "6"], "--sizes '6': 6 B is not a whole number of float32"),
    (["allreduce", "--sizes", "8:4"], "--sizes '8:4'"),
    (["allreduce", "--sizes", "4", "--dtype", "float64"], "float64 (8 B each)"),
    (["allreduce", "--algorithms", "rings"], "mpi-nonblocking"),
    (["allreduce", "--chunks", "0"], "--chunks '0'"),
    (["allreduce", "--chunks", "257"], "1..256"),
    (["allreduce", "--min-repetitions", "0"], "--min-repetitions '0'"),
    (["allreduce", "--min-repetitions", "9", "--max-repetitions", "8"], "--max-repetitions '8'"),
    (["allreduce", "--time-budget", "-1s"], "--time-budget '-1s'"),
    (["allreduce", "--tolerance", "nan"], "--tolerance 'nan'"),
    (["allreduce", "--deadline", "0"], "--deadline '0'"),
    (["overlap", "--algorithms", "ring,mpi"], "mpi blocks"),
    (["overlap", "--algorithms", "mpi-reduce-bcast"], "mpi-persistent"),
    (["overlap", "--polls", "-1"], "--polls '-1'"),
    (["overlap", "--polls", ","], "--polls ','"),
    (["overlap", "--progress", "prayer"], "--progress 'prayer': some of poll, thread"),
    (["overlap", "--sizes", "0"], "at least 1 byte"),
    (["overlap", "--work-time", "0"], "--work-time '0'"),
    (["overlap", "--chunks", "1,2"], "one number"),
]


@pytest.mark.parametrize(("words", "said"), MISTAKES)
def test_mistakes_are_one_line_before_anything_runs(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["bench", *(f"{w}={v}" if w.startswith("--") else w for w, v in _pairs(words))]
    assert cli.main([*words, "--output", "b.h5"]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.err.count("\n") == 1
    assert not printed.out
    assert not list(tmp_path.iterdir())


def _pairs(words):
    """The benchmark, then options with their values."""
    return [(words[0], ""), *zip(words[1::2], words[2::2], strict=True)]


def test_fewer_looks_than_asked_for_are_told_with_the_reason():
    rows = [
        {"algorithm": "ring", "bytes": size, "polls": polls, "polls_asked": asked}
        for size, polls, asked in ((4, 3, 64), (4, 1, 1), (8, None, None), (8, 24, 64))
    ]
    (line,) = overlap.fewer_looks(rows)
    assert line.startswith("--polls: 64 became 3 (ring, 4 B), 64 became 24 (ring, 8 B): work that")
    assert overlap.fewer_looks(rows[1:3]) == []


# --- the mock-up rule ---------------------------------------------------------------------------


def row(algorithm: str, median: float, low: float, high: float, octets: int = 4) -> dict:
    return {"algorithm": algorithm, "bytes": octets, "in_place": True, "median_s": median,
            "ci_low_s": low, "ci_high_s": high}  # fmt: skip


def test_a_library_slower_than_its_parts_is_reported():
    slow = [row("mpi", 3.0, 2.9, 3.1), row("mpi-reduce-bcast", 2.0, 1.9, 2.1)]
    (verdict,) = allreduce.mock_up_rule(slow)
    assert verdict == "mock-up rule: mpi takes 1.50 of mpi-reduce-bcast, 4 B in place"


def test_what_lies_within_the_intervals_is_not_reported():
    close = [row("mpi", 3.0, 2.0, 3.1), row("mpi-reduce-bcast", 2.0, 1.9, 2.1)]
    fast = [row("mpi", 1.0, 0.9, 1.1), row("mpi-reduce-bcast", 2.0, 1.9, 2.1)]
    elsewhere = [row("mpi", 3.0, 2.9, 3.1, 8), row("mpi-reduce-bcast", 2.0, 1.9, 2.1)]
    alone = [row("mpi-reduce-bcast", 2.0, 1.9, 2.1), row("ring", 9.0, 8.9, 9.1)]
    for rows in (close, fast, elsewhere, alone):
        assert allreduce.mock_up_rule(rows) == []


# --- who is the fastest -------------------------------------------------------------------------


def test_the_fastest_of_either_side_is_compared_and_chosen_only_where_it_is_known():
    rows = [
        row("ring", 2.0, 1.9, 2.1) | {"chunks": 1},
        row("tree", 1.0, 0.9, 1.1) | {"chunks": 4},
        row("mpi", 2.0, 1.8, 2.2) | {"chunks": 1},
        row("mpi-reduce-bcast", 0.1, 0.1, 0.1),
        row("ring", 0.5, 0.4, 0.6) | {"chunks": 2, "wrong": 1},  # too fast to be right
    ]
    (best,) = allreduce.fastest({"wrong": 0} | each for each in rows)
    assert (best["ours"], best["chunks"], best["library"], best["use"]) == (
        "tree",
        4,
        "mpi",
        "tree",
    )
    ends = [best[key] for key in ("ratio_low", "ratio", "ratio_high")]
    assert ends == pytest.approx([0.9 / 2.2, 0.5, 1.1 / 1.8])
    for low, high, use in ((0.4, 0.6, "mpi"), (0.9, 1.2, "either"), (math.nan, math.nan, "either")):
        library = row("mpi", 0.5, low, high)
        (best,) = allreduce.fastest({"wrong": 0, "chunks": 1} | each for each in (rows[1], library))
        assert best["use"] == use
    assert best["ratio_low"] is None
    assert allreduce.fastest({"wrong": 0} | each for each in rows[:2]) == []
    assert record.short_name("MPICH Version: 5.0.2") == "MPICH 5.0.2"
    assert record.short_name("Open MPI v5.0.11, package: x") == "Open MPI v5.0.11"
    intel = "Intel(R) MPI Library 2021.18.1 for Linux* OS"
    assert record.short_name(intel) == "Intel MPI 2021.18.1"


# --- validation sees faults ---------------------------------------------------------------------


def test_a_call_that_does_nothing_or_spoils_its_input_is_counted_wrong():
    comm = World(1).comm(0)
    apart = Vectors(np, 7, np.dtype("float32"), in_place=False)
    assert apart.count_wrong(comm, lambda: None, 1.0) == 7

    def copy():
        apart.result[...] = apart.source

    assert apart.count_wrong(comm, copy, 1.0) == 0

    def spoil():
        copy()
        apart.source[3] = 0.5

    assert apart.count_wrong(comm, spoil, 1.0) == 1
    assert not apart.source.any()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_our_own_are_right_on_one_rank(name):
    comm = World(1).comm(0)
    for in_place in (True, False):
        vectors = Vectors(np, 5, np.dtype("float16"), in_place)
        made = operation(comm, name, vectors)
        assert vectors.count_wrong(comm, made.run, 1.0) == 0
        made.close()


# --- work, and what goes on beside it -----------------------------------------------------------


@pytest.mark.parametrize("pieces", [1, 2, 7, 64, 1000])
@pytest.mark.parametrize("looks", [0, 1, 4, 64])
def test_looks_are_spread_evenly_between_pieces(pieces, looks):
    found = stops(pieces, looks)
    assert len(found) == min(looks, pieces - 1)
    assert all(0 < stop < pieces for stop in found)
    gaps = np.diff([0, *found, pieces])
    assert gaps.min() >= 1
    if looks < pieces:
        assert gaps.max() - gaps.min() <= 1


def test_work_looks_as_often_as_asked():
    looked = []
    Gemm(100, dimension=2)(lambda: looked.append(1), 16)
    assert len(looked) == 16
    Sleep(0.0)(lambda: looked.append(1), 5)
    assert len(looked) == 21


class Fake:
    """A communication and a clock: 1 s of messages, of which shares move by themselves, at looks,
    or only while somebody waits. Looks and the start take no time."""

    def __init__(self, alone: float = 0.0, at_look: float = 0.0):
        self.now, self.alone, self.at_look, self.left, self.looked = 0.0, alone, at_look, 0.0, 0

    def clock(self) -> float:
        return self.now

    def start(self) -> None:
        self.left = 1.0

    def test(self) -> bool:
        self.looked += 1
        self.left = max(0.0, self.left - self.at_look)
        return not self.left

    def wait(self) -> None:
        self.now, self.left = self.now + self.left, 0.0

    def work(self, look, looks: int, pieces: int = 64) -> None:
        """2 s of it."""
        at = set(stops(pieces, looks))
        for piece in range(pieces):
            if piece in at:
                look()
            self.now += 2 / pieces
            self.left = max(0.0, self.left - self.alone * 2 / pieces)


@pytest.mark.parametrize(
    ("fake", "polls", "hidden"),
    [
        (Fake(), 0, 0.0),
        (Fake(), 16, 0.0),
        (Fake(alone=0.25), 0, 0.5),
        (Fake(alone=1.0), 0, 1.0),
        (Fake(at_look=0.125), 0, 0.0),  # what moves at looks only is not hidden without any
        (Fake(at_look=0.125), 4, 0.5),
        (Fake(at_look=0.125), 16, 1.0),
    ],
)
def test_the_harness_finds_the_truth(fake, polls, hidden):
    span = beside(fake, fake.work, polls, fake.clock)
    together = fake.now
    assert span.polls == fake.looked == polls
    assert span.exposed_s == pytest.approx(1 - hidden)
    found = timing.overlap(2.0, 1.0, together, span.exposed_s)
    assert found == pytest.approx((hidden, 100 * hidden, 100 * hidden, 1.0))


def test_a_harness_that_looks_although_no_polls_were_asked_for_is_caught():
    fake = Fake(at_look=0.125)

    def cheat(pending, doing, polls, clock):
        return beside(pending, doing, max(polls, 8), clock)

    span = cheat(fake, fake.work, 0, fake.clock)
    found = timing.overlap(2.0, 1.0, fake.now, span.exposed_s)
    assert found.hidden == pytest.approx(1.0)  # the claim
    assert (span.polls, fake.looked) == (8, 8)  # and what gives it away


def test_polls_that_take_long_show():
    fake = Fake()

    def test() -> bool:
        fake.now += 0.25 if fake.looked == 2 else 0.125
        return Fake.test(fake)

    fake.test = test
    span = beside(fake, fake.work, 4, fake.clock)
    assert span.longest_poll_s == 0.25
    assert timing.overlap(2.0, 1.0, fake.now, span.exposed_s).dilation == pytest.approx(2.625 / 2)


def test_pieces_of_work_take_a_measurable_time():
    assert 0 < Gemm(1).piece_s() < 0.1
    assert work.PIECES_TIMED > 1


# --- the plan's own cost ------------------------------------------------------------------------


def test_a_look_with_nothing_to_do_costs_less_than_two_microseconds():
    world = World(1)
    with Plan(world.comm(0), build("ring", 1), np.zeros(4)) as plan:
        tries = timeit.repeat(plan.test, timer=time.process_time, number=500, repeat=20)
    assert min(tries) / 500 < 2e-6


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_one_element_is_added_to_the_same_bits_as_many(dtype):
    random = np.random.default_rng(3)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, np.finfo(dtype).max, np.finfo(dtype).tiny / 3]
    values = np.array([*special, *random.standard_normal(50), *random.random(50) * 1e-7], dtype)
    with np.errstate(all="ignore"):
        expected = values[:, None] + values
        for (i, j), one in np.ndenumerate(expected):
            where, landing = values[i : i + 1].copy(), values[j : j + 1].copy()
            lowering._add_one(where, landing)
            assert where.tobytes() == one.tobytes() or (np.isnan(one) and np.isnan(where[0]))


def test_columns_are_as_documented():
    assert "wrong" in allreduce.COLUMNS
    assert math.isnan(timing.bus_bandwidth(4, 1.0, 1))
    keys = [getattr(column, "key", column) for column in overlap.COLUMNS]
    assert keys[-6:-2] == ["hidden", "osu_overlap_percent", "imb_overlap_percent", "dilation"]
    assert set(timing.Overlap._fields) <= set(keys)
