"""Files that are not results, or no longer: refused in one line, never believed, never a hang."""

import json
import random

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_store import CONFIG, finished, writer
from test_store_kills import killed_run

from mpisgd.store import superblock
from mpisgd.store.opening import DamagedFile
from mpisgd.store.reader import read


def test_the_checksum_of_a_superblock_is_the_one_hdf5_wrote(tmp_path):
    content = finished(tmp_path / "run.h5").read_bytes()
    head, checksum = content[:44], int.from_bytes(content[44:48], "little")
    assert superblock.lookup3(head) == checksum
    assert superblock.lookup3(head[:36]) != checksum
    # Values of lookup3's own driver for one text, start value 0.
    assert superblock.lookup3(b"Four score and seven years ago") == 0x17770551


def damaged(path) -> str:
    """Read all there is: the one line of the refusal, or "" when everything could be read."""
    try:
        with read(path) as run:
            list(run.arrays())
            assert isinstance(run.cases, list)
            assert isinstance(run.restarts, list)
        return ""
    except DamagedFile as error:
        line = str(error)
    assert str(path) in line
    assert "\n" not in line
    assert len(line) < 500
    return line


def change_attribute(name, value):
    return lambda file: file.attrs.__setitem__(name, value)


def replace(name, **options):
    def change(file):
        del file[name]
        file.create_dataset(name, **options)

    return change


def link(name, target):
    def change(file):
        del file[name]
        file[name] = target

    return change


DAMAGES = {
    "no attributes": (lambda f: [f.attrs.__delitem__(a) for a in list(f.attrs)], "no result of"),
    "newer": (change_attribute("schema_version", 2), "schema version 2"),
    "version text": (change_attribute("schema_version", "one"), "schema_version is 'one'"),
    "kind": (change_attribute("kind", "novel"), "'novel'"),
    "ranks": (change_attribute("ranks", 5), "shape"),
    "no ranks": (change_attribute("ranks", 0), "0 ranks"),
    "missing group": (lambda f: f.__delitem__("steps"), "has no /steps/start_s"),
    "missing column": (lambda f: f.__delitem__("evaluation/loss"), "has no /evaluation/loss"),
    "dtype": (replace("steps/loss", data=np.zeros((40, 3), "f4")), "type float32, not float64"),
    "ranks of one column": (replace("steps/loss", data=np.zeros((40, 4))), "shape"),
    "dimensions": (replace("steps/loss", data=np.zeros(40)), "shape"),
    "text": (replace("config", data=np.array([b"{1: 2"])), "config is not JSON"),
    "no object": (replace("summary", data=np.array([b"[1]"])), "summary is not JSON"),
    "deep": (replace("config", data=np.array([b'{"a":' * 20_000])), "config is not JSON"),
    "pickle": (replace("config", data=np.array([b"\x80\x04."])), "config is not JSON"),
    "objects": (replace("config", shape=(1,), dtype=h5py.string_dtype()), "type"),
    "references": (replace("steps/loss", shape=(40, 3), dtype=h5py.ref_dtype), "type"),
    "counter": (replace("rows/steps", data=np.array([1, 1 << 40, 3])), "counts"),
    "negative": (replace("rows/steps", data=np.array([1, -5, 3])), "counts"),
    "bomb": (replace("rows/evaluation", data=np.array([999])), "counts 999 rows"),
    "external": (link("steps/loss", h5py.ExternalLink("/etc/passwd", "/x")), "not followed"),
    "external group": (link("steps", h5py.ExternalLink("other.h5", "/steps")), "not followed"),
    "soft": (link("steps/loss", h5py.SoftLink("/steps/wait_s")), "not followed"),
    "group for a column": (link("steps/loss", h5py.SoftLink("/steps")), "not followed"),
    "column for a group": (replace("steps", data=np.zeros(40)), "is not inside a group"),
    "storage": (
        replace("steps/loss", shape=(1, 3), dtype="f8", external=[("/etc/hostname", 0, 24)]),
        "not a dataset of this file",
    ),
    "huge": (
        replace("steps/loss", shape=(1 << 40, 3), maxshape=(None, 3), dtype="f8"),
        "",  # a column longer than its counter is read as far as the counter goes
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_files_that_break_the_schema_are_refused(tmp_path, whole, name):
    change, expected = DAMAGES[name]
    path = tmp_path / "run.h5"
    path.write_bytes(whole[0])
    (tmp_path / "other.h5").write_bytes(whole[0])
    with h5py.File(path, "r+") as file:
        change(file)
    line = damaged(path)
    assert bool(line) == bool(expected)
    assert expected in line


def test_a_column_that_claims_more_than_the_file_can_hold_is_refused(tmp_path):
    path = finished(tmp_path / "run.h5")
    with h5py.File(path, "r+") as file:
        replace("steps/loss", shape=(1 << 40, 3), maxshape=(None, 3), dtype="f8")(file)
        replace("rows/steps", data=np.array([1 << 40] * 3))(file)
    assert "more than the file can hold" in damaged(path)


def test_what_is_no_hdf5_file_is_refused(tmp_path):
    cases = {"empty": b"", "text": b"hello", "pickle": b"\x80\x04K\x01.", "png": b"\x89PNG\r\n"}
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
        assert "is empty" in (line := damaged(tmp_path / name)) or "not an HDF5 file" in line
    assert "No such file" in damaged(tmp_path / "absent.h5")
    assert "folder" in damaged(tmp_path)


def test_a_file_cut_at_any_block_is_refused_or_read_whole(tmp_path):
    content = finished(tmp_path / "run.h5").read_bytes()
    cut = tmp_path / "cut.h5"
    for size in [*range(0, len(content), 509), len(content) - 1]:
        cut.write_bytes(content[:size])
        assert damaged(cut)


def test_a_partial_file_cut_anywhere_never_invents_a_row(tmp_path):
    with writer(tmp_path / "run.h5") as store:
        store.steps(0, 1, {"loss": np.arange(1.0, 41.0)})
    content = (tmp_path / "run.h5.partial").read_bytes()
    cut = tmp_path / "cut.h5"
    for size in range(0, len(content), 2_011):
        cut.write_bytes(content[:size])
        assert damaged(cut)


@pytest.mark.parametrize("flips", range(4))
def test_what_a_killed_run_left_may_be_damaged_as_well(tmp_path, flips):
    """No hang and no invented row when it is cut, or bits of its metadata are flipped."""
    killed_run(tmp_path / "run.h5", random.Random(flips), -1)
    content = (tmp_path / "run.h5.partial").read_bytes()
    chance = random.Random(flips)
    refused = 0
    for _ in range(12):
        part = bytearray(content[: chance.randrange(1, 60_000)])
        for _ in range(flips):
            part[chance.randrange(len(part))] ^= 1 << chance.randrange(8)
        (tmp_path / "cut.h5").write_bytes(part)
        refused += bool(damaged(tmp_path / "cut.h5"))
    assert refused


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = finished(tmp_path_factory.mktemp("whole") / "run.h5")
    with read(path) as run:
        rows = {field.path: values for field, values in run.arrays()}
    return path.read_bytes(), rows


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    where=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=4), bit=st.integers(0, 7)
)
def test_flipped_bits_are_noticed_or_harmless(tmp_path, whole, where, bit):
    """Metadata and data are checksummed: what can still be read is what was written."""
    content, expected = bytearray(whole[0]), whole[1]
    for share in where:
        content[int(share * len(content))] ^= 1 << bit
    path = tmp_path / "flipped.h5"
    path.write_bytes(content)
    try:
        with read(path) as run:
            found = {field.path: values for field, values in run.arrays()}
    except DamagedFile:
        found = {}
    for name, values in found.items():
        np.testing.assert_array_equal(values, expected[name])


def test_reading_leaves_files_alone(tmp_path):
    path = finished(tmp_path / "run.h5")
    path.chmod(0o400)
    before = path.read_bytes()
    assert not damaged(path)
    assert path.read_bytes() == before
    assert json.loads(json.dumps(read(path).config)) == CONFIG
