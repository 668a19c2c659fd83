"""What users give is read, and what commands write is written, through one door each."""

import ast
import fcntl
import os
from pathlib import Path

import pytest
from test_cli import outcome
from test_imports import EVERYTHING
from test_store import finished, writer

from allreduce import files
from allreduce.network import network
from mpisgd import cli
from mpisgd.experiment.experiment import from_file
from mpisgd.store import lock
from mpisgd.store.opening import ForeignFile
from mpisgd.store.reader import read
from mpisgd.values import files as ours

MARK = b"\xef\xbb\xbf"


def test_a_byte_order_mark_says_nothing(tmp_path):
    (tmp_path / "a.toml").write_bytes(MARK + b"latency_s = 1e-6\n")
    assert files.toml(tmp_path / "a.toml") == from_file(str(tmp_path / "a.toml"))
    assert network(str(tmp_path / "a.toml")).latency_s == 1e-6
    (tmp_path / "b.toml").write_text("lr = 1\n", encoding="utf-16")
    with pytest.raises(files.Unreadable, match=r"not UTF-8: .* 0xff"):
        files.toml(tmp_path / "b.toml")


@pytest.mark.parametrize("part", ["a", "'b c'", '"d.e"', "f - "])
def test_keys_are_as_deep_as_they_may_be(part, tmp_path):
    """The limit counts parts, not dots: those inside of quotes are none."""
    path = tmp_path / "x.toml"
    for parts, fits in ((files.DEEPEST_KEY, True), (files.DEEPEST_KEY + 1, False)):
        name = part.replace(" - ", "-")
        path.write_text(" . ".join([name] * parts) + " = 1\n")
        if fits:
            assert files.toml(path)
            continue
        with pytest.raises(files.Unreadable, match="a key of more than 32 parts"):
            files.toml(path)
    path.write_text("x = 'version 1.2.3.4 of " + "a sentence. " * 100 + "'\n")
    assert files.toml(path)


def test_a_link_to_a_file_is_read_and_one_to_a_device_is_not(tmp_path):
    (tmp_path / "x").write_text("content")
    (tmp_path / "link").symlink_to("x")
    assert files.text(tmp_path / "link") == "content"
    (tmp_path / "zero").symlink_to("/dev/zero")
    with pytest.raises(files.Unreadable, match="is no regular file"):
        files.text(tmp_path / "zero")


# --- written


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    for variable in cli.BLAS_VARIABLES:  # main sets them: put them back
        monkeypatch.setenv(variable, "1")
    monkeypatch.setattr(lock, "PATIENCE", 0.0)
    monkeypatch.chdir(tmp_path)
    finished(tmp_path / "whole.h5")
    return tmp_path


TRAIN = "train --virtual 2 --steps 2 --data-samples 40 --hidden 4 --batch 4 "
WRITES = {
    TRAIN + "--output x": "--output",
    TRAIN + "--checkpoint x": "--checkpoint",
    "report whole.h5 --html x": "--html",
    "report whole.h5 --trace x": "--trace",
    "simulate --algorithm ring --ranks 4 --bytes 1K --goal x": "--goal",
    "predict --net resnet50-cifar --ranks 2 --figure x.svg": "--figure",
    "advise --backups --ranks 4 --step-time 1s --straggler exponential --figure x.svg": "--figure",
    "bench allreduce --sizes 4 --algorithms ring --time-budget 1ms --output x": "--output",
    "calibrate --repetitions 6 --batches 4 --output x.toml": "--output",
}


@pytest.mark.parametrize("words", WRITES)
def test_every_command_that_writes_is_alone_and_follows_no_link(words, workplace, capsys):
    """Beside its target lie a link in wait under each name that was once foreseen, and a user's
    own file. Then it is refused while another one writes there."""
    if "figure" in words or "html" in words:
        pytest.importorskip("matplotlib")
        pytest.importorskip("jinja2")
    name = words.split()[-1]
    (workplace / "precious").write_text("precious")
    for ending in ("begun", "whole", "tmp"):
        (workplace / f".{name}.{ending}").symlink_to("precious")
    (workplace / f".{name}.new").write_text("own")
    before = {path.name for path in workplace.iterdir()}
    with lock.held(workplace / name, "--other"):
        assert outcome(words.split()) == 2
    assert f"{WRITES[words]} '{name}': another run is writing it" in capsys.readouterr().err
    assert outcome(words.split()) == 0
    assert {path.name for path in workplace.iterdir()} == {*before, name}
    assert (workplace / name).is_file()
    assert (workplace / "precious").read_text() == "precious"
    assert all((workplace / f".{name}.{e}").is_symlink() for e in ("begun", "whole", "tmp"))


@pytest.mark.parametrize("name", ["x.lock", "c.lock"])
def test_a_link_in_wait_for_the_lock_is_refused(name, workplace, capsys):
    (workplace / "precious").write_text("precious")
    (workplace / f".{name}").symlink_to("precious")
    assert outcome((TRAIN + "--output x --checkpoint c").split()) == 2
    assert f".{name}" in capsys.readouterr().err
    assert (workplace / "precious").read_text() == "precious"
    assert {p.name for p in workplace.iterdir()} == {"precious", f".{name}", "whole.h5"}


@pytest.mark.parametrize("name", ["x.partial", "c.writing", "c.previous", "c"])
@pytest.mark.parametrize("more", ["", " --overwrite", " --resume auto"])
def test_links_in_wait_under_names_that_are_documented_are_refused(name, more, workplace, capsys):
    if (name, more) == ("c", " --overwrite"):
        return  # a link as a target: below
    (workplace / "precious").write_text("precious")
    (workplace / name).symlink_to("precious")
    assert outcome((TRAIN + "--output x --checkpoint c" + more).split()) == 2
    assert "precious" in (err := capsys.readouterr().err) or name in err
    assert (workplace / "precious").read_text() == "precious"
    assert (workplace / name).is_symlink()


@pytest.mark.parametrize("there", [True, False], ids=["there", "dangling"])
@pytest.mark.parametrize("words", WRITES)
def test_a_link_as_target_means_what_it_points_to(words, there, workplace, capsys):
    if "figure" in words or "html" in words:
        pytest.importorskip("matplotlib")
        pytest.importorskip("jinja2")
    name = words.split()[-1]
    folder = workplace / "other"
    folder.mkdir()
    target = folder / name
    if there:
        target.write_text("old")
    (workplace / name).symlink_to(target)
    if there:
        assert outcome(words.split()) == 2
        assert target.read_text() == "old"
        words += " --overwrite"
    kept = there and "--checkpoint" in words  # what is no checkpoint is never replaced
    assert outcome(words.split()) == (2 if kept else 0)
    assert (workplace / name).is_symlink()
    assert kept or target.stat().st_size > 3
    assert [path.name for path in folder.iterdir()] == [name]
    assert {path.name for path in workplace.iterdir()} == {"whole.h5", "other", name}


def test_a_run_begun_at_a_link_is_found_and_goes_on_there(workplace):
    (workplace / "other").mkdir()
    (workplace / "x").symlink_to("other/y")
    with writer(workplace / "x") as store:
        store.evaluation(step=1, loss=1.0)
    assert [path.name for path in (workplace / "other").iterdir()] == ["y.partial"]
    with read(workplace / "x") as run:
        assert run.evaluation["loss"].tolist() == [1.0]


def test_what_a_kill_has_left_goes_and_nothing_else(workplace):
    for name in (".x.~0a1b2c", ".x.~0a1b2", ".x.~0a1b2cd", ".xy.~0a1b2c", ".x.begun"):
        (workplace / name).write_text("")
    (workplace / ".x.~0000aa").symlink_to("whole.h5")
    before = {path.name for path in workplace.iterdir()}
    with lock.held(workplace / "x", "--output"):
        pass
    assert {path.name for path in workplace.iterdir()} == before - {".x.~0a1b2c"}


@pytest.mark.parametrize("content", ["notes of the user's", "\x89PNG"])
@pytest.mark.parametrize("more", ["--resume auto", "--overwrite", ""])
def test_a_users_file_with_the_name_of_a_partial_one_stays(content, more, workplace, capsys):
    (workplace / "r.h5.partial").write_text(content)
    assert outcome([*TRAIN.split(), "--output", "r.h5", *more.split()]) == 2
    assert "'r.h5.partial': is no file of a run, and is left as it is" in capsys.readouterr().err
    assert (workplace / "r.h5.partial").read_text() == content


def test_another_programs_hdf5_is_foreign(workplace, capsys):
    import h5py

    with h5py.File("r.h5.partial", "w") as file:
        file["x"] = 1
    with pytest.raises(ForeignFile):
        read("r.h5.partial")
    octets = Path("r.h5.partial").read_bytes()
    assert outcome((TRAIN + "--output r.h5 --resume auto").split()) == 2
    assert "no result of mpisgd" in capsys.readouterr().err
    assert Path("r.h5.partial").read_bytes() == octets


def test_a_new_file_is_new(tmp_path):
    for make in (Path.touch, lambda p: p.symlink_to("nowhere"), os.mkfifo):
        make(tmp_path / "x")
        with pytest.raises(FileExistsError):
            ours.created(tmp_path / "x")
        (tmp_path / "x").unlink()
    with pytest.raises(TypeError):
        ours.write(tmp_path / "x", "no bytes")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_sound_file_is_read_whatever_locks_do(workplace, capsys):
    """HDF5's own lock is not asked for: where the file system has none, it fails."""
    with open("whole.h5", "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert outcome(["report", "whole.h5"]) == 0
    assert "damaged" not in capsys.readouterr().err


# --- the doors are the only ones

OPENS = {"open", "io.open", "tomllib.load", "tomllib.loads"}
METHODS = {
    "read_text", "read_bytes", "loadtxt", "fromfile", "genfromtxt", "write_text", "write_bytes",
    "tofile", "savetxt",
}  # fmt: skip
MAY = {
    "allreduce/simulate/simgrid.py",  # what SimGrid reads, in a temporary folder
    "allreduce/files.py", "mpisgd/values/files.py", "mpisgd/store/lock.py",
    "mpisgd/store/writer.py",
    "mpisgd/store/environment.py",  # /proc
    "mpisgd/mpi/lab.py", "mpisgd/mpi/mpiexec.py", "mpisgd/mpi/cores.py",  # /proc
    "mpisgd/report/html.py",  # a page of our own
    "mpisgd/doctor/place.py", "mpisgd/doctor/rank.py",  # by trying; /proc
    "mpisgd/worlds/copies.py",  # a temporary file without a name
}  # fmt: skip


def opening(tree: ast.AST) -> list[str]:
    """Calls by which a module opens files itself."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        last = name.rpartition(".")[2]
        readable = any(each in ast.unparse(node) for each in ("O_RDONLY", "os.devnull"))
        to_a_file = last == "savefig" and "format" not in {word.arg for word in node.keywords}
        if name in OPENS or last in METHODS or to_a_file or (name == "os.open" and not readable):
            found.append(name)
    return found


def test_files_are_opened_in_few_places():
    found = {path: opening(tree) for path, tree in EVERYTHING.items() if path not in MAY}
    assert {path: calls for path, calls in found.items() if calls} == {}
    for text in ("open(x)", "Path(x).read_text()", "figure.savefig(path)", "tomllib.load(f)"):
        assert opening(ast.parse(text))
    assert not opening(ast.parse("lab.open(); figure.savefig(buffer, format='svg')"))
