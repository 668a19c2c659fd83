"""Arrays in files: read as needed, every mistake one line."""

from pathlib import Path

import numpy as np
import pytest

from mpisgd.data import load
from mpisgd.data.files import listing, opened
from mpisgd.values.errors import UsageError


def folder(path, dtype=np.uint8, shape=(3, 4, 4), targets=(0, 2, 1)):
    for split in ("train", "test"):
        inputs = np.arange(len(targets) * np.prod(shape)).reshape(len(targets), *shape)
        np.save(path / f"{split}_inputs.npy", inputs.astype(dtype))
        np.save(path / f"{split}_targets.npy", np.array(targets))
    return path


@pytest.mark.parametrize(("dtype", "scale"), [(np.uint8, 1 / 255), (np.float32, 1.0)])
def test_samples_come_from_the_files(tmp_path, dtype, scale):
    dataset = load("arrays", folder(tmp_path, dtype))
    assert isinstance(dataset.train_inputs, np.memmap)
    assert (dataset.samples, dataset.test_samples, dataset.classes) == (3, 3, 3)
    inputs, targets = dataset.batch(np.array([2, 0]))
    assert inputs.dtype == np.float32
    assert inputs[1, 0, 0, 3] == pytest.approx(3 * scale)
    assert targets.tolist() == [1, 0]
    assert load("arrays", tmp_path, samples=2).samples == 2


def test_mistakes_name_the_file(tmp_path):
    with pytest.raises(UsageError, match=r"train_inputs\.npy: not found; expected a folder with"):
        load("arrays", tmp_path)
    for change, message in {
        "float64": "train_inputs.npy: float64",
        "negative": "train_targets.npy: label -1: labels are 0 to 1048575",
        "pickle": "train_targets.npy: not a readable npy file",
    }.items():
        folder(tmp_path)
        if change == "float64":
            folder(tmp_path, np.float64)
        elif change == "negative":
            np.save(tmp_path / "train_targets.npy", np.array([0, -1, 2]))
        else:
            np.save(tmp_path / "train_targets.npy", np.array([{}]), allow_pickle=True)
        with pytest.raises(UsageError, match=message):
            load("arrays", tmp_path)
    folder(tmp_path)
    np.save(tmp_path / "test_inputs.npy", np.zeros((3, 3, 4, 5), np.uint8))
    with pytest.raises(UsageError, match="differ in shape"):
        load("arrays", tmp_path)


def test_what_the_system_refuses_to_read_is_named(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=rf"{tmp_path}: Is a directory"), opened(tmp_path):
        pass

    def fail(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", fail)
    with pytest.raises(UsageError, match=rf"{tmp_path}: Permission denied"):
        listing(tmp_path)
