"""n steps + resume + n steps == 2n steps, to the bit, for every algorithm on the virtual clock."""

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from checkpoint_runs import (
    AVERAGING,
    SERVED,
    SLOW,
    TINY,
    Killed,
    go,
    killed_and_resumed,
    same,
    serve,
    states,
    unlike,
)  # fmt: skip

from mpisgd import cli
from mpisgd.checkpoint.options import AUTO, Saving
from mpisgd.store.reader import read
from mpisgd.training.worker import Worker

WORDS = (
    "train --virtual 3 --hidden 5 --data digits --data-samples 53 --batch 3 --format json "
    f"--network {SLOW} --evaluate-every 4"
).split()


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    for variable in cli.BLAS_VARIABLES:  # main sets them: put them back
        monkeypatch.setenv(variable, "1")
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def experiment(name: str, **changes):
    return replace(TINY, **{"network": SLOW, **AVERAGING[name], **changes})


@pytest.mark.parametrize("name", AVERAGING)
@pytest.mark.parametrize("seed", range(3))
def test_killed_anywhere_and_resumed_is_never_killed(name, seed, tmp_path):
    """Also where no checkpoint had been written yet, and when killed more than once."""
    draw = random.Random(f"{name} {seed}")
    steps = draw.randint(4, 14)
    run = experiment(name, steps=steps) if draw.random() < 0.5 else experiment(
        name, steps=steps, straggler="lognormal:0.5"
    )  # fmt: skip
    every = draw.randint(1, 5)
    whole = Saving(tmp_path / "whole", every_steps=every)
    kills = [draw.randrange(3 * steps) for _ in range(draw.randint(1, 3))]
    _, memory = go(run, whole)
    parts = Saving(tmp_path / "parts", every_steps=every)
    kept = killed_and_resumed(run, parts, kills)
    assert same(memory.kept["steps"], kept["steps"])
    assert same(memory.kept["evaluation"], kept["evaluation"])
    assert same(states(whole.place), states(parts.place))


@pytest.mark.parametrize("name", AVERAGING)
def test_n_steps_and_n_more_are_2n(name, tmp_path):
    """At every n, if the first half ends where the whole is saved as well."""
    for half in (1, 4, 5):
        whole = Saving(tmp_path / f"whole{half}", every_steps=half)
        halves = Saving(tmp_path / f"halves{half}", every_steps=half)
        _, memory = go(experiment(name, steps=2 * half), whole)
        go(experiment(name, steps=half), halves)
        _, more = go(experiment(name, steps=2 * half), replace(halves, resume=AUTO))
        assert more.after == half
        later = {at: row for at, row in memory.kept["steps"].items() if at[1] > half}
        assert same(later, more.kept["steps"])
        assert same(states(whole.place), states(halves.place))


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("seed", range(3))
def test_servers_killed_anywhere_and_resumed_are_never_killed(name, seed, tmp_path):
    """Every update, its order and its times: asynchronous, and yet the same."""
    draw = random.Random(f"{name} {seed}")
    run = replace(
        TINY, network=SLOW, **SERVED[name], steps=draw.randint(3, 8), evaluate_every=2,
        straggler=draw.choice(["lognormal:0.5", "1:3x,exponential"]),
    )  # fmt: skip
    every = draw.randint(1, 3)
    whole, parts = (Saving(tmp_path / place, every_steps=every) for place in ("whole", "parts"))
    _, rows = serve(run, whole)
    with pytest.raises(Killed) as killed:
        serve(run, parts, draw.randrange(len(rows["updates"])))
    before = killed.value.args[1]
    begun, after = serve(run, replace(parts, resume=AUTO))
    assert same(rows["updates"], before["updates"][:begun] + after["updates"])
    assert same(rows["steps"], before["steps"] | after["steps"])
    assert same(rows["last"], after["last"])
    assert same(rows["parameters"], after["parameters"])
    assert same(states(whole.place), states(parts.place))


@pytest.mark.parametrize("name", ["softsync", "backup"])
def test_a_rest_changes_no_bit_where_all_wait_for_all(name, tmp_path):
    """Without stragglers a group of all workers is mini-batch SGD, at rest or not."""
    changes = {"group": 3} if name == "softsync" else {"backups": 0}
    run = replace(TINY, **{**SERVED[name], **changes}, steps=6)
    _, often = serve(run, Saving(tmp_path / "often", every_steps=1))
    _, never = serve(run, Saving(tmp_path / "never"))
    assert same(often["parameters"], never["parameters"])


def forgets(part: str):
    """A state that is wrong in one place."""
    state = Worker.state

    def wrong(self):
        saved = state(self)
        if part == "means":
            for mean in saved["means"].values():
                mean["result"] = mean["result"] + 1
        else:
            saved[part] = 0
        return saved

    return wrong


@pytest.mark.parametrize("part", ["means", "loss_sum"])
def test_the_law_can_fail(part, tmp_path, monkeypatch):
    """A state without the average in flight, or one sum of losses, is found out."""
    run = experiment("dasgd", steps=10)
    whole, halves = (Saving(tmp_path / name, every_steps=5) for name in ("whole", "halves"))
    _, memory = go(run, whole)
    with monkeypatch.context() as patch:
        patch.setattr(Worker, "state", forgets(part))
        go(replace(run, steps=5), halves)
    assert {"0/worker/means/0/result", "0/worker/means/0/started"} <= states(halves.place).keys()
    _, more = go(run, replace(halves, resume=AUTO))
    assert not same(memory.kept["evaluation"][8], more.kept["evaluation"][8])


@pytest.mark.parametrize("name", ["dasgd", "gossip"])
def test_seconds_of_the_virtual_clock_are_kept_as_well(name, tmp_path):
    """A cadence in seconds is heard with an average, and is as deterministic as the clock."""
    run = experiment(name, steps=20)
    whole = Saving(tmp_path / "whole", every_s=4e-3)
    _, memory = go(run, whole)
    kept = killed_and_resumed(run, replace(whole, place=tmp_path / "parts"), [29, 20])
    assert same(memory.kept["steps"], kept["steps"])
    assert same(states(whole.place), states(tmp_path / "parts"))


def train(path: Path, *words: str) -> int:
    return cli.main([*WORDS, *words, "--output", str(path)])


@pytest.mark.parametrize("name", ["minibatch", "dasgd"])
def test_the_result_file_continues_the_same_arrays(name, tmp_path, capsys):
    words = ["--algorithm", name, "--checkpoint-every", "7"]
    whole, halves = tmp_path / "whole.h5", tmp_path / "halves.h5"
    assert train(whole, *words, "--steps", "14") == 0
    assert train(halves, *words, "--steps", "7") == 0
    assert train(halves, *words, "--steps", "14", "--resume", "auto") == 0
    assert list(unlike(whole, halves)) == []
    with read(halves) as run:
        (restart,) = run.restarts
        assert (restart["step"], restart["checkpoint"]) == (7, "halves.h5.checkpoint")
        assert run.evaluation["step"].tolist() == [4, 8, 12, 14]  # the end at 7 has left no row
    capsys.readouterr()
    assert train(halves, *words, "--steps", "14", "--resume", "auto") == 0
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert "is complete; nothing is left to do" in told.err


@pytest.mark.parametrize("name", ["dasgd", "async"])
def test_killed_between_the_two_renames(name, tmp_path, capsys):
    """The newest checkpoint is whole but has not got its name yet: it gets it, and is used."""
    path = tmp_path / "run.h5"
    assert train(path, "--checkpoint-every", "3", "--algorithm", name, "--steps", "6") == 0
    newest = Path(f"{path}.checkpoint")
    newest.rename(f"{path}.checkpoint.writing")
    path.rename(f"{path}.partial")
    assert (
        train(
            path,
            "--checkpoint-every",
            "3",
            "--algorithm",
            name,
            "--steps",
            "10",
            "--resume",
            "auto",
        )
        == 0
    )
    assert "checkpoint.writing after step 6" in capsys.readouterr().err
    assert newest.exists()
