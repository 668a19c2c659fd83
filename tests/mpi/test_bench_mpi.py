"""The benchmarks on real ranks, each MPI library in turn."""

import json
import os

import numpy as np
import pytest

from allreduce.algorithms import ALGORITHMS
from allreduce.native import NATIVE
from mpisgd.bench import allreduce, overlap, sparse
from mpisgd.bench.operations import MOCK_UPS
from mpisgd.cli import main
from mpisgd.store.reader import read

QUICK = ("--min-repetitions", "6", "--max-repetitions", "6", "--time-budget", "0.1s")


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_harness(mpi, ranks):
    done = mpi(ranks, "bench_checks.py", timeout=150)
    assert f"all checks passed on {ranks} ranks" in done.stdout
    assert "freeing" not in done.stderr


@pytest.mark.parametrize(("ranks", "dtype"), [(1, "float32"), (2, "float16"), (3, "float64")])
def test_every_algorithm_is_measured_and_right(mpi, ranks, dtype, tmp_path):
    output = tmp_path / "b.h5"
    words = ["mpisgd", "bench", "allreduce", "--sizes", "8,1K", "--dtype", dtype, "--both",
             "--format", "json", "--output", str(output), *QUICK]  # fmt: skip
    done = mpi.run(ranks, words, timeout=150)
    rows = json.loads(done.stdout)
    assert all(tuple(row) == allreduce.COLUMNS for row in rows)
    names = (*ALGORITHMS, *NATIVE, *MOCK_UPS)
    assert [(r["algorithm"], r["in_place"], r["bytes"]) for r in rows] == [
        (name, place, size) for size in (8, 1024) for name in names for place in (True, False)
    ]
    for row in rows:
        assert (row["ranks"], row["dtype"], row["repetitions"], row["wrong"]) == (
            ranks,
            dtype,
            6,
            0,
        )
        assert 0 < row["ci_low_s"] <= row["median_s"] <= row["ci_high_s"]
        assert row["p10_s"] <= row["median_s"] <= row["p90_s"] <= row["p99_s"]
        assert row["skew_s"] >= 0
        assert {"mpich": "MPICH 5", "openmpi": "Open MPI v5"}.get(mpi.name, "") in row["library"]
        assert row["algbw_GBps"] == pytest.approx(row["bytes"] / row["median_s"] / 1e9)
        share = 2 * (ranks - 1) / ranks
        expected = None if ranks == 1 else pytest.approx(row["algbw_GBps"] * share)
        assert row["busbw_GBps"] == expected
    check_file(output, rows, ranks)


@pytest.mark.parametrize("ranks", [1, 3])
def test_sparse_and_dense_sums_are_measured_and_right(mpi, ranks, tmp_path):
    output = tmp_path / "b.h5"
    words = ["mpisgd", "bench", "sparse", "--rows", "200", "--width", "4", "--densities",
             "0.01,1", "--format", "json", "--output", str(output), *QUICK]  # fmt: skip
    rows = json.loads(mpi.run(ranks, words, timeout=150).stdout)
    by_rows = [(density, name) for density in (0.01, 1) for name in sparse.SPARSE]
    cases = [*by_rows, *((None, name) for name in sparse.DENSE)]
    assert [(row["density"], row["algorithm"]) for row in rows] == cases
    for row in rows:
        assert (row["ranks"], row["repetitions"], row["wrong"]) == (ranks, 6, 0)
        assert row["rows"] == (2 if row["density"] == 0.01 else 200)
        assert row["bytes"] == row["rows"] * (16 if row["density"] is None else 24) + (
            0 if row["density"] is None else 8
        )
    run = read(output)
    assert (run.complete, run.config["benchmark"]) == (True, "sparse")
    assert [best["density"] for best in run.summary["fastest"]] == [0.01, 1]
    assert main(["report", str(output)]) == 0


def check_file(path, rows, ranks):
    """All samples are there, in the order in which they were measured."""
    run = read(path)
    assert (run.kind, run.complete, run.ranks) == ("bench", True, ranks)
    assert run.config["benchmark"] == "allreduce"
    assert run.environment["ranks_per_core"] > 0
    assert len(run.environment["hosts"]) == len(run.environment["cores"]) == ranks
    assert run.environment["thread_level"] == "multiple"
    assert run.environment["mpi_progress"].get("OMPI_MCA_mpi_yield_when_idle") in (None, "1")
    assert run.summary["wrong"] == 0
    places = [(8, True), (8, False), (1024, True), (1024, False)]
    assert [(best["bytes"], best["in_place"]) for best in run.summary["fastest"]] == places
    found = {(c["algorithm"], c["in_place"], c["bytes"]): (c, s) for c, s in run.cases}
    assert len(found) == len(rows)
    for row in rows:
        case, seconds = found[row["algorithm"], row["in_place"], row["bytes"]]
        assert seconds.shape == (6, ranks)
        assert np.median(seconds.max(axis=1)) == pytest.approx(case["median_s"])
        assert case["median_s"] == row["median_s"]
    assert [case["algorithm"] for case, _ in run.cases] != [row["algorithm"] for row in rows]


def test_osu_columns_in_turn_and_a_warning_for_too_many_ranks(mpi):
    words = ["mpisgd", "bench", "allreduce", "--sizes", "4", "--algorithms", "butterfly,mpi",
             "--osu", "--in-turn", "--chunks", "1,2", "--format", "csv", *QUICK]  # fmt: skip
    done = mpi.run(5, words, timeout=150)
    head, *lines = done.stdout.strip().split("\n")
    assert head.endswith("wrong,osu_avg_s,osu_min_s,osu_max_s")
    assert [line.split(",")[0] for line in lines] == ["butterfly"] * 2 + ["mpi", *MOCK_UPS]
    assert all(line.split(",")[6] == "6" for line in lines)
    crowded = len(os.sched_getaffinity(0)) < 5
    assert ("oversubscribed" in done.stderr) == crowded


def test_overlap(mpi, tmp_path):
    """What is told of each; how much looks hide, benchmarks/progress.py measures."""
    output = tmp_path / "overlap.h5"
    words = ["mpisgd", "bench", "overlap", "--sizes", "4M", "--polls", "0,16",
             "--work", "sleep", "--work-time", "20ms", "--format", "json",
             "--algorithms", "halving-doubling,mpi-nonblocking", "--output", str(output),
             *QUICK]  # fmt: skip
    check_overlap(json.loads(mpi.run(2, words, timeout=150).stdout), output)


def check_overlap(rows, output):
    keys = [getattr(column, "key", column) for column in overlap.COLUMNS]
    assert all(list(row) == keys for row in rows)
    assert [(row["progress"], row["polls"]) for row in rows] == [
        ("poll", 0), ("poll", 16), ("thread", None)
    ] * 2  # fmt: skip
    for row in rows:
        assert row["compute_s"] >= 0.02
        assert row["together_s"] > 0.02
        assert row["dilation"] > 0
        assert (row["longest_poll_s"] is None) == (row["polls"] != 16)
    parts = [case["part"] for case, _ in read(output).cases]
    assert parts == ["compute", "communication", "together", "exposed"] * 6


def test_an_existing_file_is_refused_on_all_ranks(mpi, tmp_path):
    output = tmp_path / "b.h5"
    output.write_text("mine")
    words = ["mpisgd", "bench", "allreduce", "--output", str(output)]
    done = mpi.run(2, words, timeout=150, check=False)
    assert done.returncode == 2
    assert done.stderr.count("exists; pass --overwrite") == 1
    assert output.read_text() == "mine"


def test_messages_to_two_at_once(mpi):
    assert "all checks passed" in mpi(3, "fan_out.py", timeout=150).stdout


def test_bound_ranks_have_a_core_each(mpi, tmp_path):
    output = tmp_path / "b.h5"
    words = ["mpisgd", "bench", "allreduce", "--sizes", "8", "--algorithms", "ring", "--bind",
             "--output", str(output), *QUICK]  # fmt: skip
    mpi.run(2, words, timeout=150)
    with read(output) as run:
        cores = [tuple(each) for each in run.environment["cores"]]
    assert [len(each) for each in cores] == [1, 1]
    assert len(set(cores)) == min(2, len(os.sched_getaffinity(0)))


@pytest.mark.parametrize("words", [(), ("--work", "sleep"), ("--work-time", "2ms")])
def test_work_need_not_be_said(mpi, words):
    """Its kind, nor its time, which is then that of the communication alone."""
    run = ["mpisgd", "bench", "overlap", "--sizes", "64K", "--polls", "4", "--progress", "poll",
           "--algorithms", "ring", "--format", "json", *words, *QUICK]  # fmt: skip
    (row,) = json.loads(mpi.run(2, run, timeout=150).stdout)
    assert (row["algorithm"], row["repetitions"]) == ("ring", 6)
    assert 0 <= row["polls"] <= 4  # work of one piece has no room for a look
    assert all(row[key] > 0 for key in ("compute_s", "communication_s", "together_s"))
