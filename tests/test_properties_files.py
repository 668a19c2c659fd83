"""Damaged and foreign result files, whatever is in them: a result or one line, from every command.

Bits and truncation: test_store_damage. Here what is well-formed HDF5 but not what was written.
"""

import itertools
import json
import subprocess
import sys

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from test_cli import outcome
from test_store import writer
from test_store_damage import damaged

from mpisgd import cli
from mpisgd.experiment.experiment import Experiment
from mpisgd.store import schema, texts
from mpisgd.store.reader import read

FIXED = [HealthCheck.function_scoped_fixture]
FIELDS = schema.fields("train")
COLUMNS = [field for field in FIELDS if field.dims and field.group != "rows"]
PUSH = ("server", "update", "worker", "step", "version_read", "used", "samples")
CONFIG = Experiment.read({"algorithm": "async", "scaling": "weak"}).resolved(3, 96).config()
ENVIRONMENT = {"cpus": 2, "cpu": "x", "mpi_library": "y", "command": ["mpisgd"], "host": "h"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a run with something in every group."""
    path = tmp_path_factory.mktemp("whole") / "run.h5"
    with writer(path) as store:
        names = [f.name for f in COLUMNS if f.group == "steps"]
        for rank in range(3):
            store.steps(rank, 1, {name: np.arange(1.0, 7.0) for name in names})
        store.evaluation(step=6, loss=0.5, accuracy=0.9, time_s=1.0)
        store.event(1, "flight", "mean", 0.5, 0.75, 7)
        store.updates([dict.fromkeys(PUSH, 1) | {"server": 0, "version_read": 0}])
        store.restart(step=3)
        store.complete({"parameters_sha256": "0"})
    return path.read_bytes()


def changed(path, content, change):
    path.write_bytes(content)
    with h5py.File(path, "r+") as file:
        change(file)
    return path


# --- types and shapes: each dataset, by name


DTYPES = ("i1", "u1", "i4", "u8", "f4", "f8", "S4", "?", "c16", "i4,f8", "V3", ">f8", "O")


@pytest.mark.parametrize("field", FIELDS, ids=[field.path for field in FIELDS])
def test_each_dataset_must_be_there_with_its_type_and_shape(tmp_path, whole, field):
    path = tmp_path / "run.h5"
    missing = changed(path, whole, lambda file: file.__delitem__(field.path))
    assert field.later or f"has no /{field.path}" in damaged(missing)
    with h5py.File(changed(path, whole, lambda file: None)) as file:
        right, shape = file[field.path].dtype, file[field.path].shape
    first = FIELDS.index(field) % len(DTYPES)
    for dtype in (DTYPES * 2)[first : first + 3]:
        kind = h5py.string_dtype() if dtype == "O" else np.dtype(dtype)
        if kind == right or (kind.kind == right.kind == "S"):
            continue

        def retype(file, kind=kind):
            del file[field.path]
            file.create_dataset(field.path, shape, kind)

        line = damaged(changed(path, whole, retype))
        assert f"/{field.path} has type " in line, (dtype, line)

    def reshape(file):
        del file[field.path]
        file.create_dataset(field.path, (*shape, 2), right)

    line = damaged(changed(path, whole, reshape))
    assert f"/{field.path} has shape {(*shape, 2)}" in line


@pytest.mark.parametrize("attribute", schema.ROOT, ids=[a.name for a in schema.ROOT])
@pytest.mark.parametrize(
    "value",
    [None, "\n\n", b"\xff", -1, 2**63, 1.5, np.arange(9), h5py.Empty("f8"), "x" * 60_000, [["a"]]],
    ids=["none", "lines", "bytes", "negative", "large", "real", "array", "empty", "long", "texts"],
)
def test_attributes_of_other_types_are_named(tmp_path, whole, attribute, value):
    def change(file):
        del file.attrs[attribute.name]
        if value is not None:
            file.attrs[attribute.name] = value

    line = damaged(changed(tmp_path / "run.h5", whole, change))
    if attribute.name == "created_utc" and isinstance(value, str | bytes):
        assert line == ""  # any text will do
    else:
        assert line


# --- the JSON texts: whatever they hold, no command crashes


PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
    st.sampled_from(["dasgd", "async", "weak", "strong", "<b>&", "\ud800", 2**70, 1, 0, -1, 3]),
)  # fmt: skip
NUMBERS = itertools.count()
JSONS = (
    PLAIN | st.lists(PLAIN, max_size=2) | st.dictionaries(st.text(max_size=2), PLAIN, max_size=1)
)


def with_text(path, content, name, value):
    def change(file):
        del file[name]
        file[name] = np.array([json.dumps(value).encode("ascii")])

    return changed(path, content, change)


@pytest.fixture(scope="module", params=["train", "servers"])
def base(request):
    return (
        CONFIG if request.param == "servers" else CONFIG | {"algorithm": "dasgd", "servers": None}
    )


@settings(max_examples=10, deadline=None, suppress_health_check=FIXED)
@example(config={"delay": "0"}, environment={})
@example(config={"delay": "auto", "tau": 2}, environment={})
@example(config={"bucket_bytes": []}, environment={})
@given(
    config=st.dictionaries(st.sampled_from([*CONFIG, "other"]), JSONS, max_size=2),
    environment=st.dictionaries(
        st.sampled_from([*ENVIRONMENT, "ranks_per_core", "variables"]), JSONS, max_size=1
    ),
)  # fmt: skip
def test_whatever_a_config_says_no_command_crashes(
    tmp_path, whole, base, config, environment, capsys, monkeypatch
):
    """Each example is a file of its own: what read the one before may still have it open."""
    for variable in cli.BLAS_VARIABLES:
        monkeypatch.setenv(variable, "1")
    path = tmp_path / f"{next(NUMBERS)}.h5"
    with_text(path, whole, "config", base | config)
    with_text(path, path.read_bytes(), "environment", ENVIRONMENT | environment)
    trace = str(tmp_path / "t.json")
    for words in (["report", str(path), "--overwrite", "--trace", trace],
                  ["report", str(path), "--format", "fom"],
                  ["replay", str(path)], ["advise", "--from", str(path)]):  # fmt: skip
        code = outcome(words)
        assert code in (0, 1, 2)
        err = capsys.readouterr().err
        assert "Traceback" not in err
        assert code != 2 or err.count("\n") == 1


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=40) | JSONS.map(lambda value: json.dumps(value).encode()))
def test_a_text_is_an_object_of_strict_json_or_nothing(text):
    value = texts.parse(text)
    assert value is None or json.loads(json.dumps(value, allow_nan=False)) == value
    if value is not None:
        repr(value).encode("utf-8")
        assert "\n" not in texts.wrong(value, 3)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"tau": "4"}, "tau is '4', not int"),
        ({"tau": True}, "tau is True, not int"),
        ({"tau": -1}, "tau is -1, below 0"),
        ({"hidden": [1, "2"]}, "hidden is not a list of whole numbers"),
        ({"servers": 3}, "servers is 3 of 3 ranks"),
        ({"servers": 4, "colocated": True}, "servers is 4 of 3 ranks"),
        ({"xi": []}, "xi is [], not int or float"),
        ({"rate": -0.5}, "rate is -0.5, below 0 or too large"),
        ({"batch": 2**63}, "batch is 9223372036854775808, below 0 or too large"),
    ],
)
def test_what_readers_rely_on_is_named(tmp_path, whole, config, said):
    path = with_text(tmp_path / "run.h5", whole, "config", CONFIG | {"servers": None} | config)
    assert f"/config: {said}" in damaged(path)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"other": 1}, "/config other: is no option of this version"),
        ({"seed": "x"}, "/config seed 'x': a whole number"),
        ({"dtype": "object"}, "/config dtype 'object': one of float32, float64"),
        ({"data_path": 3}, "/config data-path 3"),
        ({"model": "os:system"}, "/config model 'os:system': one of"),
    ],
)
def test_a_replay_believes_only_options(tmp_path, whole, config, said, capsys):
    path = with_text(tmp_path / "run.h5", whole, "config", CONFIG | config)
    assert outcome(["replay", str(path)]) == 2
    assert said.replace("data-path", "data_path") in capsys.readouterr().err


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("server", 1, "1 servers and 2 workers leave 0 to 0"),
        ("worker", 2, "1 servers and 2 workers leave 0 to 1"),
        ("worker", -1, "leave 0 to 1"),
        ("version_read", -1, "leave 0 to any"),
        ("version_read", 7, "update 1 cannot be replayed"),
        ("update", 3, "update 1 cannot be replayed"),
        ("used", 2, "leave 0 to 1"),
        ("step", 0, "leave 1 to any"),
    ],
)
def test_a_replay_refuses_pushes_that_cannot_have_been(
    tmp_path, whole, column, value, said, capsys
):
    def change(file):
        file[f"updates/{column}"][...] = value

    path = changed(tmp_path / "run.h5", whole, change)
    with_text(path, path.read_bytes(), "config", CONFIG)
    assert outcome(["replay", str(path)]) == 2
    assert said in capsys.readouterr().err


def test_names_that_are_no_text_are_shown_all_the_same(tmp_path, whole):
    """File names are bytes: what is no UTF-8 is printed with backslashes, in every form."""
    name = b"\xff<b>.h5".decode("utf-8", "surrogateescape")
    (tmp_path / name).write_bytes(whole)
    with_text(tmp_path / name, whole, "config", CONFIG | {"data_path": name})
    assert read(tmp_path / name).config["data_path"] == "\\udcff<b>.h5"
    words = ["-m", "mpisgd", "report", name, "nowhere" + name, "--format", "json"]
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True)
    assert done.returncode == 1, done.stderr
    assert b"udcff<b>.h5" in done.stdout
    assert b"nowhere\\udcff<b>.h5: No such file" in done.stderr
    assert done.stderr.count(b"\n") == 1
