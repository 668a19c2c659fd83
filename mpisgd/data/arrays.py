"""NumPy arrays in files, read as they are needed: data sets that no memory would hold."""

from pathlib import Path

import numpy as np

from allreduce.files import regular
from mpisgd.data import DataOptions, Dataset
from mpisgd.data.files import check_labels
from mpisgd.data.split import limited
from mpisgd.values.errors import UsageError

FORMAT = (
    "a folder with train_inputs.npy and test_inputs.npy (samples, channels, height, width), uint8 "
    "or float32, and train_targets.npy and test_targets.npy (samples,), whole numbers from 0"
)


def load_arrays(name: str, options: DataOptions) -> Dataset:
    """The inputs stay in their files, mapped; uint8 is scaled to 0 .. 1. Classes: the largest
    target and those below."""
    options.refuse(name, "held_back", "features", "classes")
    folder = options.needed_path(name, FORMAT)
    parts = {}
    for split in ("train", "test"):
        inputs, targets = (_read(folder / f"{split}_{kind}.npy") for kind in ("inputs", "targets"))
        _check(folder, split, inputs, targets)
        parts[split] = inputs, np.asarray(targets, np.int64)
    (train, labels), (test, answers) = parts["train"], parts["test"]
    if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
        raise UsageError(str(folder), None, "training and test inputs differ in shape or type")
    dataset = Dataset(
        name=name,
        train_inputs=train,
        train_targets=labels,
        test_inputs=test,
        test_targets=answers,
        classes=int(max(labels.max(), answers.max())) + 1,
        attribution="arrays of the user",
        split="the test files",
        scale=1 / 255 if train.dtype == np.uint8 else 1.0,
    )
    return limited(dataset, options.samples)


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


def _check(folder: Path, split: str, inputs: np.ndarray, targets: np.ndarray) -> None:
    """UsageError unless these are inputs and their targets."""
    found = f"{inputs.dtype} {inputs.shape}"
    if inputs.dtype not in (np.uint8, np.float32) or inputs.ndim < 2 or not inputs.size:
        raise UsageError(str(folder / f"{split}_inputs.npy"), None, f"{found}; expected {FORMAT}")
    place = str(folder / f"{split}_targets.npy")
    check_labels(place, targets, len(inputs))
