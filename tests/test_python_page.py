"""docs/python.md is run as it stands; what files and frames must agree on."""

import re
from pathlib import Path

import numpy as np
import pytest

import mpisgd

PAGE = Path(__file__).parent.parent / "docs" / "python.md"


def test_the_page_runs(tmp_path, monkeypatch):
    pytest.importorskip("xarray")
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 5
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), scope)


def test_a_file_and_its_frames_hold_what_the_run_gave(tmp_path):
    pandas, xarray = pytest.importorskip("pandas"), pytest.importorskip("xarray")
    options = {"algorithm": "softsync", "group": 2, "ranks": 4, "steps": 12, "evaluate_every": 4}
    result = mpisgd.run(**options, output=str(tmp_path / "a.h5"))
    (loaded,) = mpisgd.load(tmp_path)
    for table in ("steps", "evaluation", "updates"):
        mine, other = result.frame(table), loaded.frame(table)
        pandas.testing.assert_frame_equal(mine, other)
        assert set(mine.attrs["units"]) <= set(mine.columns)
        named = loaded.xarray(table)
        with xarray.open_dataset(tmp_path / "a.h5", group=table, engine="h5netcdf") as opened:
            for name, variable in named.data_vars.items():
                np.testing.assert_array_equal(opened[name], variable)
                assert variable.attrs["units"]
    steps = result.frame("steps")
    assert len(steps) == sum(result.record.reported)
    assert result.steps["loss"][2, 1] == steps.query("step == 3 and rank == 1")["loss"].item()


def test_what_is_no_table_or_no_file_is_a_users_mistake(tmp_path):
    pytest.importorskip("pandas")
    (tmp_path / "b.h5").write_text("nothing")
    mpisgd.run(ranks=1, steps=2, output=str(tmp_path / "a.h5"))
    runs = mpisgd.load(tmp_path / "*.h5")
    assert len(runs) == 1
    assert "b.h5: is not an HDF5 file" in runs.problems[0]
    for wrong in (lambda: runs.frame("x"), lambda: runs[0].frame("x"), lambda: runs[0].xarray("x")):
        with pytest.raises(mpisgd.UsageError, match="table 'x': one of steps, "):
            wrong()
    with pytest.raises(mpisgd.UsageError, match="matches no file"):
        mpisgd.load(tmp_path / "*.nothing")
