"""Validation: what is held out, and how errors are counted."""

import argparse

import numpy as np
import pytest

from allreduce.algorithms import build
from allreduce.network import Network
from allreduce.simulate import simulate, steady
from allreduce.testing.loopback import World
from mpisgd import cli
from mpisgd.bench import record
from mpisgd.cli import main
from mpisgd.commands import validate as command
from mpisgd.mpi.cores import Place, Places
from mpisgd.predict.links import fastest
from mpisgd.store.reader import read
from mpisgd.validation import errors
from mpisgd.validation.allreduces import SCHEDULE, SIZES, Cell
from mpisgd.validation.steps import FIRST, RUNS, TAU, Training, by_rounds

LINKS = Network("lab", latency_s=1e-4, bandwidth_Bps=25e6, sum_s_per_B=1e-10, overhead_s=1e-6)
TRAINING = Training(4, FIRST + 2 * TAU, None, "8", "ring", 1, 60.0, 1.0)


@pytest.mark.parametrize("name", ["tree", "butterfly", "halving-doubling", "ring"])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_in_a_row_an_all_reduce_takes_as_long_as_alone_on_links_that_know_no_rest(name, ranks):
    schedule = build(name, ranks)
    alone = simulate(schedule, 1 << 16, LINKS, itemsize=4).max()
    assert steady(schedule, 1 << 16, LINKS, itemsize=4) == pytest.approx(alone)


def test_in_a_row_a_burst_has_less_time_to_come_back():
    """Exchanged by two ranks, both wires are busy all the time: nothing passes at once."""
    links = LINKS.with_(burst_B=18432.0, sharing="fair")
    schedule = build("butterfly", 2)
    alone = simulate(schedule, 1 << 20, links, itemsize=4).max()
    in_a_row = steady(schedule, 1 << 20, links, itemsize=4)
    assert alone < in_a_row <= simulate(schedule, 1 << 20, LINKS, itemsize=4).max() * 1.0001


@pytest.mark.parametrize(
    ("name", "nbytes", "ranks", "unseen"),
    [
        ("tree", 1 << 20, 2, SCHEDULE),  # whole vectors, of a size that is calibrated
        ("ring", 1 << 20, 2, SIZES),  # halves
        ("ring", 1 << 18, 4, SCHEDULE),  # quarters of 256 KiB
        ("tree", 1 << 19, 2, SIZES),
    ],
)
def test_cells_say_what_the_calibration_has_not_seen(name, nbytes, ranks, unseen):
    assert Cell(name, nbytes, 1).unseen([0] * ranks) == unseen


def test_seconds_per_step_are_those_of_whole_rounds_after_the_first():
    step_s = np.ones(FIRST + 2 * TAU + 1)
    step_s[:FIRST] = 9.0
    step_s[FIRST] = 5.0  # one of a round waits: all its steps have a share of it
    step_s = np.stack([step_s, 2 * step_s], axis=1)
    steps = {"step_s": step_s, "start_s": np.cumsum(step_s, axis=0) - step_s}
    assert by_rounds(steps) == pytest.approx(np.array([[2.0, 4.0], [1.0, 2.0]]))


def rows(*cells):
    """Of (algorithm, bytes, measured, simulated)."""
    keys = ("algorithm", "bytes", "measured_s", "simulated_s")
    alike = {"part": "communication", "chunks": 1, "unseen": SCHEDULE}
    return [alike | dict(zip(keys, cell, strict=True)) for cell in cells]


def test_an_error_is_the_median_of_the_rounds_and_never_of_mixed_rounds():
    """In the second round all was twice as slow, and the model knew it."""
    found = errors.table(rows(("ring", 4, 1.0, 0.9), ("ring", 4, 2.0, 1.8), ("ring", 4, 4.0, 4.0)))
    (cell,) = found
    assert cell["error"] == pytest.approx(-0.1)
    assert (cell["error_low"], cell["error_high"]) == (pytest.approx(-0.1), 0.0)
    assert (cell["measured_low_s"], cell["measured_s"], cell["measured_high_s"]) == (1.0, 2.0, 4.0)


def test_the_summary_tells_bias_from_size_and_names_the_worst():
    cells = errors.table(
        rows(("ring", 4, 1.0, 1.1), ("ring", 8, 1.0, 0.9), ("tree", 4, 1.0, 1.0),
             ("tree", 8, 1.0, 0.7))
    )  # fmt: skip
    found = {row["of"]: row for row in errors.summary(cells)}
    assert list(found) == ["all", "ring", "tree", "4 B", "8 B"]
    assert found["ring"]["signed_median"] == pytest.approx(0.0)
    assert found["ring"]["median"] == pytest.approx(0.1)
    assert found["all"]["worst"] == pytest.approx(-0.3)
    assert found["all"]["worst_is"] == "tree 8"


def test_the_fastest_share_has_at_least_one():
    assert fastest([3.0, 1.0, 2.0], 1.0) == [1.0, 2.0, 3.0]
    assert fastest([3.0, 1.0, 2.0], 0.01) == [1.0]
    seconds = np.array([[1.0, 5.0], [2.0, 3.0], [9.0, 1.0]])
    assert errors.typical(seconds, 1.0) == 5.0
    assert errors.typical(seconds, 0.4) == 3.0


@pytest.mark.parametrize("name", RUNS)
def test_virtual_runs_of_steps_that_take_nothing_else_take_what_was_calibrated(name):
    """On a network for nothing every algorithm's step is the calibrated one."""
    assert TRAINING.simulate(name, 2, Network("ideal"), 0.01) == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--runs walk", ["--runs 'walk'", "none, all, or some of compute alone"]),
        ("--rounds 0", ["--rounds '0'"]),
        ("--steps 11", ["--steps '11'", "12.."]),
        ("--fastest 0", ["--fastest '0'", "> 0 and <= 1"]),
        ("--algorithms mpi", ["--algorithms 'mpi'"]),
        ("--sizes 3", ["--sizes '3'"]),
        ("--step-time soon", ["--step-time 'soon'"]),
        ("--allreduce walk", ["--allreduce 'walk'"]),
        ("--allreduce mpi", ["--allreduce 'mpi'"]),  # no schedule: nothing could simulate it
        ("--batch 1", ["--batch '1'", "2.."]),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_measured(words, told, capsys):
    assert main(["validate", *words.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("mpisgd validate: error: ")
    assert all(part in line for part in told), line


@pytest.mark.parametrize("rounds", [1, 2])
def test_one_round_shows_no_width_and_says_so(rounds, capsys):
    chosen = command._settings(
        cli.parser_of(["validate"]).parse_args(["validate", "--rounds", str(rounds)])
    )
    cells = rows(*(("ring", 1024, 1.0, 1.1 + turn) for turn in range(rounds)))
    command._print(errors.table(cells), chosen, "table")
    out, err = capsys.readouterr()
    assert ("error_low" in out) == ("error_high" in out) == (rounds == 2)
    assert ("one round: no width" in err) == (rounds == 1)


def test_what_was_measured_before_an_interrupt_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(record, "_circumstances", lambda where: {})
    path = tmp_path / "a.h5"
    asked = argparse.Namespace(command="validate", benchmark="validate", output=str(path),
                               overwrite=False)  # fmt: skip
    where = Places([Place("h", frozenset({0}))])
    config = {"benchmark": "validate", "algorithms": ["ring"]}
    log = record.Record(World(1).comm(0), where, asked, config, 2, {})
    log.case({"benchmark": "validate", "algorithm": "ring"}, np.ones((3, 1)))
    log.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    told = capsys.readouterr().err.strip()
    left = told.removeprefix("mpisgd validate: what was measured so far is in ")
    assert left != told
    with read(left) as run:
        assert not run.complete
        assert len(run.cases) == 1
