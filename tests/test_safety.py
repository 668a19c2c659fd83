"""Nothing that is read is ever run, nothing is written or read outside of what was named.

Pickled data, archives and damaged files: test_bad_input. Scripts and their quoting:
test_submit_jobs. The page: test_report_pages, and here with names of files.
"""

import ast
import io
import json
import os
import pickle
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_store import finished, writer
from test_store_damage import damaged

import allreduce
import mpisgd
from allreduce.network import Network, network
from mpisgd.data.cifar import ALLOWED, Restricted
from mpisgd.report.targets import Target
from mpisgd.store.reader import read
from mpisgd.store.schema import fields
from mpisgd.submit.script import sbatch_quoted

SOURCES = [
    path
    for package in (mpisgd, allreduce)
    for path in Path(str(package.__file__)).parent.rglob("*.py")
]
HOSTILE = "a b;$(touch x)`y`'\"<script>alert(1)</script>&\\"

# --- the source: what could run text or bytes, and the few places that may

NEVER = {"eval", "exec", "compile", "__import__"}
METHODS = {
    ("os", "system"), ("os", "popen"), ("marshal", "loads"), ("marshal", "load"),
    ("pickle", "loads"), ("pickle", "load"), ("shelve", "open"), ("yaml", "load"),
    ("tempfile", "mktemp"), ("numpy", "fromregex"), ("re", "Scanner"),
}  # fmt: skip
MODULES = {"pickle", "marshal", "shelve", "dill", "joblib", "tarfile", "zipfile", "shutil.unpack"}
MAY = {
    ("cifar.py", "import pickle"): "the restricted unpickler",
    ("file.py", "import zipfile"): "checkpoints: entries are read, none is extracted",
    ("plugins.py", "compile"): "a user's own file, named by the user",
    ("plugins.py", "exec"): "a user's own file, named by the user",
    ("remote.py", "import pickle"): "a pipe to a process of its own",
    ("remote.py", "pickle.load"): "a pipe to a process of its own",
}


def dangers(text: str) -> list[str]:
    """What in a source could run text or bytes: calls and imports, as the source writes them."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [f"import {a.name}" for a in node.names if a.name in MODULES]
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            found.append(f"import {node.module}")
        elif isinstance(node, ast.Call):
            called, options = node.func, {word.arg: word.value for word in node.keywords}
            if isinstance(called, ast.Name) and called.id in NEVER:
                found.append(called.id)
            if isinstance(called, ast.Attribute) and called.attr in ("extract", "extractall"):
                found.append(called.attr)
            if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
                where, name = called.value.id, called.attr
                if (where, name) in METHODS:
                    found.append(f"{where}.{name}")
                if where == "np" and name == "load" and not _is(options, "allow_pickle", False):
                    found.append("np.load")
                if where == "torch" and name == "load" and not _is(options, "weights_only", True):
                    found.append("torch.load")
            if "shell" in options and not _is(options, "shell", False):
                found.append("shell")
    return found


def _is(options, name, value) -> bool:
    given = options.get(name)
    return isinstance(given, ast.Constant) and given.value is value


@pytest.mark.parametrize(
    ("text", "danger"),
    [
        ("eval('1')", "eval"), ("exec(x)", "exec"), ("import pickle", "import pickle"),
        ("from pickle import load", "import pickle"), ("np.load(p)", "np.load"),
        ("np.load(p, allow_pickle=True)", "np.load"), ("os.system(x)", "os.system"),
        ("subprocess.run(x, shell=True)", "shell"), ("torch.load(f)", "torch.load"),
        ("pickle.load(f)", "pickle.load"), ("import tarfile", "import tarfile"),
        ("archive.extractall()", "extractall"),
    ],
)  # fmt: skip
def test_the_search_finds_what_it_is_for(text, danger):
    assert dangers(text) == [danger]
    assert (
        dangers("np.load(p, allow_pickle=False); model.eval(); re.compile(x); f(shell=False)") == []
    )


def test_nothing_in_the_source_runs_what_was_read():
    found = [(path.name, danger) for path in SOURCES for danger in dangers(path.read_text())]
    assert {each for each in found if each not in MAY} == set()
    assert len(SOURCES) > 100


# --- pickles


class Call:
    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


@pytest.mark.parametrize(
    "call",
    [
        Call(os.system, "touch x"), Call(exec, "x = 1"), Call(eval, "1"), Call(open, "x", "w"),
        Call(np.load, "x"), Call(np.fromfile, "x"), Call(print, "x"),
        Call(__import__, "os"),
    ],
    ids=lambda call: call.function.__name__,
)  # fmt: skip
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {b"data": [x]}], ids=["bare", "inside"])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_no_function_is_looked_up_for_a_pickle(call, wrap, protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pickle.UnpicklingError, match="which is not loaded from data"):
        Restricted(io.BytesIO(pickle.dumps(wrap(call), protocol))).load()
    assert list(tmp_path.iterdir()) == []


def test_arrays_are_all_that_a_pickle_may_make():
    array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    for protocol in (3, 4):  # older ones have bytes made by a function
        loaded = Restricted(io.BytesIO(pickle.dumps([array, 1, "x", b"y"], protocol))).load()
        np.testing.assert_array_equal(loaded[0], array)
    assert {name for _, name in ALLOWED} == {"ndarray", "dtype", "_reconstruct"}


# --- HDF5: nothing outside of the file is touched


TRAIN = fields("train")


@pytest.mark.parametrize("place", [*(f.path for f in TRAIN[:6]), "rows/steps", "steps", "rows"])
@pytest.mark.parametrize("kind", ["external", "soft", "dangling"])
def test_links_are_not_followed(tmp_path, place, kind):
    """The target is a pipe that nobody writes to: to follow the link would be to wait for ever."""
    path = finished(tmp_path / "run.h5", steps=2)
    os.mkfifo(tmp_path / "pipe")
    target = {
        "external": h5py.ExternalLink(str(tmp_path / "pipe"), "/x"),
        "soft": h5py.SoftLink("/events/step"),
        "dangling": h5py.SoftLink("/nowhere"),
    }[kind]
    with h5py.File(path, "r+") as file:
        del file[place]
        file[place] = target
    assert "is a link to elsewhere, which is not followed" in damaged(path)


def test_external_storage_and_virtual_datasets_are_not_read(tmp_path):
    (tmp_path / "secret").write_bytes(b"secret" * 100)
    whole = finished(tmp_path / "run.h5", steps=2).read_bytes()
    layout = h5py.VirtualLayout((2, 3), "f8")
    layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "steps/loss", (2, 3))
    for change in (
        lambda file: file.create_dataset(
            "steps/loss", (2, 3), "f8", external=[(str(tmp_path / "secret"), 0, 48)]
        ),
        lambda file: file.create_virtual_dataset("steps/loss", layout),
    ):
        path = tmp_path / "changed.h5"
        path.write_bytes(whole)
        with h5py.File(path, "r+") as file:
            del file["steps/loss"]
            change(file)
        assert "/steps/loss is not a dataset of this file" in damaged(path)


def test_references_are_not_followed(tmp_path):
    path = finished(tmp_path / "run.h5", steps=2)
    with h5py.File(path, "r+") as file:
        file.attrs["kind"] = file["steps"].ref
        del file["steps/loss"]
        file.create_dataset("steps/loss", (2, 3), h5py.ref_dtype)
        file["steps/loss"][0, 0] = file["steps/wait_s"].ref
    assert "attribute kind is <HDF5 object reference>, not str" in damaged(path)
    with h5py.File(path, "r+") as file:
        file.attrs["kind"] = np.bytes_(b"train")
    assert "/steps/loss has type object" in damaged(path)


# --- what is generated from names


class Page(HTMLParser):
    """The tags and the attributes of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}


def test_the_page_shows_hostile_names_as_text(tmp_path, monkeypatch):
    """A name of a file, a text of an experiment, of an environment, of a killed run's reason."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    from mpisgd.report.collect import collect
    from mpisgd.report.html import page
    from mpisgd.report.sections import report

    monkeypatch.chdir(tmp_path)
    name = HOSTILE.replace("/", "") + '" onload="alert(1)'
    with writer(tmp_path / f"{name}.h5") as store:
        store.evaluation(step=1, loss=0.5, accuracy=0.5, time_s=1.0)
        store.close(HOSTILE)
    runs, problems = collect([f"{name}.h5", f"{name}.h6"])
    assert len(runs) == len(problems) == 1
    made = Page(page(report(runs, [Target(0.5)], problems)))
    assert made.tags.count("script") == 1  # the page's own
    assert not {name for name in made.attributes if name.startswith("on")}


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@settings(max_examples=50, deadline=None)
@given(NAMES | st.just(HOSTILE))
def test_a_network_file_reads_back_whatever_its_name(tmp_path_factory, name):
    path = tmp_path_factory.getbasetemp() / "named.toml"
    path.write_text(Network(name, latency_s=1e-6).toml(), encoding="utf-8")
    assert network(str(path)) == Network(name, latency_s=1e-6)
    assert tomllib.loads(path.read_text(encoding="utf-8"))["name"] == name


@settings(max_examples=100, deadline=None)
@given(NAMES | st.just(HOSTILE))
def test_a_line_of_sbatch_is_one_word_on_one_line(name):
    try:
        quoted = sbatch_quoted(name)
    except ValueError:
        assert not name.isprintable()
        return
    assert "\n" not in quoted
    if quoted != name:
        assert quoted.startswith('"')
        assert json.loads(quoted) == name


def test_a_result_file_with_a_hostile_name_stays_in_its_folder(tmp_path):
    folder = tmp_path / "here"
    folder.mkdir()
    name = HOSTILE.replace("/", "") + ".h5"
    finished(folder / name)
    assert [path.name for path in tmp_path.rglob("*")] == ["here", name]
    assert read(folder / name).complete
