"""Shards as properties; loaders on small files of every spelling and with every damage."""

import gzip
import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpisgd.data import DATASETS, load
from mpisgd.data.shards import Sampler
from mpisgd.errors import UsageError
from mpisgd.registry import resolve


def refused(message, name, path=None, **options):
    """Loading is refused by one line that contains `message`."""
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        load(name, path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- shards


dealt = given(st.integers(1, 200), st.integers(1, 17), st.integers(1, 9), st.integers(0, 3))


@dealt
@settings(max_examples=150, deadline=None)
def test_an_epoch_is_the_permutation_dealt_once(samples, size, batch, epoch):
    sampler = Sampler(samples, size, batch, seed=5)
    first = epoch * sampler.steps_per_epoch + 1
    seen = []
    for step in range(first, first + sampler.steps_per_epoch):
        assert sampler.epoch(step) == epoch
        pieces = [sampler.indices(step, rank) for rank in range(size)]
        sizes = sampler.batch_sizes(step)
        assert sizes == tuple(len(piece) for piece in pieces)
        assert max(sizes) <= batch
        assert max(sizes) - min(sizes) <= 1
        assert sum(sizes) > 0
        seen += [index for piece in pieces for index in piece]
        assert sampler.samples_until(step) == epoch * samples + len(seen)
    assert sorted(seen) == list(range(samples))
    whole = np.random.default_rng((5, epoch)).permutation(samples)
    assert seen == whole.tolist()


@dealt
@settings(max_examples=60, deadline=None)
def test_ranks_together_see_what_one_rank_with_the_whole_batch_sees(samples, size, batch, seed):
    many, one = Sampler(samples, size, batch, seed), Sampler(samples, 1, size * batch, seed)
    assert many.steps_per_epoch == one.steps_per_epoch
    for step in range(1, 2 * one.steps_per_epoch + 1):
        together = np.concatenate([many.indices(step, rank) for rank in range(size)])
        assert together.tolist() == one.indices(step, 0).tolist()


def test_fewer_samples_than_ranks():
    sampler = Sampler(3, 8, 4)
    assert sampler.steps_per_epoch == 1
    assert sampler.batch_sizes(1) == (0, 0, 1, 0, 0, 1, 0, 1)
    assert sampler.samples_until(0) == 0


def test_epochs_and_seeds_shuffle_differently_and_going_back_is_possible():
    sampler = Sampler(100, 2, 25, seed=1)
    first, second = sampler.indices(1, 0).copy(), sampler.indices(3, 0).copy()
    assert first.tolist() != second.tolist()
    assert sampler.indices(1, 0).tolist() == first.tolist()
    assert Sampler(100, 2, 25, seed=2).indices(1, 0).tolist() != first.tolist()


def test_nobody_can_spoil_the_permutation():
    with pytest.raises(ValueError, match="read-only"):
        Sampler(10, 1, 5).indices(1, 0)[0] = 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 1), "samples 0"),
        ((5, 0, 1), "ranks 0"),
        ((5, 1, 0), "--batch 0"),
        ((5, 1, 1, -1), "--seed -1"),
    ],
)
def test_impossible_shards_are_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        Sampler(*arguments)


# --- data sets that need no file


def test_digits():
    digits = load("digits")
    assert (digits.samples, digits.test_samples, digits.classes) == (1437, 360, 10)
    assert digits.features == 64
    assert "CC BY 4.0" in digits.attribution
    inputs, targets = digits.batch(np.arange(1437))
    assert inputs.dtype == np.float32
    assert targets.dtype == np.int64
    assert inputs.shape == (1437, 1, 8, 8)
    assert (inputs.min(), inputs.max()) == (0, 1)
    tests, labels = digits.test(0, 360)
    assert np.bincount(np.concatenate([targets, labels])).tolist() == [
        178, 182, 177, 183, 181, 182, 181, 179, 174, 180,
    ]  # fmt: skip
    assert len({row.tobytes() for row in np.concatenate([inputs, tests])}) == 1797


def test_digits_are_those_of_their_source():
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed")
    source = datasets.load_digits()
    digits = load("digits")
    test = np.sort(np.random.default_rng(20200606).permutation(1797)[-360:])
    train = np.setdiff1d(np.arange(1797), test)
    for indices, images, labels in (
        (train, digits.train_inputs, digits.train_targets),
        (test, digits.test_inputs, digits.test_targets),
    ):
        assert (images[:, 0] == source.images[indices]).all()
        assert (labels == source.target[indices]).all()


def test_batches_are_the_samples_asked_for():
    digits = load("digits")
    indices = np.array([5, 0, 5])
    inputs, targets = digits.batch(indices)
    assert (inputs == digits.train_inputs[indices] / 16).all()
    assert (targets == digits.train_targets[indices]).all()
    inputs, targets = digits.test(350, 360)
    assert (inputs == digits.test_inputs[350:] / 16).all()
    assert (targets == digits.test_targets[350:]).all()
    assert len(digits.batch(np.arange(0))[1]) == len(digits.test(7, 7)[1]) == 0


@pytest.mark.parametrize("name", ["synthetic", "noise"])
def test_made_up_data_follow_their_sizes_and_seed(name):
    first, same, other = (load(name, samples=90, features=7, seed=s) for s in (1, 1, 2))
    assert first.train_inputs.shape == (90, 7)
    assert first.test_inputs.shape == (10, 7)
    assert first.train_inputs.dtype == np.float32
    assert first.train_inputs.tobytes() == same.train_inputs.tobytes()
    assert first.train_inputs.tobytes() != other.train_inputs.tobytes()
    assert load(name, samples=3, held_back=0.5).test_samples == 3


def test_blobs_can_be_told_apart():
    blobs = load("synthetic", samples=2000, classes=5)
    inputs, targets = blobs.batch(np.arange(2000))
    assert set(targets) == set(range(5))
    centres = np.array([inputs[targets == c].mean(axis=0) for c in range(5)])
    tests, labels = blobs.test(0, blobs.test_samples)
    nearest = ((tests[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == labels).mean() > 0.95


@pytest.mark.parametrize(
    ("name", "path", "options", "message"),
    [
        ("imagenet", None, {}, "--data 'imagenet': choose from digits"),
        ("digits", "somewhere", {}, "digits takes no path"),
        ("digits", None, {"held_back": 0.2}, "digits takes no held_back"),
        ("digits", None, {"samples": 0}, "samples of data set digits 0"),
        ("digits", None, {"samples": 1438}, "1438: at most the 1437"),
        ("noise", None, {"classes": 3}, "noise takes no classes"),
        ("synthetic", None, {"held_back": 1.0}, "held_back of data set synthetic 1.0"),
        ("synthetic", None, {"features": -1}, "features of data set synthetic -1"),
        ("mnist", None, {}, "--data-path: data set mnist needs it: a folder with IDX files"),
        ("mnist", "/does/not/exist", {}, "/does/not/exist: not found; expected a folder"),
        ("cifar10", None, {}, "cifar10 needs it"),
        ("cifar10", "/does/not/exist", {}, "/does/not/exist: not found"),
    ],
)
def test_impossible_wishes_are_refused(name, path, options, message):
    refused(message, name, path, **options)


def test_samples_cuts_the_training_set_only():
    cut, whole = load("digits", samples=10), load("digits")
    assert (cut.samples, cut.test_samples) == (10, 360)
    assert (cut.train_inputs == whole.train_inputs[:10]).all()
    assert cut.train_inputs.base is None


# --- IDX files


def images(count, seed=0, size=(4, 3)):
    return np.random.default_rng(seed).integers(0, 256, (count, *size), np.uint8)


def idx(array):
    magic = bytes([0, 0, 8, array.ndim])
    return magic + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


def write_pair(folder, split, xs, ys, middle="", dot="-", pack=True):
    for kind, array, dimensions in (("images", xs, 3), ("labels", ys, 1)):
        content = idx(array)
        name = f"{split}-{kind}{middle}{dot}idx{dimensions}-ubyte"
        if pack:
            name, content = name + ".gz", gzip.compress(content)
        (folder / name).write_bytes(content)


def labels(count):
    return (np.arange(count) % 10).astype(np.uint8)


@pytest.mark.parametrize("dot", ["-", "."])
@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "idx"])
def test_idx_in_every_spelling(tmp_path, name, pack, dot):
    xs, tests = images(20), images(5, seed=1)
    write_pair(tmp_path, "train", xs, labels(20), dot=dot, pack=pack)
    write_pair(tmp_path, "t10k", tests, labels(5), dot=dot, pack=pack)
    data = load(name, tmp_path)
    assert data.name == name
    assert data.classes == 10
    assert data.split == "the test files"
    assert (data.train_inputs[:, 0] == xs).all()
    assert (data.test_inputs[:, 0] == tests).all()
    inputs, targets = data.batch(np.array([3]))
    np.testing.assert_allclose(inputs[0, 0], xs[3] / 255, rtol=1e-6)
    assert targets.tolist() == [3]
    assert data.test(2, 5)[1].tolist() == [2, 3, 4]
    refused("takes no held_back", name, tmp_path, held_back=0.2)


def test_parts_are_joined_in_natural_order(tmp_path):
    xs = images(22)
    for part in range(11):
        some = slice(2 * part, 2 * part + 2)
        write_pair(tmp_path, "train", xs[some], labels(22)[some], middle=f"-part{part}")
    data = load("mnist", tmp_path)
    assert (data.samples, data.test_samples) == (20, 2)
    joined = np.concatenate([data.train_inputs, data.test_inputs])[:, 0]
    order = np.concatenate([data.train_targets, data.test_targets])
    where = [[(x == row).all() for x in xs].index(True) for row in joined]
    assert sorted(where) == list(range(22))
    assert where[:20] == sorted(where[:20])  # the files' order is kept
    assert (order == labels(22)[where]).all()
    assert "2 of 22 samples held back" in data.split
    assert load("mnist", tmp_path, held_back=0.5).test_samples == 11


def test_the_held_back_samples_do_not_depend_on_the_seed(tmp_path):
    write_pair(tmp_path, "train", images(50), labels(50))
    first, second = (load("mnist", tmp_path, seed=seed) for seed in (0, 1))
    assert first.test_inputs.tobytes() == second.test_inputs.tobytes()
    limited = load("mnist", tmp_path, samples=7)
    assert limited.test_inputs.tobytes() == first.test_inputs.tobytes()
    assert (limited.train_inputs == first.train_inputs[:7]).all()


def test_packed_and_unpacked_copies_are_one_file_and_names_may_lie(tmp_path):
    xs = images(20)
    write_pair(tmp_path, "train", xs, labels(20), pack=True)
    write_pair(tmp_path, "train", xs, labels(20), pack=False)
    assert load("idx", tmp_path, held_back=0.5).samples == 10
    plain, packed = (tmp_path / f"train-images-idx3-ubyte{end}" for end in ("", ".gz"))
    plain.write_bytes(packed.read_bytes())  # gzip without saying so
    assert load("idx", tmp_path, held_back=0.5).samples == 10
    plain.unlink()
    packed.write_bytes(idx(xs))  # unpacked on the way, the name kept
    assert load("idx", tmp_path, held_back=0.5).samples == 10


def test_classes_of_any_idx_are_counted(tmp_path):
    write_pair(tmp_path, "train", images(20), labels(20) + 16)
    assert load("idx", tmp_path).classes == 26
    refused("mnist has the labels 0 to 9", "mnist", tmp_path)


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        (IMAGES, lambda b: b[:-1], "truncated: 239 bytes of data where its header promises 240"),
        (IMAGES, lambda b: b + b"\0", "longer than the 240 bytes"),
        (IMAGES, lambda b: b[:10], "truncated: shorter than the header of IDX images"),
        (IMAGES, lambda b: b"", "truncated: shorter than the header"),
        (IMAGES, lambda b: b"\x89PNG" + b[4:], "not IDX images (0x00000803): it starts with 0x89"),
        (IMAGES, lambda b: b[:4] + b"\xff" + b[5:], "truncated: far shorter than its header"),
        (IMAGES, lambda b: gzip.compress(b)[:-20], "truncated: the gzip data end too early"),
        (IMAGES, lambda b: gzip.compress(b)[:-8] + bytes(8), "damaged gzip data"),
        (IMAGES, lambda b: b"\x1f\x8b" + b[2:], "damaged gzip data"),
        (IMAGES, lambda b: idx(images(0)), "there are no images in it"),
        (LABELS, lambda b: idx(images(20)), "not IDX labels (0x00000801)"),
        (LABELS, lambda b: idx(labels(19)), "19 labels, but 20 images in train-images"),
        (LABELS, lambda b: b[:-3], "truncated: 17 bytes of data"),
    ],
)
def test_damaged_idx_files_are_named(tmp_path, file, damage, message):
    write_pair(tmp_path, "train", images(20), labels(20), pack=False)
    path = tmp_path / file
    path.write_bytes(damage(path.read_bytes()))
    if message.startswith("there are"):
        (tmp_path / LABELS).write_bytes(idx(labels(0)))
    assert str(path) in refused(message, "mnist", tmp_path)


def test_incomplete_folders_are_named(tmp_path):
    refused("no IDX file in it; expected a folder", "mnist", tmp_path)
    (tmp_path / "notes.txt").write_text("nothing")
    refused("no IDX file in it", "mnist", tmp_path)
    refused("not a readable npz", "mnist", tmp_path / "notes.txt")
    write_pair(tmp_path, "t10k", images(4), labels(4))
    refused("no train-images file", "mnist", tmp_path)
    write_pair(tmp_path, "train", images(4), labels(4), middle="-part1", pack=False)
    (tmp_path / "train-labels-part1-idx1-ubyte").unlink()
    refused("train-labels-part1-idx1-ubyte (or .gz) is missing", "mnist", tmp_path)
    write_pair(tmp_path, "train", images(4), labels(4), middle="-part1", pack=False)
    (tmp_path / "train-images-part1-idx3-ubyte").unlink()
    refused("train-images-part1-idx3-ubyte (or .gz) is missing", "mnist", tmp_path)


def test_images_of_different_sizes_are_refused(tmp_path):
    write_pair(tmp_path, "train", images(4), labels(4), middle="-part0")
    write_pair(tmp_path, "train", images(4, size=(3, 3)), labels(4), middle="-part1")
    refused("its images are (3, 3), those of train-images-part0", "idx", tmp_path)
    write_pair(tmp_path, "train", images(4), labels(4), middle="-part1")
    write_pair(tmp_path, "t10k", images(4, size=(3, 3)), labels(4))
    refused("training and test images differ in size", "idx", tmp_path)


def test_one_sample_cannot_be_split(tmp_path):
    write_pair(tmp_path, "train", images(1), labels(1))
    refused("too few to hold some back", "idx", tmp_path)


# --- Keras' mnist.npz


def keras(**changes):
    arrays = {
        "x_train": images(20),
        "y_train": labels(20),
        "x_test": images(5),
        "y_test": labels(5),
    }
    arrays.update(changes)
    return {key: value for key, value in arrays.items() if value is not None}


def test_keras_npz_as_file_and_in_a_folder(tmp_path):
    path = tmp_path / "mnist.npz"
    np.savez_compressed(path, **keras())
    for place in (path, tmp_path):
        data = load("mnist", place)
        assert (data.samples, data.test_samples) == (20, 5)
        assert data.batch(np.array([4]))[1].tolist() == [4]
    np.savez(path, **keras(x_test=None, y_test=None))
    assert load("mnist", path).test_samples == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_train": None}, "no array y_train in it; it has ['x_test', 'x_train', 'y_test']"),
        ({"y_test": None}, "no array y_test"),
        ({"x_train": images(20).astype(float)}, "x_train is float64 (20, 4, 3); expected uint8"),
        ({"y_train": labels(19)}, "y_train is uint8 (19,); expected 20 labels"),
        ({"y_train": labels(20).astype(float)}, "y_train is float64"),
        ({"y_train": labels(20).astype(int) - 1}, "expected 20 labels from 0 up"),
        ({"y_train": np.array([{}] * 20)}, "not a readable npz file without pickles"),
    ],
)
def test_foreign_npz_files_are_named(tmp_path, changes, message):
    path = tmp_path / "mnist.npz"
    np.savez(path, **keras(**changes))
    assert str(path) in refused(message, "mnist", path)


@pytest.mark.parametrize("damage", [lambda b: b[:-30], lambda b: b[:500], lambda b: b""])
def test_damaged_npz_files_are_named(tmp_path, damage):
    path = tmp_path / "mnist.npz"
    np.savez(path, **keras())
    path.write_bytes(damage(path.read_bytes()))
    assert str(path) in refused("not a readable npz file", "mnist", path)


# --- CIFAR-10


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
    "dump", [python2_pickle, modern_pickle(str), modern_pickle(str.encode)], ids=str
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


# --- the real ones, where they lie beside the checkout


@pytest.mark.parametrize(("name", "samples"), [("mnist", 60_000), ("cifar10", 9_990)])
def test_real_files(name, samples):
    beside = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("MPISGD_DATA", beside)) / name
    if not folder.is_dir():
        pytest.skip(f"no folder {name} in MPISGD_DATA or in ../shared/data")
    data = load(name, folder, samples=100)
    assert data.test_samples == samples // 10
    counts = np.bincount(data.test_targets, minlength=10)
    assert counts.min() > 0.08 * data.test_samples


@pytest.mark.parametrize("name", DATASETS)
def test_every_row_of_the_table_names_a_loader(name):
    assert callable(resolve(DATASETS, name, "--data"))
