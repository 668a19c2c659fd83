"""Virtual runs that a signal stops, and checkpoints that hold what is not this run's."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpisgd import cli
from mpisgd.checkpoint import place
from mpisgd.checkpoint.file import Checkpoint, write
from mpisgd.servers.server import Server
from mpisgd.store.reader import read

COMMON = "train --hidden 5 --data-samples 40 --batch 4 --steps 8 --lr 0.01 --output a.h5"
SERVED = {
    "async": "--virtual 5 --algorithm async --servers 2 --prefetch",
    "one": "--virtual 4 --algorithm timeout",
    "abandon": "--virtual 5 --algorithm backup --stale abandon --servers 2 --straggler exponential",
    "consistent": "--virtual 6 --algorithm softsync --servers 3 --reads consistent",
    "colocated": "--virtual 4 --algorithm softsync --group 3 --servers 2 --colocated",
}
AVERAGED = "--virtual 3 --algorithm dasgd --tau 3 --delay 2 --ema 0.9"
SLOWMO = "--virtual 3 --algorithm slowmo --tau 3"


@pytest.fixture(autouse=True)
def _fast(monkeypatch, tmp_path):
    for variable in cli.BLAS_VARIABLES:  # main sets them: put them back
        monkeypatch.setenv(variable, "1")
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.chdir(tmp_path)


def train(words: str, *more: str) -> int:
    return cli.main([*COMMON.split(), *words.split(), *more])


def interrupt(monkeypatch, number: signal.Signals, times: int = 1) -> None:
    """As server 0 makes its fifth update."""
    update = Server.update

    def interrupted(server: Server, batch: Any) -> None:
        update(server, batch)
        if server.index == 0 and server.version == 5:
            for _ in range(times):
                signal.raise_signal(number)

    monkeypatch.setattr(Server, "update", interrupted)


def check(shards: int) -> None:
    """Each gradient counts once in each shard, and none is missing."""
    with read("a.h5") as run:
        assert run.complete
        rows = run.updates
        for server in range(shards):
            mine = rows["server"] == server
            made = np.unique(rows["update"][mine & (rows["used"] == 1)])
            assert made.tolist() == list(range(1, len(made) + 1))
            for worker in np.unique(rows["worker"]):
                steps = np.sort(rows["step"][mine & (rows["worker"] == worker)])
                assert steps.tolist() == list(range(1, len(steps) + 1))


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["term", "int"])
def test_a_signal_stops_virtual_servers_where_they_are(name, number, monkeypatch, capsys):
    """Saved, with one line and the reason in the file; and it goes on."""
    with monkeypatch.context() as patch:
        interrupt(patch, number)
        assert train(SERVED[name], "--checkpoint-every", "3") == 128 + number
    told = capsys.readouterr()
    assert "accuracy" in told.out  # so far
    assert told.err.count("mpisgd: stopped by a signal after step") == 1
    with read("a.h5.partial") as run:
        assert str(run.reason).startswith(f"stopped by signal {number} after step")
    step = Checkpoint("a.h5.checkpoint").meta["step"]
    assert f"after step {step};" in told.err
    assert train(SERVED[name], "--checkpoint-every", "3", "--resume", "auto") == 0
    assert f"goes on from a.h5.checkpoint after step {step}\n" in capsys.readouterr().err
    check(3 if name == "consistent" else 1 if name == "one" else 2)


def test_without_checkpoints_too(monkeypatch, capsys):
    interrupt(monkeypatch, signal.SIGUSR1)
    assert train(SERVED["async"]) == 128 + signal.SIGUSR1
    assert "stopped by a signal after step" in capsys.readouterr().err
    assert not Path("a.h5.checkpoint").exists()


def test_the_second_signal_does_not_wait(monkeypatch, capsys):
    interrupt(monkeypatch, signal.SIGINT, times=2)
    assert train(SERVED["async"]) == 130
    assert capsys.readouterr().err.endswith("mpisgd: interrupted\n")
    with read("a.h5.partial") as run:
        assert "KeyboardInterrupt" in str(run.reason)


def test_what_is_not_finite_is_never_saved(monkeypatch, capsys):
    """Wherever it is when the run rests: read or not."""
    step = Server._take

    def spoilt(server: Server, message: Any) -> Any:
        if message.header[0] == 5 and message.source == 1:
            message = message._replace(
                header=message.header._replace(failed_step=5, failed_worker=1)
            )
        return step(server, message)

    monkeypatch.setattr(Server, "_take", spoilt)
    assert train(SERVED["one"], "--checkpoint-every", "1") == 3
    assert "not finite on worker 1 at step 5" in capsys.readouterr().err
    before = Checkpoint("a.h5.checkpoint").meta["step"]
    assert 1 <= before <= 5
    monkeypatch.undo()


def change(section: str, name: str, value: Any) -> None:
    """A newer checkpoint, with a sound checksum, in which one thing is different."""
    whole = Checkpoint("a.h5.checkpoint")
    states = whole.states()
    inside = states[section]
    for part in name.split("/")[:-1]:
        inside = inside[part]
    last = name.rsplit("/", 1)[-1]
    inside[last] = value(inside[last])
    meta = {**whole.meta, "number": whole.meta["number"] + 1}
    write(Path("a.h5.checkpoint.writing"), meta, states.items())
    place.move_in(Path("a.h5.checkpoint"))


CHANGES = {
    "dtype": (AVERAGED, "1", "worker/parameters", lambda old: old.astype(float)),
    "shape": (AVERAGED, "2", "worker/optimiser/velocity", lambda old: old[1:]),
    "mean": (AVERAGED, "0", "worker/means/0/result", lambda old: old.astype(float)),
    "kept": (SLOWMO, "1", "worker/kept/slow", lambda old: old[1:]),
    "kind": (AVERAGED, "0", "worker", lambda old: 7),
    "inf": (AVERAGED, "1", "worker/parameters", lambda old: old + np.float32(np.inf)),
    "served-inf": (
        SERVED["async"],
        "server1",
        "own/parameters",
        lambda old: old * np.float32("nan"),
    ),
    "server": (SERVED["async"], "server1", "own/parameters", lambda old: old.astype(float)),
    "held": (SERVED["one"], "server0", "own/waiting", lambda old: {"0": 3}),
    "worker": (SERVED["one"], "worker2", "own/parameters", lambda old: old[:-1]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_states_of_another_kind_are_refused_before_a_word(name, capsys):
    """`auto` takes the one before, and says why."""
    words, section, path, value = CHANGES[name]
    words += " --checkpoint-every 4 --evaluate-every 4"
    assert train(words) == 0
    os.remove("a.h5.checkpoint")  # the last has nothing under way
    os.replace("a.h5.checkpoint.previous", "a.h5.checkpoint")
    os.remove("a.h5")
    change(section, path, value)
    capsys.readouterr()
    assert train(words, "--resume", "a.h5.checkpoint") == 2
    told = capsys.readouterr().err
    assert "goes on from" not in told
    assert told.count("\n") == 1
    assert "a.h5.checkpoint.previous beside it is whole" in told
    assert train(words, "--resume", "auto") == 0
    told = capsys.readouterr().err
    assert "goes on from a.h5.checkpoint.previous after step" in told
    assert "; not from a newer one: a.h5.checkpoint: " in told


def test_the_steps_of_a_ranks_parts():
    for step, rank in ((8, 1), (12, 1), (4, 1), (12, 11)):
        place.part(Path("a"), step, rank).touch()
    assert place.part_steps(Path("a"), 1) == [4, 8, 12]
    assert place.part_steps(Path("a"), 11) == [12]
