"""IDX files, and Keras' file of MNIST, in every spelling and with every damage."""

import gzip

import numpy as np
import pytest
from data_files import idx, images, labels, refused, write_pair

from mpisgd.data import load

# --- IDX files


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
        ({"y_train": labels(19)}, "y_train: uint8 (19,) (label 0); expected 20 whole numbers"),
        ({"y_train": labels(20).astype(float)}, "y_train: float64 (20,) (label 0.0)"),
        ({"y_train": labels(20).astype(int) - 1}, "y_train: label -1: labels are 0 to"),
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


def test_a_text_file_is_told_what_was_expected(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("not at all")
    assert "pickle" not in refused("not a readable npz file; expected a folder", "mnist", path)
