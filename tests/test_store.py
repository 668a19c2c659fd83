"""Result files: every row comes back, a kill at any moment loses none that was flushed."""

import errno
import gc
import os
import stat
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpisgd.store import schema
from mpisgd.store.reader import read
from mpisgd.store.target import check_target
from mpisgd.store.writer import StoreError, Writer
from mpisgd.values.errors import UsageError

CONFIG = {"algorithm": "dasgd", "tau": 4, "hidden": [64, 32], "rate": 0.05}
ENVIRONMENT = {"hosts": ["a", "b"], "command": "mpisgd train <x> 'é'"}


def writer(path, kind="train", ranks=3, **options):
    return Writer(path, kind=kind, config=CONFIG, environment=ENVIRONMENT, ranks=ranks, **options)


def finished(path, steps=40, ranks=3):
    """A small complete training run: wait_s of step k on rank r is k + r/10."""
    with writer(path, ranks=ranks) as store:
        for rank in range(ranks):
            rows = np.arange(1, steps + 1) + rank / 10
            store.steps(rank, 1, {"wait_s": rows, "loss": 1 / rows, "polls": np.arange(steps)})
        store.evaluation(step=20, loss=0.5, accuracy=0.9)
        store.evaluation(step=steps, loss=0.25, accuracy=0.95)
        store.event(1, "flight", "mean", 0.5, 0.75, 7)
        store.complete({"accuracy": 0.95})
    return path


# --- what is written is what is read ------------------------------------------------------------


def test_every_row_comes_back(tmp_path):
    run = read(finished(tmp_path / "run.h5"))
    assert (run.kind, run.ranks, run.complete, run.virtual) == ("train", 3, True, False)
    assert run.config == CONFIG
    assert run.environment == ENVIRONMENT
    assert run.summary == {"accuracy": 0.95}
    expected = np.arange(1, 41)[:, None] + np.arange(3) / 10
    np.testing.assert_array_equal(run.steps["wait_s"], expected)
    assert run.steps["polls"].dtype == np.int32
    assert "staleness" not in run.steps
    np.testing.assert_array_equal(run.evaluation["accuracy"], [0.9, 0.95])
    assert np.isnan(run.evaluation["time_s"]).all() if "time_s" in run.evaluation else True
    assert schema.LANES[run.events["lane"][0]] == "flight"
    assert [p.name for p in tmp_path.iterdir()] == ["run.h5"]


def test_a_run_that_was_released_leaves_h5py_nothing_to_look_through(tmp_path):
    def known() -> int:
        gc.collect()
        return sum(isinstance(each, h5py.h5f.FileID) for each in gc.get_objects())

    finished(path := tmp_path / "a.h5")
    before = known()
    run = read(path)
    assert known() > before
    run.check()
    run.release()
    assert known() == before
    assert len(run.steps["wait_s"]) == 40
    run.close()


def test_ranks_may_report_in_any_order_and_unevenly(tmp_path):
    with writer(tmp_path / "run.h5") as store:
        store.steps(2, 3, {"wait_s": [3.0, 4.0]})
        store.flush()
        store.steps(0, 1, {"wait_s": [1.0], "rate": [0.1]})
        store.steps(2, 1, {"wait_s": [1.0, 2.0]})
        store.steps(2, 2, {"wait_s": [9.0]})  # stored again: the later value stays
    run = read(tmp_path / "run.h5")
    assert not run.complete
    assert run.reported.tolist() == [1, 0, 4]
    nan = np.nan
    np.testing.assert_array_equal(
        run.steps["wait_s"], [[1, nan, 1], [nan, nan, 9], [nan, nan, 3], [nan, nan, 4]]
    )
    np.testing.assert_array_equal(run.steps["rate"], [0.1, nan, nan, nan])


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    pieces=st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 60), st.integers(1, 9), st.booleans()),
        max_size=12,
    ),
    whole=st.booleans(),
)
def test_any_sequence_of_calls_equals_the_array_it_describes(tmp_path, pieces, whole):
    """The file against the plainest model of it: an array that is assigned to."""
    model = np.full((80, 3), np.nan)
    store = writer(tmp_path / "run.h5", overwrite=True)
    for index, (rank, first, length, flush) in enumerate(pieces):
        values = index + np.arange(length) / 16
        model[first - 1 : first - 1 + length, rank] = values
        store.steps(rank, first, {"loss": values})
        if flush:
            store.flush()
    if whole:
        store.complete({})
    store.close()
    run = read(tmp_path / ("run.h5" if whole else "run.h5.partial"))
    rows = max((first - 1 + length for _, first, length, _ in pieces), default=0)
    stored = run.steps["loss"] if pieces else np.zeros((0, 3))
    np.testing.assert_array_equal(stored, model[:rows])


def test_benchmark_cases_keep_every_repetition(tmp_path):
    with writer(tmp_path / "b.h5", kind="bench", ranks=2) as store:
        store.case({"algorithm": "ring", "bytes": 4}, [[1.0, 2.0], [3.0, 4.0]])
        store.flush()
        store.case({"algorithm": "tree", "bytes": 8}, [[5.0]])  # a case on one rank
        store.complete({})
    ring, tree = read(tmp_path / "b.h5").cases
    assert ring.row == {"algorithm": "ring", "bytes": 4}
    np.testing.assert_array_equal(ring.seconds, [[1, 2], [3, 4]])
    np.testing.assert_array_equal(tree.seconds, [[5, np.nan]])


def test_events_come_as_one_array(tmp_path):
    array = np.zeros(5, dtype=[("rank", int), ("start_s", float), ("end_s", float)])
    array["end_s"] = np.arange(5)
    with writer(tmp_path / "run.h5") as store:
        store.events(array)
    run = read(tmp_path / "run.h5")
    np.testing.assert_array_equal(run.events["end_s"], np.arange(5))


def test_json_holds_what_numpy_and_nan_make_of_it(tmp_path):
    config = {"rate": np.float32(0.5), "bad": float("nan"), "shape": np.arange(2), "p": Path("x")}
    Writer(tmp_path / "r.h5", kind="bench", config=config, environment={}, ranks=1).complete({})
    assert read(tmp_path / "r.h5").config == {"rate": 0.5, "bad": None, "shape": [0, 1], "p": "x"}


# --- the schema is the table --------------------------------------------------------------------


def test_columns_that_the_schema_lacks_are_refused(tmp_path):
    store = writer(tmp_path / "run.h5")
    with pytest.raises(UsageError, match=r"'vait_s'.*wait_s"):
        store.steps(0, 1, {"vait_s": [1.0]})
    with pytest.raises(UsageError, match=r"'acuracy'.*accuracy"):
        store.evaluation(acuracy=1.0)
    store.close()


def test_the_file_has_exactly_the_datasets_of_the_schema(tmp_path):
    names = []

    def note(name, item):
        if hasattr(item, "dtype") and not item.is_scale:
            names.append(name)

    with h5py.File(finished(tmp_path / "run.h5")) as file:
        file.visititems(note)
        assert file["steps/wait_s"].attrs["unit"] == b"s"
        assert [[scale.name for scale in dim.values()] for dim in file["steps/wait_s"].dims] == [
            ["/step"], ["/rank"],
        ]  # fmt: skip
    assert sorted(names) == sorted(field.path for field in schema.fields("train"))


def test_the_page_about_the_schema_is_current():
    page = Path(__file__).parent.parent / "docs" / "result-files.md"
    assert page.read_text() == schema.page()


# --- targets ------------------------------------------------------------------------------------


def test_targets_that_cannot_be_written_are_refused_in_one_line(tmp_path):
    (tmp_path / "there.h5").write_bytes(b"precious")
    (tmp_path / "left.h5.partial").write_bytes(b"")
    (tmp_path / "mine.h5.partial").write_bytes(b"notes of the user's")
    for name, reason in {
        "there.h5": "--output.*there.h5'.*--overwrite",
        "left.h5": "left.h5.partial.*--overwrite",
        "mine.h5": "mine.h5.partial'.*is no file of a run",
        "no/run.h5": "no folder",
        ".": "is a folder|must name",
        "run.h5/": "must name a file",
        "x" * 300: "too long",
    }.items():
        with pytest.raises(UsageError, match=reason) as caught:
            check_target(f"{tmp_path}/{name}")
        assert "\n" not in str(caught.value)
        with pytest.raises(UsageError):
            writer(f"{tmp_path}/{name}")
    assert (tmp_path / "there.h5").read_bytes() == b"precious"
    left = ["left.h5.partial", "mine.h5.partial", "there.h5"]
    assert sorted(p.name for p in tmp_path.iterdir()) == left
    check_target(tmp_path / "there.h5", overwrite=True)


def test_an_overwritten_result_stays_until_the_new_one_is_complete(tmp_path):
    path = finished(tmp_path / "run.h5")
    store = writer(path, overwrite=True)
    store.steps(0, 1, {"loss": [7.0]})
    store.flush()
    assert read(path).complete
    assert read(path).summary == {"accuracy": 0.95}
    store.complete({"accuracy": 0.1})
    assert read(path).summary == {"accuracy": 0.1}


# --- runs that go on ----------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [True, False])
def test_a_resumed_run_continues_the_same_arrays(tmp_path, whole):
    path = tmp_path / "run.h5"
    if whole:
        finished(path)
    else:
        finished(tmp_path / "other.h5")
        os.rename(tmp_path / "other.h5", tmp_path / "run.h5.partial")
    with writer(path, resume_at=25) as store:
        store.restart(step=25, reason="time limit")
        store.steps(0, 26, {"wait_s": [-1.0]})
        store.evaluation(step=26, loss=0.1)
        store.complete({})
    run = read(path)
    assert run.reported.tolist() == [26, 25, 25]
    np.testing.assert_array_equal(run.steps["wait_s"][:25, 0], np.arange(1, 26))
    assert run.steps["wait_s"][25, 0] == -1
    assert run.evaluation["step"].tolist() == [20, 26]
    assert run.restarts == [{"step": 25, "reason": "time limit"}]
    assert len(run.events["step"]) == 1


# --- a disk that fails --------------------------------------------------------------------------


def test_a_vanished_folder_is_told_once_and_clearly(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    store = writer(folder / "run.h5")
    (folder / "run.h5.partial").unlink()
    store.steps(0, 1, {"loss": [1.0]})
    with pytest.raises(StoreError, match=r"run.h5.partial: has vanished"):
        store.flush()
    with pytest.raises(StoreError, match="has vanished"):
        store.complete({})
    store.close("quietly")


def test_a_full_disk_is_refused_before_the_file_is_torn(tmp_path, monkeypatch):
    store = writer(tmp_path / "run.h5")
    store.steps(0, 1, {"loss": [1.0]})
    store.flush()

    def full(*_):
        raise OSError(errno.ENOSPC, "refused")

    monkeypatch.setattr(os, "posix_fallocate", full)
    store.steps(0, 2, {"loss": np.arange(100_000.0)})
    with pytest.raises(StoreError, match=r"run.h5.partial: .*No space left"):
        store.flush()
    store.close()
    assert read(tmp_path / "run.h5").steps["loss"][:, 0].tolist() == [1.0]


FULL = """
import resource, signal, sys, numpy as np
from mpisgd.store.writer import StoreError, Writer
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = Writer(sys.argv[1], kind="train", config={}, environment={}, ranks=3)
resource.setrlimit(resource.RLIMIT_FSIZE, (6_000_000, 6_000_000))
flushed = 0
try:
    for step in range(1, 1_000_000, 1000):
        store.steps(0, step, {"loss": np.arange(1000.0)})
        store.flush()
        flushed = step + 999
except StoreError as error:
    print(flushed, "|", error)
store.close("full")
"""


def test_a_write_that_fails_in_the_middle_is_one_line(tmp_path):
    path = tmp_path / "run.h5"
    command = [sys.executable, "-c", FULL, str(path)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0
    assert "Traceback" not in result.stderr
    flushed, _, line = result.stdout.partition("|")
    assert "run.h5.partial: cannot be written" in line
    assert len(read(path).steps["loss"]) >= int(flushed)


def test_what_is_no_regular_file_is_left_alone(tmp_path):
    """A device or a pipe must not be renamed over, not even with --overwrite."""
    pipe = tmp_path / "pipe.h5"
    os.mkfifo(pipe)
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="no regular file"):
            check_target(pipe, overwrite)
    assert stat.S_ISFIFO(os.stat(pipe).st_mode)


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL])
def test_a_disk_that_cannot_be_asked_for_room_is_written_to(tmp_path, monkeypatch, number):
    def unsupported(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    assert read(finished(tmp_path / "run.h5")).complete


def test_a_folder_that_may_not_be_written_to_is_refused_before_anything_is_done(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(tmp_path))
    with pytest.raises(UsageError, match=rf"the folder '{tmp_path}' cannot be written to"):
        writer(tmp_path / "run.h5")
    assert list(tmp_path.iterdir()) == []


def test_after_the_end_nothing_is_written(tmp_path):
    store = writer(tmp_path / "run.h5")
    store.complete({})
    store.steps(0, 1, {"loss": [1.0]})
    with pytest.raises(StoreError, match="is closed"):
        store.flush()
    assert len(read(tmp_path / "run.h5").steps.get("loss", ())) == 0
