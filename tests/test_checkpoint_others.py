"""Checkpoints beside files of others: runs at the same place, foreign files, older checkpoints."""

import fcntl
import os
from pathlib import Path

import pytest

from mpisgd import cli
from mpisgd.checkpoint import place
from mpisgd.checkpoint.file import Checkpoint, DamagedCheckpoint, claims, peek, write
from mpisgd.store.lock import held, lock_path
from mpisgd.store.reader import read
from mpisgd.values.errors import UsageError

RUN = "train --virtual 2 --hidden 5 --data-samples 40 --batch 4 --evaluate-every 1"


@pytest.fixture(autouse=True)
def _fast(monkeypatch, tmp_path):
    for variable in cli.BLAS_VARIABLES:  # main sets them: put them back
        monkeypatch.setenv(variable, "1")
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr("mpisgd.store.lock.PATIENCE", 0.1)
    monkeypatch.chdir(tmp_path)


def train(words: str) -> int:
    return cli.main([*RUN.split(), *words.split()])


def refusal(words: str, capsys) -> str:
    """The one line, of a run that has changed nothing."""
    capsys.readouterr()
    before = {name: Path(name).read_bytes() for name in os.listdir()}
    assert train(words) == 2
    assert before == {name: Path(name).read_bytes() for name in os.listdir()}
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    return err


def test_an_older_checkpoint_is_gone_on_from_and_no_row_is_lost(capsys, monkeypatch):
    """Even if that run is killed before its first checkpoint."""
    assert train("--output a.h5 --steps 6 --checkpoint-every 3") == 0
    older = "--output a.h5 --steps 9 --resume a.h5.checkpoint.previous --checkpoint a.h5.checkpoint"

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("mpisgd.worlds.virtual.Clock.run", killed)
        assert train(older) == 130
    assert "removed, with the rows that they count: a.h5.checkpoint\n" in capsys.readouterr().err
    with read("a.h5.partial") as run:
        assert run.evaluation["step"].tolist() == [1, 2, 3]
    assert train("--output a.h5 --steps 9 --resume auto") == 0
    assert "goes on from a.h5.checkpoint.previous after step 3" in capsys.readouterr().err
    with read("a.h5") as run:
        assert run.evaluation["step"].tolist() == list(range(1, 10))


def test_a_report_says_whose_checkpoint_a_file_is_and_goes_on(capsys):
    assert train("--output a.h5 --steps 6 --checkpoint-every 3") == 0
    Path("saved").write_bytes(Path("a.h5.checkpoint").read_bytes())
    capsys.readouterr()
    assert cli.main(["report", *sorted(os.listdir()), "--format", "csv"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[1].startswith("a.h5,minibatch")
    one, two, other, *_ = err.splitlines()
    assert "a.h5.checkpoint: is a checkpoint of the run a.h5, not a result" in one
    assert "a.h5.checkpoint.previous: is a checkpoint of the run a.h5, not a result" in two
    assert "saved: is a checkpoint, not a result" in other


def test_newer_ones_go_with_their_parts():
    def put(path: Path, step: int, number: int) -> None:
        meta = {"config": {"ranks": 2}, "keep": {}, "evaluation": {}, "virtual": False}
        told = {"step": step, "number": number, "data_sha256": "", "written_utc": ""}
        write(path, meta | told, [])
        place.part(Path("a"), step, 1).touch()

    for name, step, number in (("a.previous", 5, 1), ("a", 10, 2), ("a.writing", 10, 3)):
        put(Path(name), step, number)
    place.remove_newer(Path("a"), {"step": 10, "number": 2})
    assert sorted(os.listdir()) == ["a", "a.previous", "a.step10.rank1", "a.step5.rank1"]
    place.remove_newer(Path("a"), {"step": 5, "number": 1})
    assert sorted(os.listdir()) == ["a.previous", "a.step5.rank1"]


@pytest.mark.parametrize("name", ["x", "x.previous", "x.writing", "x.step4.rank1"])
def test_what_is_no_checkpoint_is_left_as_it_is(name, capsys):
    Path(name).write_text("precious " * 100)
    refused = refusal("--checkpoint x --steps 4 --resume auto", capsys)
    assert f"'{name}': is there and is no checkpoint, and is left as it is" in refused
    assert f"'{name}'" in refusal("--checkpoint x --steps 4", capsys)
    assert f"'{name}'" in refusal("--checkpoint x --steps 4 --overwrite", capsys)


def test_the_checkpoint_of_another_run_is_left_as_it_is(capsys):
    assert train("--steps 4 --seed 3 --checkpoint q") == 0
    assert train("--steps 4 --checkpoint p") == 0
    told = refusal("--steps 8 --checkpoint q --resume p", capsys)
    assert "--checkpoint 'q': q is there, of another run: its --seed is 3, not 0" in told
    assert "or begin anew with --overwrite and no --resume" in told
    os.rename("q", "p.previous")
    assert "p.previous is there, of another run" in refusal(
        "--steps 8 --checkpoint p --resume auto", capsys
    )


def test_one_that_was_begun_and_not_ended_is_no_file_of_others(tmp_path):
    assert train("--steps 4 --checkpoint p") == 0
    octets = Path("p").read_bytes()
    for content in (b"", bytes(600), octets[:40], octets[:300], octets[:-9]):
        Path("p.writing").write_bytes(content)
        assert claims(Path("p.writing"))
        assert train("--steps 4 --checkpoint p --resume auto") == 0
    assert not claims(tmp_path)


@pytest.mark.parametrize(
    ("output", "checkpoint"),
    [
        ("x.h5", "x.h5"), ("x.h5", "./x.h5"), ("y.h5", "y.h5.partial"), ("z.previous", "z"),
        ("z.writing", "z"), ("a", ".a.lock"),
        ("a.previous.writing", "a.previous"), ("./b.step5.rank1", "b"),
    ],
)  # fmt: skip
def test_names_that_meet_are_refused(output, checkpoint, capsys):
    told = refusal(f"--steps 4 --output {output} --checkpoint {checkpoint}", capsys)
    assert "would be both a checkpoint's and --output's" in told


def test_one_run_at_a_time(capsys):
    words = "--steps 4 --output a.h5 --checkpoint b --resume auto"
    for place_, option in (("a.h5", "--output"), ("b", "--checkpoint")):
        with held(Path(place_), option):
            told = refusal(words, capsys)
        assert f"{option} '{place_}': another run is writing it" in told
    assert os.listdir() == []
    Path(lock_path(Path("a.h5"))).touch()  # left by a kill
    assert train(words) == 0
    assert sorted(os.listdir()) == ["a.h5", "b"]


def test_where_there_are_no_locks_a_run_goes_on_without(monkeypatch):
    def unsupported(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    assert train("--steps 4 --output a.h5") == 0
    Path(".b.lock").write_text("of the user")
    monkeypatch.undo()
    with held(Path("b"), "--checkpoint"):
        assert Path(".b.lock").exists()
    with pytest.raises(UsageError, match=r"by \.b\.lock beside it: No such file or directory$"):
        with held(Path("no folder/b"), "--checkpoint"):
            pass


def test_rows_that_are_begun_anew_are_told(capsys):
    assert train("--steps 4 --output a.h5") == 0
    os.rename("a.h5", "a.h5.partial")
    with read("a.h5.partial") as run:
        assert run.complete
    told = refusal("--steps 4 --lr 0.3 --output a.h5 --resume auto", capsys)
    assert "a.h5.partial is there, of another run: its --lr is 0.1, not 0.3; choose" in told


def test_rows_without_a_checkpoint_are_told(capsys, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("mpisgd.store.writer.Writer.complete", lambda *_: None)
        assert train("--steps 4 --output a.h5") == 0
    assert train("--steps 4 --output a.h5 --resume auto") == 0
    told = capsys.readouterr().err
    assert "begins at the start; the 4 rows of a.h5.partial are begun anew" in told


ODD = [
    ({"step": -1}, "its step is -1"),
    ({"step": True}, "its step is True"),
    ({"number": 2**70}, "its number is"),
    ({"config": {"steps": "x"}}, "its config says steps 'x'"),
    ({"config": {"tau": "x"}}, "its config: tau is 'x'"),
    ({"keep": {"bad": 1}}, "it keeps 1 rows of 'bad'"),
    ({"keep": {"evaluation": "x"}}, "it keeps 'x' rows"),
    ({"keep": {"evaluation": -5}}, "it keeps -5 rows"),
    ({"evaluation": {"loss": []}}, "its evaluation says 'loss'"),
    ({"written_utc": "9" * 100_000}, "its written_utc has 100000 characters"),
    ({"reported": 3}, "its reported is no list of counts"),
    ({"reported": [1]}, "its reported is of 1 ranks, not 2"),
    ({"parts": {"../x": ""}}, "it has a part of rank '../x'"),
    ({"parts": []}, "its parts are no table"),
]


@pytest.mark.parametrize(("change", "said"), ODD, ids=[said for _, said in ODD])
def test_odd_words_with_a_right_checksum_are_damage(change, said, tmp_path):
    meta = {
        "step": 3, "number": 1, "virtual": True, "config": {}, "keep": {}, "evaluation": {},
        "data_sha256": "", "written_utc": "",
    }  # fmt: skip
    write(tmp_path / "a", meta | {"config": {"ranks": 2}}, [])
    assert peek(tmp_path / "a") == Checkpoint(tmp_path / "a").meta
    config = {"ranks": 2} | change.get("config", {})
    write(tmp_path / "a", meta | change | {"config": config}, [])
    with pytest.raises(DamagedCheckpoint, match="is damaged: ") as damage:
        Checkpoint(tmp_path / "a")
    assert said in str(damage.value)
    assert peek(tmp_path / "a") is None


def test_what_a_run_needs_to_go_on_is_asked_for(capsys):
    assert train("--steps 4 --checkpoint p") == 0
    there = Checkpoint("p")
    meta, states = there.meta, there.states()
    for changed in ({"keep": {}}, {"config": {**meta["config"], "steps": None}}):
        write(Path("p"), {**meta, **changed}, states.items())
        assert "is damaged: its " in refusal("--steps 8 --resume p", capsys)


def test_a_write_that_fails_names_its_file_and_leaves_nothing(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"part: cannot be written: No space left on device"):
        write(tmp_path / "part", {}, [])

    def mistaken():
        raise UsageError("of whoever gives the states")
        yield

    with pytest.raises(UsageError, match="of whoever"):
        write(tmp_path / "part", {}, mistaken())
    assert os.listdir(tmp_path) == []
