"""Data sets that need no file, and the real ones where they are."""

import os
from pathlib import Path

import numpy as np
import pytest
from data_files import refused

from mpisgd.data import DATASETS, load
from mpisgd.values.registry import resolve


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


def test_documents_follow_their_sizes_and_seed():
    first, same, other = (load("documents", samples=90, features=50, seed=s) for s in (1, 1, 2))
    assert first.train_inputs.shape[0] == 90
    assert first.test_samples == 10
    assert first.train_inputs.tobytes() == same.train_inputs.tobytes()
    assert first.train_inputs.tobytes() != other.train_inputs.tobytes()
    words, _ = first.batch(np.arange(90))
    assert words.dtype == np.float32
    assert set(np.unique(words)) <= {-1, *range(50)}
    lengths = (words >= 0).sum(axis=1)
    assert lengths.min() >= 10
    assert np.array_equal(words >= 0, np.arange(words.shape[1]) < lengths[:, None])


def test_documents_have_zipfs_law_and_words_of_their_class():
    data = load("documents", samples=4000, features=1000, classes=4)
    words, classes = data.batch(np.arange(4000))
    counts = np.array([np.bincount(words[(classes == c)[:, None] & (words >= 0)].astype(int),
                                   minlength=1000) for c in range(4)])  # fmt: skip
    frequent = counts.sum(axis=0)
    assert frequent[0] / frequent[9] == pytest.approx(10, rel=0.1)  # of those that are nobody's
    own = counts[:, 100:].max(axis=0) / counts[:, 100:].sum(axis=0)
    expected = 5 / (5 + 3)  # of a word's, in the class that prefers it
    assert np.average(own, weights=frequent[100:]) == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize(
    ("name", "path", "options", "message"),
    [
        ("documents", "somewhere", {}, "documents takes no path"),
        ("imagenet", None, {}, "--data 'imagenet': one of digits"),
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
