"""How virtual runs end that cannot go on: one line, a code, a file that says why."""

import os
import signal
import time
from typing import Any

import pytest

from mpisgd.cli import main
from mpisgd.drivers import virtual
from mpisgd.mpi.session import LEFT_EARLY, NOT_FINITE
from mpisgd.servers.server import Server
from mpisgd.store.reader import read
from mpisgd.worlds.virtual import ClockSite

TRAIN = ["train", "--data-samples", "120", "--hidden", "4", "--batch", "4", "--steps", "30",
         "--step-time", "5ms", "--virtual", "3", "--evaluate-every", "0"]  # fmt: skip
ENDS = [
    ("--algorithm local --tau 4 --lr 1e30", NOT_FINITE, "not finite on rank"),
    ("--algorithm async --lr 1e30", NOT_FINITE, "not finite on worker"),
    ("--algorithm backup --backups 1 --lr 1e30", NOT_FINITE, "not finite on worker"),
    ("--algorithm minibatch --straggler 1:die@3", LEFT_EARLY, "waits for butterfly, and nothing"),
    (
        "--algorithm minibatch --straggler 0-2:die@3",
        LEFT_EARLY,
        "ranks 0, 1, 2 wait for what nobody",
    ),
    ("--algorithm backup --backups 0 --straggler 1:die@3", LEFT_EARLY, "2 gradients"),
]


@pytest.mark.parametrize(("words", "code", "told"), ENDS, ids=[words for words, *_ in ENDS])
def test_the_end_is_told_and_recorded(words, code, told, tmp_path, capsys):
    output = tmp_path / "run.h5"
    assert main([*TRAIN, *words.split(), "--output", str(output)]) == code
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = [line for line in err.splitlines() if not line.startswith("mpisgd: note: ")]
    assert told in line
    assert not output.exists()
    with read(output) as run:
        assert not run.complete
        assert run.reason
        assert run.reason in line
        assert 0 < run.reported.max() < 30
    assert main([*TRAIN, *words.split()]) == code  # and the same without a file
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("algorithm", "kind", "method"),
    [("minibatch", ClockSite, "begin_step"), ("async", Server, "update")],
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["term", "int"])
def test_a_signal_within_a_long_step_is_not_heard_late(
    algorithm, kind, method, number, monkeypatch, tmp_path, capsys
):
    """GRACE later the run ends where it is; what was reported is there."""
    calls, before = [0], getattr(kind, method)

    def long(self: Any, *arguments: Any) -> None:
        before(self, *arguments)
        calls[0] += 1
        if calls[0] == 8:
            os.kill(os.getpid(), number)
            time.sleep(600)

    monkeypatch.setattr(kind, method, long)
    monkeypatch.setattr(virtual, "GRACE", 0.05)
    output = tmp_path / "run.h5"
    words = ["--algorithm", algorithm, "--momentum", "0", "--output", str(output)]
    assert main([*TRAIN, *words]) == 128 + number
    assert f"results so far: {output}.partial" in capsys.readouterr().err
    with read(output) as run:
        assert run.reason == f"stopped by signal {int(number)} within a step"
        assert 0 < run.reported.max() < 30


def test_a_second_signal_is_a_wish_of_the_users(monkeypatch):
    """And no late one: it is raised at once."""
    asked = virtual.StopSignals(lambda: None, lambda: False, 600.0)
    with asked:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert not asked.late
