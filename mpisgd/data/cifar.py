"""CIFAR-10 in its binary and in its Python-pickle layout. It is the user's: it has no licence."""

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np

from mpisgd.data import DataOptions, Dataset
from mpisgd.data.files import listing, opened
from mpisgd.data.split import held_back, limited
from mpisgd.values.errors import UsageError

PIXELS = 3 * 32 * 32
RECORD = 1 + PIXELS
FORMAT = "an unpacked folder with CIFAR-10's *.bin (or .bin.gz) or data_batch_* files"
ATTRIBUTION = "CIFAR-10, A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"
HUNDRED = "this is CIFAR-100; expected CIFAR-10"
BINARY = re.compile(r"(.*)\.bin(?:\.gz)?")
PICKLED = re.compile(r"data_batch_\d+|test_batch")
# All that a pickled batch may ask for. NumPy 2 writes numpy._core, older ones numpy.core.
ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
}


def load_cifar10(name: str, options: DataOptions) -> Dataset:
    """Inputs (3, 32, 32) in 0 .. 1, planes R, G, B. Without a test batch, a tenth is held back."""
    options.refuse(name, "features", "classes")
    folder = options.needed_path(name, FORMAT)
    files, read = _choose(folder)
    training = [path for path in files if not path.name.startswith("test")]
    testing = [path for path in files if path.name.startswith("test")]
    if not training:
        raise UsageError(str(folder), None, f"no training batch in it; expected {FORMAT}")
    images, labels = _joined([read(path) for path in training])
    if testing:
        options.refuse(f"{name} with a test batch", "held_back")
        test = _joined([read(path) for path in testing])
        parts = (images, labels, *test, "the test batch")
    else:
        parts = held_back(images, labels, options)
    train_inputs, train_targets, test_inputs, test_targets, split = parts
    dataset = Dataset(
        name=name,
        train_inputs=train_inputs,
        train_targets=train_targets,
        test_inputs=test_inputs,
        test_targets=test_targets,
        classes=10,
        attribution=ATTRIBUTION,
        split=split,
        scale=1 / 255,
    )
    return limited(dataset, options.samples)


def _choose(folder: Path) -> tuple[list[Path], Any]:
    """(files, the function that reads one of them): the binary layout, else the pickled one."""
    there = listing(folder)
    stems: dict[str, Path] = {}
    for path in there:
        match = BINARY.fullmatch(path.name)
        # Packed and unpacked copies side by side are one file: the unpacked.
        if match and (match[1] not in stems or path.suffix == ".bin"):
            stems[match[1]] = path
    if stems:
        return list(stems.values()), _read_binary
    return [path for path in there if PICKLED.fullmatch(path.name)], _read_pickle


def _joined(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def _read_binary(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Records of one label byte and 3,072 pixel bytes, without a header."""
    with opened(path) as stream:
        content = stream.read()
    if not content or len(content) % RECORD:
        if content and len(content) % (RECORD + 1) == 0:
            raise UsageError(str(path), None, HUNDRED)
        message = f"truncated or foreign: {len(content)} bytes are no records of {RECORD}"
        raise UsageError(str(path), None, message)
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    return _checked(path, records[:, 1:], records[:, 0])


def _read_pickle(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """A pickled dict; its keys are bytes or str, depending on who saved it last."""
    with opened(path) as stream:
        # A damaged pickle can raise nearly anything, MemoryError and AttributeError included.
        try:
            content = Restricted(stream, encoding="bytes").load()
        except Exception as error:
            message = f"not a CIFAR-10 batch ({type(error).__name__}: {error})"
            raise UsageError(str(path), None, message) from None
    if not isinstance(content, dict):
        raise UsageError(str(path), None, "not a CIFAR-10 batch: no dictionary in it")
    named = {k.decode("latin1") if isinstance(k, bytes) else k: v for k, v in content.items()}
    if "fine_labels" in named:
        raise UsageError(str(path), None, HUNDRED)
    data, labels = named.get("data"), named.get("labels")
    if not isinstance(data, np.ndarray) or not isinstance(labels, list | np.ndarray):
        keys = ", ".join(map(str, named))
        raise UsageError(str(path), None, f"expected the keys data and labels, found: {keys}")
    if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != PIXELS:
        message = f"data is {data.dtype} {data.shape}; expected uint8 (samples, {PIXELS})"
        raise UsageError(str(path), None, message)
    # Not np.array(labels): of ragged or foreign lists it makes errors and arrays of objects.
    if not all(isinstance(label, int | np.integer) for label in labels):
        raise UsageError(str(path), None, "its labels are not a list of whole numbers")
    return _checked(path, data, np.array([int(label) for label in labels], object))


def _checked(path: Path, data: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(images (samples, 3, 32, 32), labels uint8): one label for each image, all of 0 .. 9."""
    if labels.shape != (len(data),) or not len(data):
        raise UsageError(str(path), None, f"{labels.size} labels for {len(data)} images")
    wrong = labels[(labels < 0) | (labels > 9)]
    if wrong.size:
        message = f"label {wrong[0]}: CIFAR-10 has 0 to 9 (CIFAR-100, or a damaged file)"
        raise UsageError(str(path), None, message)
    return data.reshape(-1, 3, 32, 32), labels.astype(np.uint8)


class Restricted(pickle.Unpickler):
    """Unpickles arrays and plain values; refuses to look up anything else, let alone call it."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED[module, name]
        except KeyError:
            message = f"it asks for {module}.{name}, which is not loaded from data"
            raise pickle.UnpicklingError(message) from None
