"""NumPy arrays of the user: a folder of files, read as they are needed, or one .npz file."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from allreduce.files import regular
from mpisgd.data import DataOptions, Dataset
from mpisgd.data.files import check_labels, npz
from mpisgd.data.split import held_back, limited
from mpisgd.values.errors import UsageError

FORMAT = (
    "a folder with train_inputs.npy and test_inputs.npy (samples, channels, height, width), uint8 "
    "or float32, and train_targets.npy and test_targets.npy (samples,), whole numbers from 0"
)
KEYS = ("train_inputs", "train_targets", "test_inputs", "test_targets")
NPZ = (
    "train_inputs (samples, channels, height, width) or (samples, features), uint8 or float32, and "
    "train_targets (samples,), whole numbers from 0; test_inputs and test_targets, or a tenth of "
    "the samples is held back"
)


def load_arrays(name: str, options: DataOptions) -> Dataset:
    """The inputs stay in their files, mapped; uint8 is scaled to 0 .. 1. Classes: the largest
    target and those below."""
    options.refuse(name, "held_back", "features", "classes")
    folder = options.needed_path(name, FORMAT)
    arrays = {key: _read(folder / f"{key}.npy") for key in KEYS}
    check({str(folder / f"{key}.npy"): arrays[key] for key in KEYS}, FORMAT)
    train, labels, test, answers = arrays.values()
    dataset = _dataset(name, str(folder), (train, labels, test, answers, "the test files"))
    return limited(dataset, options.samples)


def load_npz(path: str, options: DataOptions) -> Dataset:
    """The arrays of one file in memory, uint8 scaled and classes counted as `load_arrays` does."""
    options.refuse(path, "path", "held_back", "features", "classes")
    arrays = npz(Path(path), NPZ)
    wanted = KEYS if set(KEYS[2:]) & arrays.keys() else KEYS[:2]
    for key in (*wanted, *arrays):
        if key not in arrays or key not in KEYS:
            what = "no array" if key not in arrays else "a foreign array"
            raise UsageError(path, None, f"{what} {key} in it; expected {NPZ}")
    check({f"{path}: {key}": arrays[key] for key in wanted}, NPZ)
    if len(wanted) == 2:
        parts = held_back(arrays[KEYS[0]], arrays[KEYS[1]], replace(options, path=Path(path)))
    else:
        train, labels, test, answers = (arrays[key] for key in KEYS)
        parts = train, labels, test, answers, "the test arrays"
    return limited(_dataset(path, path, parts), options.samples)


def _dataset(
    name: str, place: str, parts: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, str]
) -> Dataset:
    train, labels, test, answers, split = parts
    if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
        raise UsageError(place, None, "training and test inputs differ in shape or type")
    return Dataset(
        name=name,
        train_inputs=train,
        train_targets=np.asarray(labels, np.int64),
        test_inputs=test,
        test_targets=np.asarray(answers, np.int64),
        classes=int(max(labels.max(), answers.max())) + 1,
        attribution="arrays of the user",
        split=split,
        scale=1 / 255 if train.dtype == np.uint8 else 1.0,
    )


def _read(path: Path) -> np.ndarray:
    """The array in a file, mapped. A damaged header can raise nearly anything."""
    try:
        with regular(path) as file:
            if file.read(6) != np.lib.format.MAGIC_PREFIX:
                raise UsageError(str(path), None, f"not a readable npy file; expected {FORMAT}")
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise UsageError(str(path), None, f"not found; expected {FORMAT}") from None
    except UsageError:
        raise
    except Exception as error:
        message = f"not a readable npy file ({type(error).__name__}: {error})"
        raise UsageError(str(path), None, message) from None


def check(arrays: Mapping[str, np.ndarray], expected: str) -> None:
    """UsageError unless these are, by their places, inputs, their targets, inputs, targets .."""
    named = list(arrays.items())
    for (place, inputs), (labels, targets) in zip(named[::2], named[1::2], strict=True):
        found = f"{inputs.dtype} {inputs.shape}"
        if inputs.dtype not in (np.uint8, np.float32) or inputs.ndim < 2 or not inputs.size:
            raise UsageError(place, None, f"{found}; expected {expected}")
        check_labels(labels, targets, len(inputs))
