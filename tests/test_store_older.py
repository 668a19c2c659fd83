"""Result files that were made before a column was: stored ones are read, and drawn in a report."""

from pathlib import Path

import h5py
import pytest
from test_store import finished

from mpisgd.cli import main
from mpisgd.store import schema
from mpisgd.store.reader import read

STORED = sorted((Path(__file__).parent.parent / "results").rglob("*.h5"))


@pytest.mark.parametrize("path", STORED, ids=[path.name for path in STORED])
def test_stored_results_are_read(path):
    with read(path) as run:
        assert run.complete
        assert len(run.steps["step_s"]) == run.reported.max()


def test_a_column_that_came_later_may_be_missing_and_no_other(tmp_path, capsys):
    later = [field.path for field in schema.fields("train") if field.later]
    assert later
    path = finished(tmp_path / "old.h5")
    with h5py.File(path, "r+") as file:
        for column in later:
            del file[column]
    with read(path) as run:
        assert not any(run.has(column) for column in later)
        assert set(run.steps) >= {"wait_s", "loss"}
    assert main(["report", str(path)]) == 0
    assert "damaged" not in capsys.readouterr().err
