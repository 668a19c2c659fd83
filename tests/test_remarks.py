"""What a run says beside its results: what it takes for granted, and how far it is."""

import io
import os
import sys
from contextlib import closing, nullcontext

import pytest

from mpisgd import cli
from mpisgd.cli import main
from mpisgd.values import progress

RATE = "at the default --lr 0.1 with --momentum 0.9"
PRICED = ["--network", "ideal", "--step-time", "1ms", "--batch", "4"]
TRAIN = ["train", "--virtual", "3", "--data-samples", "60", "--hidden", "4", "--steps", "2"]


@pytest.fixture(autouse=True)
def _variables(monkeypatch):
    for variable in cli.BLAS_VARIABLES:  # main sets them: put them back
        monkeypatch.setenv(variable, "1")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--algorithm async", True),
        ("--algorithm softsync --group 1", True),
        ("--algorithm softsync", False),
        ("--algorithm async --lr 0.1", False),
        ("--algorithm async --momentum 0", False),
        ("--algorithm async --virtual 2", False),
        ("--algorithm backup", False),
        ("--algorithm minibatch", False),
    ],
)
def test_single_gradients_at_the_default_rate_are_warned_of(capsys, words, told):
    assert main([*TRAIN, *words.split()]) == 0
    assert (RATE in capsys.readouterr().err) == told


@pytest.mark.parametrize(
    ("wire", "told"),
    [("topk:0.34", True), ("topk:0.33", False), ("topk:0.34 --virtual 2", False),
     ("topk:1 --virtual 1", False), ("topk:0.4 --dtype float64", False), ("powersgd:4", False)],
)  # fmt: skip
def test_pairs_that_are_more_bytes_than_all_values_are_told(capsys, wire, told):
    """(p - 1) 8 K n of a gather are more than 2 (p - 1)/p 4 n of a ring."""
    assert main([*TRAIN, "--wire", *wire.split()]) == 0
    assert ("more bytes than a ring" in capsys.readouterr().err) == told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--straggler 1:2x", ""),
        ("--straggler 1:die@3", "note: --straggler rank 1 at step 3: the run has 2 steps"),
        ("--straggler 0:die@9,1:die@3,2:die@4", "the run has 2 steps; and 2 more"),
        ("--wire int8 --virtual 1", "note: --wire int8: one rank sends nothing"),
        ("--wire powersgd:3", ""),
        ("--wire powersgd:4", "note: --wire powersgd:4: no matrix of the model has fewer values"),
    ],
)
def test_what_is_asked_for_in_vain_is_told(capsys, words, told):
    """A matrix of 64 x 4 has as many values as factors of rank 3.76."""
    assert main([*TRAIN, *PRICED, *words.split()]) in (0, 3)
    err = capsys.readouterr().err
    assert told in err
    assert err.count("note: ") == bool(told), err


@pytest.mark.parametrize(("line", "told"), [("lr = 0.1", False), ("rate = 0.1", False), ("", True)])
def test_a_rate_in_a_file_is_given_too(tmp_path, capsys, line, told):
    file = tmp_path / "a.toml"
    file.write_text(f"algorithm = 'async'\n{line}\n")
    assert main([*TRAIN, "--config", str(file)]) == 0
    assert (RATE in capsys.readouterr().err) == told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "messages take no virtual time; without --step-time a step takes 1 ms"),
        ("--network ideal --step-time 1ms", ""),
        ("--network ideal", "note: without --step-time"),
        ("--step-time 1ms --algorithm async --lr 0.1", "note: without --network"),
    ],
)
def test_what_virtual_time_leaves_out_is_said_once(capsys, words, told):
    assert main([*TRAIN, *words.split()]) == 0
    err = capsys.readouterr().err
    assert told in err
    assert err.count("note: without") == bool(told)


def test_the_summary_of_servers_has_what_servers_have(capsys):
    assert main([*TRAIN, "--algorithm", "backup", "--format", "csv"]) == 0
    heads = capsys.readouterr().out.split("\n")[0].split(",")
    assert {"workers", "servers", "used_share"} <= set(heads)
    assert not {"tau", "delay"} & set(heads)
    assert main([*TRAIN, "--format", "csv"]) == 0
    heads = capsys.readouterr().out.split("\n")[0].split(",")
    assert {"tau", "delay"} <= set(heads)
    assert "workers" not in heads


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self):
        self.s = 0.0

    def __call__(self):
        return self.s


@pytest.mark.parametrize(("each", "done"), [(1, 0), (4, 0), (1, 50)])
def test_a_long_run_tells_its_steps_where_there_is_no_terminal(capsys, each, done):
    clock = Clock()
    with closing(progress.Lines(100 + done, each, done, clock)) as lines:
        for _ in range(100 * each):
            clock.s += 1 / each
            lines.update()
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 10
    assert told[0] == f"mpisgd: step {done + 10} of {done + 100}, 1/s, about 90 s left"
    assert told[-1].endswith("about 0 s left")


def test_a_rate_counts_from_the_first_gradient_that_was_used(capsys):
    """A thousand virtual workers compute one each before a server has any."""
    clock = Clock()
    lines = progress.Lines(100, 10, now=clock)
    clock.s += 500
    lines.update()
    assert capsys.readouterr().err == "mpisgd: step 0 of 100\n"
    for _ in range(200):
        clock.s += 0.1
        lines.update()
    assert capsys.readouterr().err.splitlines()[0].endswith("step 10 of 100, 1/s, about 90 s left")


def test_a_short_run_tells_nothing(capsys):
    clock = Clock()
    lines = progress.Lines(29, now=clock)
    for _ in range(29):
        clock.s += 1
        lines.update()
    assert capsys.readouterr().err == ""


def test_on_a_terminal_there_is_a_bar_that_leaves_no_trace(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "DELAY_S", 0)
    with closing(progress.shown("dasgd", 100, each=4, done=25)) as bar:
        bar.update(40)
        assert (bar.n, bar.total) == (140, 400)
        bar.refresh()
    shown = sys.stderr.getvalue()
    assert "dasgd:  35%" in shown
    assert "gradient" in shown
    assert shown.endswith("\r")
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(progress.shown("dasgd", 100), progress.Lines)


def test_quiet_is_handed_to_every_bar_and_to_processes(monkeypatch, capsys):
    from mpisgd.cli import main

    seen = []
    monkeypatch.setenv(progress.QUIET, "")
    monkeypatch.setattr(progress, "shown", lambda *a, **b: seen.append(os.environ[progress.QUIET]))
    monkeypatch.setattr(progress, "closing", lambda bar: nullcontext(progress.Silent()))
    assert main(["verify", "--ranks", "2", "--quiet"]) == 0
    assert seen == ["1"]
    monkeypatch.undo()
    monkeypatch.setenv(progress.QUIET, "1")
    assert isinstance(progress.shown("dasgd", 100), progress.Silent)


def test_items_come_in_their_order_and_a_bar_ends_with_them(monkeypatch):
    told = []

    class Bar:
        def update(self):
            told.append("update")

        def close(self):
            told.append("close")

    monkeypatch.setattr(progress, "shown", lambda title, steps, unit: told.append(steps) or Bar())
    assert list(progress.over("abc", "letters", "letter")) == ["a", "b", "c"]
    assert told == [3, "update", "update", "update", "close"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--algorithm local --tau 100", "never averages"),
        ("--algorithm local --tau 2", None),
        ("--algorithm dasgd --tau 2 --delay 2 --xi 0", "never averages"),
        ("--algorithm dasgd --tau 1 --delay 1 --xi 0", "learns nothing"),
        ("--algorithm dasgd --delay auto --network ethernet-10g --step-time 1us", "never averages"),
    ],
)
def test_a_run_that_cannot_do_what_it_says_is_told_once_before_it_starts(capsys, words, told):
    assert main([*TRAIN, *words.split()]) == 0
    lines = [
        line
        for line in capsys.readouterr().err.splitlines()
        if "never" in line or "nothing" in line
    ]
    assert len(lines) == (told is not None)
    assert all(told in line and line.startswith("mpisgd: note: ") for line in lines)


def test_nobody_says_that_nccl_is_of_mpi(capsys):
    """Every carrier without a schedule is a library's."""
    from mpisgd.experiment.experiment import Experiment
    from mpisgd.experiment.remarks import tell_chosen

    for name in ("nccl", "mpi"):
        tell_chosen(Experiment(allreduce=name, allreduce_from="a file"))
        told = capsys.readouterr().err
        assert f"takes {name}, a library's own call (a file)" in told
        assert "MPI" not in told
