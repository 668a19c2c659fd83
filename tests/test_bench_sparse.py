"""`mpisgd bench sparse` without MPI: what is asked for, what is chosen, that faults are seen."""

import numpy as np
import pytest
from test_bench import settings

from allreduce.algorithms import allgather
from allreduce.sparse import Sparse, add
from allreduce.testing.loopback import World
from mpisgd import cli
from mpisgd.bench import sparse


def test_every_density_by_rows_and_the_whole_matrix_once():
    chosen = settings("sparse", "--densities", "0.1,0.5,0.1", "--algorithms", "ring,mpi")
    assert [case.density for case in chosen.cases()] == [0.1, 0.1, 0.5, 0.5, None, None]
    assert [case.algorithm for case in chosen.cases()] == 2 * ["gather", "butterfly"] + [
        "ring", "mpi",
    ]  # fmt: skip


@pytest.mark.parametrize("words", [[], ["--words"]])
def test_parts_are_whole_numbers_of_as_many_rows_as_asked(words):
    chosen = settings("sparse", "--rows", "500", "--width", "3", *words)
    parts = [chosen.part(density, rank) for density in (0.02, 1e-9, 1.0) for rank in (0, 1)]
    assert [part.rows.size for part in parts] == [10, 10, 1, 1, 500, 500]
    for part in parts:
        assert (np.diff(part.rows) > 0).all()
        assert (part.values == part.values.round()).all()
        assert part.values.shape == (part.rows.size, 3)
    assert not np.array_equal(parts[0].rows, parts[1].rows)
    assert np.array_equal(parts[0].rows, chosen.part(0.02, 0).rows)


def test_words_are_frequent_by_their_rank():
    rows = [settings("sparse", "--words", "--seed", str(s)).part(0.001, 0).rows for s in range(9)]
    assert np.median(np.concatenate(rows)) < 5000  # of 50,000


def test_wrong_sums_are_counted():
    chosen = settings("sparse", "--rows", "40", "--width", "3")
    comm = World(1).comm(0)
    right = chosen.part(0.5, 0)
    assert sparse._count_wrong(comm, right, 0.5, chosen) == 0
    spoilt = Sparse(right.rows, right.values + np.eye(20, 3, dtype=np.float32))
    assert sparse._count_wrong(comm, spoilt, 0.5, chosen) == 3
    missing = Sparse(right.rows[1:], right.values[1:])
    assert sparse._count_wrong(comm, missing, 0.5, chosen) == 60
    assert sparse._schedule(sparse.Case(0.5, "gather"), 3, [0, 1, 2]) == allgather(3)
    assert add(right, right).values.sum() == 2 * right.values.sum()


def row(density, algorithm, median_s, wrong=0):
    return {"density": density, "algorithm": algorithm, "median_s": median_s, "wrong": wrong,
            "ci_low_s": 0.9 * median_s, "ci_high_s": 1.1 * median_s}  # fmt: skip


def test_the_fastest_of_both_kinds_is_chosen_only_where_it_is_known():
    rows = [
        row(0.1, "gather", 3.0), row(0.1, "butterfly", 2.0), row(0.1, "ring", 1.0, wrong=1),
        row(0.5, "gather", 5.0), row(0.9, "gather", 9.0),
        row(None, "ring", 5.5), row(None, "mpi", 8.0),
    ]  # fmt: skip
    found = sparse.fastest(rows)
    assert [each["density"] for each in found] == [0.1, 0.5, 0.9]
    assert [each["use"] for each in found] == ["sparse", "either", "dense"]
    assert found[0]["sparse"] == "butterfly"
    assert found[0]["dense"] == "ring"
    assert found[0]["ratio"] == pytest.approx(2 / 5.5)
    assert sparse.fastest(rows[:4]) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--densities", "0"], "--densities '0'"),
        (["--densities", "0.1,1.5"], "--densities '1.5'"),
        (["--densities", "0.1,"], "--densities ''"),
        (["--rows", "0"], "--rows '0'"),
        (["--width", "many"], "--width 'many'"),
        (["--sparse", "gather,trea"], "--sparse 'gather,trea'"),
        (["--algorithms", "gather"], "--algorithms 'gather'"),
        (["--backend", "cupy"], "--backend 'cupy': numpy"),
    ],
)
def test_mistakes_are_one_line_before_anything_runs(words, said, capsys):
    assert cli.main(["bench", "sparse", *words]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line
