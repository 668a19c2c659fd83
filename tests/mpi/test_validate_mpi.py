"""A whole validation on real ranks."""

import json

import pytest
from mpi_ranks import ONE_LIBRARY

from mpisgd.store.reader import read
from mpisgd.validation import errors
from mpisgd.validation.steps import ALONE


@ONE_LIBRARY
def test_a_whole_validation_is_printed_and_kept(mpi, tmp_path):
    words = ["mpisgd", "validate", "--sizes", "4K", "--algorithms", "ring,tree", "--rounds", "2",
             "--messages", "6", "--time-budget", "0.02s", "--steps", "12", "--batch", "4",
             "--hidden", "8", "--runs", f"{ALONE},minibatch", "--format", "json"]  # fmt: skip
    path = tmp_path / "errors.h5"
    found = json.loads(mpi.run(2, [*words, "--output", str(path)]).stdout)
    labels = [(row["part"], row["algorithm"]) for row in found]
    assert labels == [("communication", "ring"), ("communication", "tree"),
                      ("step", ALONE), ("step", "minibatch")]  # fmt: skip
    for row in found:
        assert row["rounds"] == 2
        assert 0 < row["measured_low_s"] <= row["measured_s"] <= row["measured_high_s"]
        assert row["simulated_s"] > 0
        assert row["error_low"] <= row["error"] <= row["error_high"]
    run = read(path)
    assert run.complete
    assert [case.row["round"] for case in run.cases] == [0] * 4 + [1] * 4
    assert [row["algorithm"] for row in run.summary["errors"]] == [name for _, name in labels]
    for case in run.cases:
        assert errors.typical(case.seconds, 1.0) == pytest.approx(case.row["measured_s"])
    told = mpi.run(1, ["mpisgd", "report", str(path)]).stdout
    assert "simulated_s" in told


@ONE_LIBRARY
def test_what_is_off_by_more_than_allowed_is_an_exit_code(mpi):
    words = ["mpisgd", "validate", "--sizes", "4K", "--algorithms", "ring", "--rounds", "1",
             "--messages", "6", "--time-budget", "0.02s", "--runs", "none"]  # fmt: skip
    refused = mpi.run(2, [*words, "--allow", "0"], check=False)
    assert refused.returncode == 1
    assert refused.stdout.startswith("part")
    assert "Traceback" not in refused.stderr
