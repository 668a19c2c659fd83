"""CIFAR-10 in its two layouts, pickles of every age and binary, with every damage."""

import gzip
import os
import pickle

import numpy as np
import pytest
from data_files import labels, refused

from mpisgd.data import load


def batch(count, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (count, 3072), np.uint8)
    return pixels, labels(count)


def binary(pixels, ys):
    return np.concatenate([ys[:, None], pixels], axis=1).tobytes()


@pytest.mark.parametrize("pack", [False, True])
def test_cifar_binary(tmp_path, pack):
    parts = [batch(3, seed) for seed in range(11)]
    names = [f"data_batch_{i}.bin" for i in range(1, 11)] + ["test_batch.bin"]
    for name, part in zip(names, parts, strict=True):
        content = binary(*part)
        if pack:
            name, content = name + ".gz", gzip.compress(content)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "batches.meta.txt").write_text("airplane\n")
    data = load("cifar10", tmp_path)
    assert (data.samples, data.test_samples, data.classes) == (30, 3, 10)
    pixels = np.concatenate([part[0] for part in parts[:10]])
    assert (data.train_inputs.reshape(30, -1) == pixels).all()
    assert data.train_inputs.shape[1:] == (3, 32, 32)
    assert data.split == "the test batch"
    inputs, targets = data.test(1, 2)
    np.testing.assert_allclose(inputs.ravel(), parts[10][0][1] / 255, rtol=1e-6)
    assert targets.tolist() == [1]
    next(tmp_path.glob("test_batch*")).unlink()
    assert load("cifar10", tmp_path).test_samples == 3  # a tenth, held back


def python2_pickle(pixels, ys):
    """Protocol 2 as Python 2 and an old NumPy wrote it: byte strings, numpy.core.

    Python 3 stores bytes otherwise, so the opcodes are spelled out.
    """
    raw = pixels.tobytes()

    def text(value):
        return b"U" + bytes([len(value)]) + value

    def integer(value):
        return b"J" + value.to_bytes(4, "little", signed=True)

    dtype = (
        b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R"
        + b"(K\x03" + text(b"|") + b"NNN" + integer(-1) + b"K\x00K\x00tb"
    )  # fmt: skip
    data = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
        + b"(K\x01" + integer(len(ys)) + integer(3072) + b"\x86" + dtype + b"\x89"
        + b"T" + len(raw).to_bytes(4, "little") + raw + b"tb"
    )  # fmt: skip
    values = b"(" + b"".join(b"K" + bytes([y]) for y in ys) + b"l"
    return b"\x80\x02}(" + text(b"data") + data + text(b"labels") + values + b"u."


def modern_pickle(key):
    return lambda pixels, ys: pickle.dumps({key("data"): pixels, key("labels"): ys.tolist()}, 4)


@pytest.mark.parametrize(
    "dump",
    [python2_pickle, modern_pickle(str), modern_pickle(str.encode)],
    ids=["python2", "text", "bytes"],
)
def test_cifar_pickles_of_every_age(tmp_path, dump):
    for name, seed in (("data_batch_1", 0), ("data_batch_2", 1), ("test_batch", 2)):
        (tmp_path / name).write_bytes(dump(*batch(4, seed)))
    (tmp_path / "batches.meta").write_bytes(b"not looked at")
    data = load("cifar10", tmp_path)
    assert (data.samples, data.test_samples) == (8, 4)
    assert (data.train_inputs[4:].reshape(4, -1) == batch(4, 1)[0]).all()
    assert data.train_targets.tolist() == [0, 1, 2, 3] * 2


class Trap:
    """Unpickling it would make a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_pickle_runs_nothing(tmp_path):
    sprung = tmp_path / "sprung"
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({"data": Trap(sprung)}))
    message = refused("mkdir, which is not loaded from data", "cifar10", tmp_path)
    assert "data_batch_1" in message
    assert not sprung.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"data": batch(2)[0], "fine_labels": [1, 2]}, "this is CIFAR-100; expected CIFAR-10"),
        ({b"data": batch(2)[0], b"fine_labels": [1, 2]}, "this is CIFAR-100"),
        ({"data": batch(2)[0]}, "expected the keys data and labels, found: data"),
        ({"data": batch(2)[0], "labels": [1]}, "1 labels for 2 images"),
        ({"data": batch(2)[0], "labels": [1, 10]}, "label 10: CIFAR-10 has 0 to 9"),
        ({"data": batch(2)[0], "labels": [-1, 1]}, "label -1"),
        ({"data": batch(2)[0], "labels": [1, 2.5]}, "not a list of whole numbers"),
        ({"data": batch(2)[0], "labels": [1, [2]]}, "not a list of whole numbers"),
        ({"data": batch(2)[0].astype(float), "labels": [1, 2]}, "data is float64 (2, 3072)"),
        ({"data": batch(2)[0][:, 1:], "labels": [1, 2]}, "data is uint8 (2, 3071)"),
        ({"data": batch(0)[0], "labels": []}, "0 labels for 0 images"),
        ([1, 2], "no dictionary in it"),
    ],
)
def test_foreign_pickles_are_named(tmp_path, content, message):
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps(content, 4))
    assert str(path) in refused(message, "cifar10", tmp_path)


@pytest.mark.parametrize("length", [0, 1, 100, -1])
def test_truncated_pickles_are_named(tmp_path, length):
    path = tmp_path / "data_batch_1"
    path.write_bytes(modern_pickle(str)(*batch(4))[:length])
    assert str(path) in refused("not a CIFAR-10 batch", "cifar10", tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (binary(*batch(4))[:-1], "truncated or foreign: 12291 bytes are no records of 3073"),
        (b"", "truncated or foreign: 0 bytes"),
        (bytes(3074 * 5), "this is CIFAR-100; expected CIFAR-10"),
        (bytes([11]) + bytes(3072), "label 11: CIFAR-10 has 0 to 9 (CIFAR-100, or"),
        (gzip.compress(binary(*batch(4)))[:-9], "truncated: the gzip data end too early"),
    ],
)
def test_damaged_binary_files_are_named(tmp_path, content, message):
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(content)
    assert str(path) in refused(message, "cifar10", tmp_path)


def test_incomplete_cifar_folders_are_named(tmp_path):
    refused("no training batch in it; expected an unpacked folder", "cifar10", tmp_path)
    path = tmp_path / "test_batch.bin"
    path.write_bytes(binary(*batch(4)))
    refused("no training batch in it", "cifar10", tmp_path)
    refused("expected a folder", "cifar10", path)
