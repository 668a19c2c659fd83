"""The file of a checkpoint, what stands for it, and what is refused with one line."""

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpisgd import cli
from mpisgd.checkpoint import place
from mpisgd.checkpoint.file import Checkpoint, DamagedCheckpoint, write
from mpisgd.checkpoint.options import Saving
from mpisgd.checkpoint.state import BadState, copy_into, flatten, pack, unflatten, unpack
from mpisgd.checkpoint.writer import CheckpointWriter

STATE = {
    "numbers": {"step": 3, "loss": -0.0, "nan": float("nan"), "yes": True},
    "flat": np.arange(5, dtype=np.float32),
    "none": None,
    "empty": {},
    "no_rows": np.zeros((0, 3)),
    "deep": {"er": {"x": np.array([[1, 2]], np.uint8)}},
}

META = {
    "step": 3, "number": 1, "virtual": True, "config": {}, "keep": {}, "evaluation": {},
    "data_sha256": "", "written_utc": "",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _fast(monkeypatch, tmp_path):
    for variable in cli.BLAS_VARIABLES:  # main sets them: put them back
        monkeypatch.setenv(variable, "1")
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.chdir(tmp_path)


def equal(one, other) -> bool:
    mine, its = flatten(one), flatten(other)
    return mine.keys() == its.keys() and all(
        mine[n].tobytes() == its[n].tobytes() and mine[n].shape == its[n].shape for n in mine
    )


def test_a_state_survives_the_file_and_the_way_between_ranks(tmp_path):
    there = {k: v for k, v in STATE.items() if k not in ("none", "empty")}
    assert equal(unpack(pack(STATE)), there)
    assert equal(unflatten(flatten(STATE)), there)
    digest = write(tmp_path / "a", {**META, "step": 3}, [("0", STATE), ("1", {"x": 1.5})])
    checkpoint = Checkpoint(tmp_path / "a")
    assert checkpoint.meta["step"] == 3
    assert checkpoint.digest == digest
    assert equal(checkpoint.state("0"), there)
    assert checkpoint.state("1") == {"x": 1.5}
    assert checkpoint.state("2") == {}
    with np.load(tmp_path / "a", allow_pickle=False) as file:
        assert file["0/flat"].tolist() == [0, 1, 2, 3, 4]


def test_what_does_not_fit_is_named():
    live = {"a": np.zeros(3, np.float32)}
    for saved, said in (
        ({"b": np.zeros(3)}, "optimiser holds b, not a"),
        ({"a": np.zeros(4, np.float32)}, r"a is float32 \(4,\), not float32 \(3,\)"),
        ({"a": np.zeros(3)}, "a is float64"),
    ):
        with pytest.raises(BadState, match=said):
            copy_into(live, saved, "optimiser")


def whole(path: Path) -> bytes:
    write(path, META, [("0", {"x": np.arange(50.0)}), ("1", {"y": 2})])
    return path.read_bytes()


@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_no_damage_is_believed(data, tmp_path_factory):
    """Cut anywhere, or any byte changed: refused with one line, or of no consequence."""
    path = tmp_path_factory.getbasetemp() / "damaged"
    octets = bytearray(whole(path))
    if data.draw(st.booleans()):
        del octets[data.draw(st.integers(0, len(octets) - 1)) :]
    else:
        octets[data.draw(st.integers(0, len(octets) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(octets)
    try:
        checkpoint = Checkpoint(path)
    except DamagedCheckpoint as refusal:
        line = str(refusal)
        assert line.startswith(str(path))
        assert len(line.splitlines()) == 1
    else:
        assert checkpoint.state("0")["x"].tolist() == list(range(50))
        assert checkpoint.state("1") == {"y": 2}


def test_a_file_that_does_not_say_whose_it_is_is_refused(tmp_path):
    for change in ({"step": "3"}, {"config": []}, {"virtual": None}):
        write(tmp_path / "a", {**META, **change}, [])
        with pytest.raises(DamagedCheckpoint, match=f"says nothing of its {next(iter(change))}"):
            Checkpoint(tmp_path / "a")


def test_foreign_files_are_refused(tmp_path):
    path = tmp_path / "file"
    for content, said in ((b"", "no checkpoint"), (b"GIF89a", "no checkpoint")):
        path.write_bytes(content)
        with pytest.raises(DamagedCheckpoint, match=said):
            Checkpoint(path)
    np.savez(open(path, "wb"), x=np.zeros(3))  # noqa: SIM115
    with pytest.raises(DamagedCheckpoint, match="no checkpoint"):
        Checkpoint(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("meta.npy", b"0" * 10**6)
        archive.writestr("sha256.npy", b"0")
    with pytest.raises(DamagedCheckpoint, match="compressed"):
        Checkpoint(path)
    np.savez(path, x=np.array([{}], object), allow_pickle=True)
    with pytest.raises(DamagedCheckpoint):
        Checkpoint(path.with_name("file.npz"))


def test_the_newest_valid_one_is_taken_and_it_is_said_why_no_newer_one(tmp_path):
    path = tmp_path / "run"
    checkpoint_writer = CheckpointWriter(Saving(path), META)
    assert place.newest(path) == (None, [])
    for step in (5, 10, 15):
        checkpoint_writer.write({"step": step}, [("0", {"x": step})])
    assert not place.writing(path).exists()
    assert Checkpoint(place.previous(path)).meta["step"] == 10
    found = place.newest(path)
    assert (found.checkpoint.meta["step"], found.notes) == (15, [])
    octets = path.read_bytes()
    path.write_bytes(octets[:-30])
    found = place.newest(path)
    assert found.checkpoint.meta["step"] == 10
    assert len(found.notes) == 1
    assert found.notes[0].startswith(str(path))
    place.writing(path).write_bytes(octets)  # killed between the two renames
    assert place.newest(path).checkpoint.meta["step"] == 15
    place.writing(path).write_bytes(octets[:50])  # killed while writing
    path.unlink()
    found = place.newest(path)
    assert found.checkpoint.meta["step"] == 10
    assert found.notes == ["run.writing was not completed"]


@pytest.mark.parametrize("moment", ["write", "replace"])
def test_a_full_disk_leaves_the_one_before(moment, tmp_path, monkeypatch):
    path = tmp_path / "run"
    checkpoint_writer = CheckpointWriter(Saving(path), META)
    checkpoint_writer.write({"step": 1}, [("0", {"x": 1})])

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync" if moment == "write" else "replace", full)
    with pytest.raises(OSError, match=r"run\S*: cannot be written: No space left"):
        checkpoint_writer.write({"step": 2}, [("0", {"x": 2})])
    monkeypatch.undo()
    assert Checkpoint(path).meta["step"] == 1


RUN = "train --virtual 2 --hidden 5 --data-samples 40 --batch 4 --format json "
REFUSED = [
    ("--checkpoint-every 5", ["--checkpoint-every", "5", "--checkpoint FILE", "--output"]),
    ("--resume auto", ["--resume", "auto", "--checkpoint FILE"]),
    ("--checkpoint a --checkpoint-every 0", ["--checkpoint-every", "0", "steps", "30s"]),
    ("--checkpoint a --checkpoint-every=-3s", ["--checkpoint-every", "-3s"]),
    ("--checkpoint a --checkpoint-every often", ["--checkpoint-every", "'often'"]),
    ("--checkpoint there --resume auto --overwrite", ["--overwrite", "--resume"]),
    ("--checkpoint there", ["--checkpoint", "'there'", "--resume auto", "--overwrite"]),
    ("--checkpoint no/folder", ["--checkpoint", "'no/folder'", "there is no folder"]),
    ("--checkpoint .", ["--checkpoint", "must name a file"]),
    ("--resume missing", ["--resume", "'missing'", "there is no such file"]),
    ("--resume torn", ["--resume", "torn", "is damaged", "torn.previous"]),
    ("--resume there --virtual 3", ["there", "number of ranks is 2, not 3"]),
    ("--resume there --algorithm local", ["there", "its --algorithm is minibatch, not local"]),
    ("--resume there --hidden 6", ["there", "its --hidden is 5, not 6"]),
    ("--resume there --lr 0.2", ["there", "its --lr is 0.1, not 0.2"]),
    ("--resume there --seed 1", ["there", "its --seed is 0, not 1"]),
    ("--resume there --data-samples 41", ["there", "data-samples is 40, not 41"]),
    ("--resume there --steps 3", ["there", "is at step 4, beyond the 3"]),
    ("--resume cycle --schedule one-cycle --steps 8", ["cycle", "one-cycle", "only a constant"]),
    ("--resume real", ["real", "of ranks under MPI"]),
    ("--resume other", ["other", "made with other samples of --data digits"]),
    ("--output old.h5 --resume auto --lr 0.3", ["old.h5", "another run", "its --lr is 0.1"]),
    ("--output old.h5 --resume auto --steps 9", ["old.h5", "complete with other --steps"]),
]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """Files of runs that are over."""
    folder = tmp_path_factory.mktemp("shelf")
    words = [*RUN.split(), "--steps", "4"]
    assert cli.main([*words, "--checkpoint", str(folder / "there")]) == 0
    assert cli.main([*words, "--schedule", "one-cycle", "--checkpoint", str(folder / "cycle")]) == 0
    assert cli.main([*words, "--output", str(folder / "old.h5")]) == 0
    there = Checkpoint(folder / "there")
    for name, change in (("real", {"virtual": False}), ("other", {"data_sha256": "0"})):
        write(folder / name, {**there.meta, **change}, there.states().items())
    octets = bytearray((folder / "there").read_bytes())
    (folder / "torn.previous").write_bytes(octets)
    octets[len(octets) // 2] ^= 1
    (folder / "torn").write_bytes(octets)
    return folder


@pytest.mark.parametrize(("words", "said"), REFUSED, ids=[words for words, _ in REFUSED])
def test_what_is_refused(words, said, shelf, monkeypatch, capsys):
    monkeypatch.chdir(shelf)
    before = sorted(os.listdir())
    given = [*RUN.split(), "--steps", "4", *words.split()]
    assert cli.main(given) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    for part in said:
        assert part in err
    assert sorted(os.listdir()) == before


def test_without_a_checkpoint_auto_begins_at_the_start_and_says_so(capsys):
    words = [*RUN.split(), "--steps", "4", "--checkpoint", "new"]
    assert cli.main([*words, "--resume", "auto"]) == 0
    assert "no checkpoint at new: begins at the start" in capsys.readouterr().err
    assert cli.main([*words, "--resume", "auto", "--steps", "6"]) == 0
    assert "goes on from new after step 4" in capsys.readouterr().err
    assert cli.main([*words, "--overwrite"]) == 0
    assert Checkpoint("new").meta["number"] == 1
    assert not os.path.exists("new.previous")
