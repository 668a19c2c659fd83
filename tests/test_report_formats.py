"""The forms of a report, and what it says of folders and files that it cannot take."""

import csv
import io
import json
import re

import h5py
import pytest
from test_report import DASGD, bench, made, opened

from mpisgd.cli import main
from mpisgd.report.sections import report, shown
from mpisgd.store.writer import Writer


@pytest.fixture
def folder(tmp_path):
    made(tmp_path / "a.h5")
    made(tmp_path / "b.h5", **DASGD)
    bench(tmp_path / "c.h5")
    return tmp_path


def test_json_is_exact_and_whole(folder, capsys):
    assert main(["report", str(folder), "--format", "json", "--targets", "0.5,0.99"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert [entry["algorithm"] for entry in page["runs"]] == ["minibatch", "dasgd"]
    assert [t["reached"] for t in page["targets"]] == ["reached"] * 2 + ["not reached"] * 2
    assert page["bench"][1]["bytes"] == 4_000_000
    assert page["damaged"] == []
    assert any("throws away" in note for note in page["notes"])


def test_csv_is_one_table_and_keeps_notes_out_of_it(folder, capsys):
    for table, count in {"runs": 2, "targets": 4, "bench": 2}.items():
        assert main(["report", str(folder), "--format", "csv", "--table", table]) == 0
        out, err = capsys.readouterr()
        rows = list(csv.DictReader(io.StringIO(out)))
        assert len(rows) == count
        assert all(None not in row for row in rows)
        assert "note: " in err


def test_what_benchmarks_say_of_whom_to_use_is_a_table(tmp_path, monkeypatch, capsys):
    """And what is no table is none."""
    monkeypatch.delenv("COLUMNS", raising=False)  # as of a pipe, not of a small terminal
    monkeypatch.chdir(tmp_path)
    of_rows = {"density": 0.1, "sparse": "gather", "sparse_s": 1e-3, "dense": "mpi",
               "dense_s": 2e-3, "ratio": 0.5, "ratio_low": 0.4, "ratio_high": 0.6,
               "use": "sparse"}  # fmt: skip
    of_bytes = {"bytes": 8, "ours": "ring", "library": "mpi", "use": "either", "odd": 1}
    told = {"a": {"fastest": [of_rows]}, "b": {"fastest": [of_bytes, 3], "auto": "yes"},
            "c": {"auto": [{"bytes": 8, "auto": "ring", "regret": 0.25}]}}  # fmt: skip
    for name, summary in told.items():
        with Writer(f"{name}.h5", kind="bench", config={}, environment={}, ranks=2) as store:
            store.case({"algorithm": "ring", "ranks": 2, "wrong": 0}, [[1e-3, 1e-3]])
            store.complete(summary)
    assert main(["report", ".", "--format", "json"]) == 0
    page = json.loads(capsys.readouterr().out)
    said = [{key: row[key] for key in ("density", "bytes", "use")} for row in page["fastest"]]
    assert said == [{"density": 0.1, "bytes": None, "use": "sparse"},
                    {"density": None, "bytes": 8, "use": "either"}]  # fmt: skip
    assert [row["regret"] for row in page["auto"]] == [0.25]
    assert main(["report", "a.h5", "--table", "fastest"]) == 0
    heading, row = capsys.readouterr().out.splitlines()[:2]
    assert (heading.split()[-1], row.split()[-1]) == ("use", "sparse")
    assert "library_s" not in heading


def test_text_tables_fit_and_name_every_column(folder, capsys):
    assert main(["report", str(folder)]) == 0
    out = capsys.readouterr().out
    tables = [line for line in out.splitlines() if not line.startswith("note: ")]
    assert max(map(len, tables)) <= 132 + len(str(folder))
    for word in ("step_s", "wait_share", "effective_step_s", "busbw_GBps", "not reached"):
        assert word in out


def test_fom_lines_can_be_scraped(folder, capsys):
    assert main(["report", str(folder), "--format", "fom"]) == 0
    lines = capsys.readouterr().out.splitlines()
    pattern = re.compile(r"FOM name=(\S+) value=([-+.e\d]+) unit=(\S+)")
    found = [pattern.fullmatch(line) for line in lines]
    assert all(found)
    assert len({match[1] for match in found}) == len(lines)
    value = next(match[2] for match in found if match[1].endswith("/a.samples_per_s"))
    assert float(value) == 20.0


def test_fom_names_tell_cases_apart(tmp_path, capsys):
    """By what differs, and where nothing does, by a number."""
    plain = {"algorithm": "ring", "ranks": 2, "bytes": 4}
    ways = [{"part": part} for part in ("compute", "together")]
    ways += [{"dtype": "float16"}, {"dtype": "float32"}, {"chunks": 4}, {"polls_asked": 4}, {}, {}]
    with Writer(tmp_path / "b.h5", kind="bench", config={}, environment={}, ranks=2) as store:
        for way in ways:
            store.case(plain | way, [[1e-3, 2e-3]])
        store.complete({})
    assert main(["report", str(tmp_path / "b.h5"), "--format", "fom"]) == 0
    names = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    assert len(set(names)) == len(names)
    medians = [name for name in names if name.endswith(".median_s")]
    assert len(medians) == len(ways)
    for word in (".compute.", ".float16.", ".chunks4.", ".polls_asked4.", ".again2."):
        assert sum(word in name for name in medians) == 1, word


def test_a_folder_with_damaged_foreign_partial_and_newer_files_is_reported(folder, capsys):
    (folder / "cut.h5").write_bytes((folder / "a.h5").read_bytes()[:5000])
    (folder / "text.h5").write_text("not at all")
    with h5py.File(folder / "foreign.h5", "w") as file:
        file["x"] = 1
    (folder / "newer.h5").write_bytes((folder / "a.h5").read_bytes())
    with h5py.File(folder / "newer.h5", "r+") as file:
        file.attrs["schema_version"] = 2
    made(folder / "killed.h5", complete=False)
    assert main(["report", str(folder), "--format", "json"]) == 1
    out, err = capsys.readouterr()
    page = json.loads(out)
    assert len(err.splitlines()) == 4 == len(page["damaged"])
    for word in ("cut.h5", "text.h5", "foreign.h5", "newer.h5"):
        assert sum(word in line for line in err.splitlines()) == 1
    assert "Traceback" not in err
    states = {entry["file"].rsplit("/", 1)[-1]: entry["state"] for entry in page["runs"]}
    assert states == {"a.h5": "complete", "b.h5": "complete", "killed.h5.partial": "partial"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--targets", "0.9,x"], "--targets 'x'"),
        (["--targets", "1.5"], "--targets '1.5'"),
        (["--targets", "nan"], "--targets 'nan'"),
        (["--html", "{}/a.h5"], "--html"),
        (["--html", "{}/no/page.html"], "--html.*no folder"),
        (["--trace", "{}"], "--trace.*is a folder"),
        (["--figures", "{}"], "--figures.*not empty"),
        (["--format", "xml"], "--format"),
        (["--table", "all"], "--table"),
    ],
)
def test_mistakes_are_one_line_and_change_nothing(folder, capsys, words, told):
    before = sorted(path.name for path in folder.iterdir())
    try:
        code = main(["report", str(folder), *(word.format(folder) for word in words)])
    except SystemExit as ended:
        code = ended.code
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1
    assert re.search(told, err)
    assert sorted(path.name for path in folder.iterdir()) == before


def test_an_empty_folder_and_a_missing_file_are_told(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no result" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "none.h5")]) == 2
    assert "none.h5: No such file" in capsys.readouterr().err


def test_a_name_of_a_file_is_found_under_its_partial_name(tmp_path, capsys):
    made(tmp_path / "a.h5", complete=False)
    assert main(["report", str(tmp_path / "a.h5"), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["state"] == "partial"


def test_shown_cuts_wide_tables_without_losing_a_cell(folder):
    whole = report(opened(folder / "a.h5", folder / "b.h5"))
    wide, narrow = shown(whole, "table"), shown(whole, "table", width=60)
    lead = str(folder / "a.h5"), str(folder / "b.h5"), "file"
    words = [w for w in narrow.split() if w not in lead]
    assert sorted(words) == sorted(w for w in wide.split() if w not in lead)


def test_what_the_system_refuses_to_write_is_one_line_and_leaves_nothing(
    folder, tmp_path, monkeypatch, capsys
):
    before = sorted(path.name for path in folder.iterdir())
    page = folder / "r.json"

    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", fail)
        assert main(["report", str(folder / "a.h5"), "--trace", str(page)]) == 2
    err = capsys.readouterr().err
    assert f"--trace '{page}': cannot be written: No space left on device" in err
    kept = folder / "figures"
    kept.mkdir()
    monkeypatch.setattr("mpisgd.commands.report.os.access", lambda path, mode: False)
    assert main(["report", str(folder / "a.h5"), "--figures", str(kept)]) == 2
    assert f"--figures '{kept}': cannot be written to" in capsys.readouterr().err
    assert list(kept.iterdir()) == []
    kept.rmdir()
    assert sorted(path.name for path in folder.iterdir()) == before
