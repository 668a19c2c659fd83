"""A fact has one place: a row in the schema, or in a table of the report, carries a column on."""

import subprocess
import sys

import pytest

from mpisgd.report.columns import checked
from mpisgd.values.tables import Column

ONE_ROW = """
import sys
import numpy as np
from mpisgd.store import schema

schema.FIELDS += (
    schema.Field("steps/norm", ("step", "rank"), "float64", "1", "norm of the gradient",
                 ("train",), "mean"),
    schema.Field("steps/send_s", ("step", "rank"), "float64", "s", "copying", ("train",), "share"),
)
from mpisgd.report.collect import Named
from mpisgd.report.html import page
from mpisgd.report.sections import legend, report, shown
from mpisgd.store.reader import read
from mpisgd.store.recording import packed, store_rows
from mpisgd.store.writer import Writer

with Writer(sys.argv[1], kind="train", config={}, environment={}, ranks=1) as store:
    steps = [packed(step, {"step_s": 1.0, "send_s": 0.25, "norm": step}) for step in range(1, 10)]
    store_rows(store, 0, np.array(steps))
    store.complete({})
run = read(sys.argv[1])
assert run.steps["norm"].ravel().tolist() == list(range(1, 10))
made = report([Named("a", run)])
rows = shown(made, "csv", names=("norm", "send_share")).split()
assert rows == ["norm,send_share", "5.0,0.25"]
assert "norm: norm of the gradient" in legend()
assert "norm of the gradient" in page(made)
assert "| /steps/norm |" in schema.page()
"""


def test_a_row_of_the_schema_carries_a_column_to_file_tables_page_and_docs(tmp_path):
    words = [sys.executable, "-c", ONE_ROW, str(tmp_path / "a.h5")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_column_that_a_table_lacks_is_an_error_and_not_dropped():
    assert checked("runs", (Column("a"), Column("b")), [{"a": 1}]) == [{"a": 1}]
    with pytest.raises(KeyError, match="table runs has no column c"):
        checked("runs", (Column("a"),), [{"a": 1, "c": 2}])
