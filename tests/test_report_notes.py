"""What a report says under its tables of runs that were resumed, or took something for granted."""

import pytest

from mpisgd.cli import main
from mpisgd.mpi.announced import LAB
from mpisgd.report.accounting import row
from mpisgd.report.collect import Named
from mpisgd.report.notes import notes
from mpisgd.store.reader import read
from mpisgd.store.writer import Writer


def written(path, config=None, restarts=(), summary=None, virtual=False, environment=None):
    """A run of two ranks, complete."""
    config = {"algorithm": "minibatch"} | (config or {})
    with Writer(
        path, kind="train", config=config, environment=environment or {}, ranks=2, virtual=virtual
    ) as store:
        for restart in restarts:
            store.restart(**restart)
        store.complete(summary or {})


def opened(*paths):
    return [Named(str(path), read(path)) for path in paths]


def test_a_run_that_was_resumed_says_where_in_every_form(tmp_path, capsys):
    written(tmp_path / "a.h5")
    restarts = [
        {"step": 40, "written_utc": "2026-01-02T03:04:05.678+00:00"},
        {"step": 60, "written_utc": "2026-01-02T04:04:05.678+00:00"},
    ]
    written(tmp_path / "b.h5", restarts=restarts)
    rows = [row(named.run, named.name) for named in opened(tmp_path / "a.h5", tmp_path / "b.h5")]
    assert [one["restarts"] for one in rows] == [0, 2]
    for words in ([], ["--format", "json"]):
        assert main(["report", str(tmp_path), *words]) == 0
        out = capsys.readouterr().out
        assert "restarts" in out
        assert "resumed at step 40 (checkpoint of 2026-01-02T03:04:05 UTC), at step 60" in out


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({}, ["without --network", "without --step-time"]),
        ({"network": "ethernet-10g"}, ["without --step-time"]),
        ({"network": "ideal", "step_time_s": 0.02}, []),
    ],
)
def test_what_virtual_time_took_for_granted_is_told(tmp_path, config, told):
    written(tmp_path / "a.h5", config=config, virtual=True)
    lines = notes(opened(tmp_path / "a.h5"))
    assert [line.partition("virtual ")[2].partition(",")[0] for line in lines] == told


@pytest.mark.parametrize(("share", "count"), [(0.94, 1), (0.3, 0), (None, 0)])
def test_an_overlap_with_nothing_to_hide_behind_is_told(tmp_path, share, count):
    summary = {} if share is None else {"last_bucket_share": share}
    written(tmp_path / "a.h5", {"algorithm": "minibatch-overlap"}, summary=summary)
    found = [line for line in notes(opened(tmp_path / "a.h5")) if "holds 94% of" in line]
    assert len(found) == count


def test_who_moves_messages_on_is_part_of_the_machine(tmp_path):
    for name, told in (("a", {"I_MPI_ASYNC_PROGRESS": "1"}), ("b", {}), ("c", ["odd"])):
        written(tmp_path / f"{name}.h5", environment={"mpi_progress": told})
    (line,) = [n for n in notes(opened(*sorted(tmp_path.iterdir()))) if n.startswith("machines")]
    assert ", I_MPI_ASYNC_PROGRESS=1: " in line
    assert line.count("I_MPI") == 1


def test_the_wires_of_a_lab_are_shown_and_are_part_of_the_machine(tmp_path, capsys):
    for name, text in {
        "a": "200mbit between 2 hosts",
        "b": "1gbit between 2 hosts",
        "c": "",
    }.items():
        written(tmp_path / f"{name}.h5", environment={"variables": {LAB: text} if text else {}})
    files = opened(*sorted(tmp_path.iterdir()))
    assert [row(named.run, named.name)["lab_rate"] for named in files] == ["200mbit", "1gbit", None]
    (line,) = [line for line in notes(files) if line.startswith("machines differ")]
    assert "lab of 200mbit: " in line
    assert "lab of 1gbit: " in line
    assert main(["report", str(tmp_path)]) == 0
    assert "lab_rate" in capsys.readouterr().out
    assert main(["report", str(tmp_path / "c.h5")]) == 0
    assert "lab_rate" not in capsys.readouterr().out


@pytest.mark.parametrize("variables", [None, [], {LAB: None}, {LAB: " "}, {LAB: 3}])
def test_a_variable_that_is_nonsense_is_no_lab_or_itself(tmp_path, variables):
    written(tmp_path / "a.h5", environment={"variables": variables})
    (named,) = opened(tmp_path / "a.h5")
    assert row(named.run, named.name)["lab_rate"] == ("3" if variables == {LAB: 3} else None)


def test_values_that_differ_are_as_short_as_in_tables_with_their_units(tmp_path):
    for name, of in {"a": {}, "b": {"step_time_s": 0.1 + 0.2, "hidden": [8, 4]}}.items():
        written(tmp_path / f"{name}.h5", config=of)
    told = [line.partition("): ")[2] for line in notes(opened(*sorted(tmp_path.iterdir())))]
    a, b = (str(tmp_path / name) for name in ("a.h5", "b.h5"))
    assert told[-2:] == [f"none: {a}; 8,4: {b}", f"none: {a}; 0.3 s: {b}"]
    written(tmp_path / "c.h5", config={"step_time_s": 0.30001})
    told = notes(opened(tmp_path / "b.h5", tmp_path / "c.h5"))
    assert any("0.30000000000000004: " in line and "0.30001: " in line for line in told)
