"""`mpisgd verify`: every combination in a row, and an exit code that says whether all are right."""

import csv
import io
import json
from dataclasses import replace

import pytest

from allreduce.algorithms import ALGORITHMS, build
from mpisgd.cli import main
from mpisgd.commands import verify
from mpisgd.values import tables

KEYS = [getattr(column, "key", column) for column in verify.COLUMNS]


def test_all_of_them_are_right(capsys):
    assert main(["verify", "--ranks", "1:5,8", "--algorithms", "all", "--format", "json"]) == 0
    out, err = capsys.readouterr()
    rows = json.loads(out)
    assert [list(row) for row in rows] == [KEYS] * len(rows)
    assert [(row["algorithm"], row["ranks"]) for row in rows] == [
        (name, size) for name in ALGORITHMS for size in (1, 2, 3, 4, 5, 8)
    ]
    assert {row["verdict"] for row in rows} == {"right"}
    assert err == f"{len(rows)} schedules verified, 0 wrong\n"


def test_a_row_counts_what_the_schedule_holds(capsys):
    assert main(["verify", "--ranks", "4", "--algorithms", "ring", "--format", "csv"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    # 2 (p - 1) rounds, in each of which every rank sends one of p segments.
    assert (row["rounds"], row["transfers"], row["segments"]) == ("6", "24", "4")
    assert float(row["verify_s"]) >= 0


@pytest.mark.parametrize("form", tables.FORMATS)
def test_one_that_is_wrong_is_named_and_tells_by_the_exit_code(form, monkeypatch, capsys):
    def shorter(size):
        whole = build("ring", size)
        return replace(whole, rounds=whole.rounds[:-1])

    monkeypatch.setitem(ALGORITHMS, "butterfly", shorter)
    words = ["--ranks", "1,3", "--algorithms", "tree,butterfly", "--format", form]
    assert main(["verify", *words]) == 1
    out, err = capsys.readouterr()
    assert err == "4 schedules verified, 1 wrong\n"
    assert out.count("right") == 3
    assert "contribution" in out
