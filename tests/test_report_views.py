"""Which columns a report shows: a first look, all of them, or those asked for."""

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

from mpisgd.cli import main
from mpisgd.report import curves, reference, sections
from mpisgd.report.columns import meanings
from mpisgd.store.writer import Writer

FIT = 120  # characters of a first look at files with short names
DASGD = {"algorithm": "dasgd", "tau": 4, "delay": 3, "xi": 0.25, "merge": "convex"}
RUNS = {
    "minibatch": {"algorithm": "minibatch"}, "overlap": {"algorithm": "minibatch-overlap"},
    "dasgd": DASGD,
}  # fmt: skip


def train(path, config, accuracy=0.97, steps=8):
    config = {"allreduce": "halving-doubling", "data": "mnist", "batch": 32, **config}
    with Writer(path, kind="train", config=config, environment={}, ranks=8) as store:
        for rank in range(8):
            times = np.full(steps, 0.01234)
            store.steps(rank, 1, {
                "start_s": np.arange(steps) * 1.0, "step_s": times, "compute_s": times / 2,
                "update_s": times / 8, "poll_s": times / 8, "wait_s": times / 4,
                "samples": np.full(steps, 32),
            })  # fmt: skip
        more = {} if accuracy is None else {"accuracy": accuracy}
        store.evaluation(step=steps, time_s=12.34, loss=0.1, samples_used=1e6, **more)
        store.complete({})


def bench(path):
    row = {
        "benchmark": "allreduce", "algorithm": "halving-doubling", "ranks": 128, "bytes": 4 << 20,
        "dtype": "float32", "in_place": False, "chunks": 1, "wrong": 0,
        "ci_low_s": 1.1e-3, "ci_high_s": 1.3e-3,
    }  # fmt: skip
    with Writer(path, kind="bench", config={}, environment={}, ranks=2) as store:
        store.case(row, np.full((3, 2), 1.2345678e-3))
        store.complete({})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("views")
    for name, config in RUNS.items():
        train(made / f"{name}.h5", config)
    bench(made / "bench.h5")
    return made


TERMS = meanings((*sections.TABLES, curves.EVALUATION, curves.STEPS, reference.COLUMNS))


@pytest.fixture
def files(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return [f"{name}.h5" for name in (*RUNS, "bench")]


def printed(capsys, *words):
    assert main(["report", *words]) == 0
    return capsys.readouterr().out


def headings(text):
    """The columns of a text's tables, from the lines that hold names alone."""
    lines = [line.split() for line in text.splitlines()]
    return {word for line in lines if line and set(line) <= {*TERMS, "benchmark"} for word in line}


def told(text):
    """The same, and those that stand once above a table, being equal in all its rows."""
    lines = re.findall(r"^everywhere: (.*?)\n\n", text, re.MULTILINE | re.DOTALL)
    equal = {entry.split()[0] for line in lines for entry in " ".join(line.split()).split(", ")}
    return headings(text) | equal


def test_a_first_look_fits_and_says_that_there_is_more(capsys, files):
    text = printed(capsys, *files)
    tables = [
        line
        for line in text.splitlines()
        if not line.startswith(("note: ", "more ", "everywhere: ", "  "))
    ]
    assert 60 < max(map(len, tables)) <= FIT
    assert {"effective_step_s", "accuracy", "clock", "busbw_GBps"} <= told(text)
    assert not {"loss", "poll_share", "state", "restarts", "ci_low_s"} & told(text)
    assert text.splitlines()[-1] == sections.MORE


def test_all_columns_are_there_for_the_asking_and_in_forms_for_programs(capsys, files):
    whole = told(printed(capsys, *files, "--columns", "all"))
    assert {"loss", "poll_share", "state", "restarts", "ci_low_s", "dtype"} <= whole
    page = json.loads(printed(capsys, *files, "--format", "json"))
    assert whole <= {key for name in ("runs", "targets", "bench") for key in page[name][0]}
    assert page == json.loads(printed(capsys, *files, "--format", "json", "--columns", "all"))
    assert sections.MORE not in printed(capsys, *files, "--columns", "all")
    fom = printed(capsys, *files, "--format", "fom")
    assert ".poll_share " in fom
    assert fom == printed(capsys, *files, "--format", "fom", "--columns", "all")


def test_columns_by_name_come_in_that_order_from_the_tables_that_have_them(capsys, files):
    words = [*files, "--columns", "steps, file,poll_share"]
    text = printed(capsys, *words)
    assert text.splitlines()[2].split() == ["steps", "file", "poll_share"]
    assert "Benchmarks" not in text
    page = json.loads(printed(capsys, *words, "--format", "json"))
    assert set(page) == {"runs", "targets", "notes", "damaged"}
    assert [list(row) for row in page["runs"]] == [["steps", "file", "poll_share"]] * 3
    rows = csv.reader(io.StringIO(printed(capsys, *words, "--format", "csv", "--table", "runs")))
    assert next(rows) == ["steps", "file", "poll_share"]
    fom = printed(capsys, *words, "--format", "fom").split()
    assert {word.rpartition(".")[2] for word in fom if word.startswith("name=")} == {
        "steps", "poll_share"
    } - {"steps"}  # fmt: skip
    assert "file" in printed(capsys, *files, "--columns", "file")


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ("acuracy", "--columns 'acuracy': no such column here; did you mean accuracy?; there are"),
        ("file,all", "--columns 'all': no such column here"),
        ("", "--columns '': all, or names of columns"),
        (" , ", "--columns ' , ': all, or names of columns"),
        ("quorun", "no such column here; did you mean quorum?"),
        ("dense.h5", "no such column here; there are file, algorithm"),
    ],
)
def test_a_column_that_is_none_is_refused_before_anything_is_written(capsys, files, columns, told):
    words = [files[0], "--columns", columns, "--trace", "t.json", "--format", "json"]
    assert main(["report", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert len(err.splitlines()) == 1
    assert not Path("t.json").exists()


def test_tables_have_just_the_columns_asked_for_and_are_left_out_with_nothing_else(capsys, files):
    words = [*files, "--format", "json", "--columns"]
    page = json.loads(printed(capsys, *words, "algorithm,steps"))
    assert list(page["runs"][0]) == ["algorithm", "steps"]
    assert list(page["targets"][0]) == ["algorithm", "steps"]
    assert set(json.loads(printed(capsys, *words, "file,algorithm,clock,loss"))) == {
        "runs", "evaluation", "notes", "damaged"
    }  # fmt: skip
    assert "bench" in json.loads(printed(capsys, *words, "file,algorithm"))


def test_what_was_trained_is_a_column_of_all_and_not_of_the_first_look(capsys, files):
    asked = {"model", "data", "batch", "rate", "step_time_s", "seed", "hosts"}
    page = json.loads(printed(capsys, *files, "--format", "json"))
    assert asked <= set(page["runs"][0])
    assert (page["runs"][0]["data"], page["runs"][0]["batch"]) == ("mnist", 32)
    assert {"data", "batch"} <= told(printed(capsys, *files, "--columns", "all"))
    assert not asked & headings(printed(capsys, *files))


def test_settings_are_had_by_their_names_equal_or_unset(capsys, files):
    """Of one run, and of several that all have the same; in the order in which they are named."""
    words = [*files, "--columns", "file,quorum,algorithm", "--table", "runs"]
    assert printed(capsys, *words).split()[:3] == ["file", "quorum", "algorithm"]
    for some in (files[:1], files):
        words = [*some, "--columns", "quorum,batch,allreduce", "--table", "runs"]
        for line in printed(capsys, *words).splitlines()[1 : len(some)]:
            assert line.split() == ["-", "32", "halving-doubling"]
        page = json.loads(printed(capsys, *words, "--format", "json"))
        assert page["runs"][0] == {
            "quorum": None, "batch": 32, "allreduce": "halving-doubling",
        }  # fmt: skip
    assert "quorum" not in json.loads(printed(capsys, *files, "--format", "json"))["runs"][0]


def test_columns_without_a_value_explains_them_and_the_page_is_written_all_the_same(capsys, files):
    words = ["report", files[0], "--columns", "--trace", "t.json"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == len(TERMS)
    assert Path("t.json").stat().st_size > 0
    Path("t.json").unlink()
    assert main(["report", "--columns", "--trace", "t.json"]) == 2
    assert capsys.readouterr().out == ""


def test_a_table_that_is_not_there_is_a_mistake_and_nothing_is_written(capsys, files, tmp_path):
    page = tmp_path / "page.html"
    assert main(["report", files[0], "--table", "servers", "--html", str(page)]) == 2
    told = capsys.readouterr()
    assert "--table 'servers': these files have no such table; there are runs, targets" in told.err
    assert told.out == ""
    assert not page.exists()


def test_notes_are_wrapped_to_the_width_that_was_asked_for(capsys, files, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    narrow = printed(capsys, *files)
    notes = narrow[narrow.index("note: ") :]
    assert max(map(len, notes.splitlines())) <= 60
    monkeypatch.delenv("COLUMNS")
    wide = printed(capsys, *files)
    assert notes.split() == wide[wide.index("note: ") :].split()
    assert max(map(len, wide.splitlines())) > 60


def test_a_loss_stands_in_for_an_accuracy(capsys, tmp_path):
    train(tmp_path / "a.h5", RUNS["dasgd"], accuracy=None)
    found = headings(printed(capsys, str(tmp_path / "a.h5"), "--table", "runs"))
    assert "loss" in found
    assert "accuracy" not in found
