"""Results in a notebook: how they show themselves, tables without rows, the notebooks of docs."""

import json
from pathlib import Path

import numpy as np
import pytest

import mpisgd

NOTEBOOKS = sorted((Path(__file__).parent.parent / "docs" / "notebooks").glob("*.ipynb"))
RUN = {"ranks": 2, "steps": 4, "evaluate_every": 2, "algorithm": "local", "tau": 2}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_its_beginning_to_its_end(path, tmp_path, monkeypatch, capsys):
    pytest.importorskip("pandas", reason="needs pandas")
    matplotlib = pytest.importorskip("matplotlib", reason="needs matplotlib")
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in cells)  # nothing in them can grow old
    names: dict = {"__name__": "__main__"}
    try:
        for number, cell in enumerate(cells):
            exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), names)
    finally:
        __import__("matplotlib.pyplot").pyplot.close("all")
    assert len(names["runs"]) in (8, 12)
    assert names["runs"].problems == []


def test_there_are_notebooks():
    assert [path.stem for path in NOTEBOOKS] == ["dasgd-sweep", "scaling"]


def test_a_result_shows_itself(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    result = mpisgd.run(**RUN)
    page = result._repr_html_()
    assert "<td>local</td>" in page
    assert f"<td>{result.evaluation['accuracy'][-1]:.4g}</td>" in page
    assert "data:image/png;base64," in page
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    assert "<img" not in result._repr_html_()  # the table, without


def test_names_from_files_are_text(tmp_path):
    result = mpisgd.run(**RUN)
    result.record.config["algorithm"] = "<script>"
    assert "<script>" not in result._repr_html_()


def test_a_collection_shows_its_runs_and_notes(tmp_path):
    mpisgd.run(**RUN, output=tmp_path / "<a>.h5")
    page = mpisgd.load(tmp_path)._repr_html_()
    assert "&lt;a&gt;.h5" in page
    assert "<a>" not in page
    assert "note: " in page
    assert "Collection(0" in mpisgd.load(tmp_path)[:0]._repr_html_()


def test_tables_without_rows_have_their_columns(tmp_path):
    pytest.importorskip("pandas", reason="needs pandas")
    kept = mpisgd.run(**RUN)
    mpisgd.run(**RUN, output=tmp_path / "a.h5")
    for result in (kept, mpisgd.load(tmp_path / "a.h5")[0]):
        frame = result.frame("updates")
        assert len(frame) == 0
        assert {"server", "staleness", "arrived_s"} <= set(frame)
        assert frame["staleness"].dtype == np.int32
        assert frame.attrs["units"]["arrived_s"] == "s"


def test_rows_of_many_runs_tell_whose_they_are(tmp_path):
    pytest.importorskip("pandas", reason="needs pandas")
    mpisgd.run(**RUN, output=tmp_path / "a.h5")
    other = {name: value for name, value in RUN.items() if name != "tau"}
    mpisgd.run(**other | {"algorithm": "minibatch", "seed": 1}, output=tmp_path / "b.h5")
    frame = mpisgd.load(tmp_path).frame("evaluation")
    assert frame.groupby(["algorithm", "seed"])["loss"].count().to_dict() == {
        ("local", 0): 2, ("minibatch", 1): 2,
    }  # fmt: skip
    assert frame["tau"].isna().sum() == 2
