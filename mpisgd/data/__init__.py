"""Data sets: arrays in memory, split into training and test samples.

Adding one: a function (name, options) -> Dataset, and one row.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpisgd.values.errors import UsageError
from mpisgd.values.registry import resolve

DATASETS = {
    "digits": "mpisgd.data.digits:load_digits",
    "mnist": "mpisgd.data.idx:load_idx",
    "fashion-mnist": "mpisgd.data.idx:load_idx",
    "idx": "mpisgd.data.idx:load_idx",
    "cifar10": "mpisgd.data.cifar:load_cifar10",
    "arrays": "mpisgd.data.arrays:load_arrays",
    "synthetic": "mpisgd.data.synthetic:load_blobs",
    "noise": "mpisgd.data.synthetic:load_noise",
    "documents": "mpisgd.data.synthetic:load_documents",
}


@dataclass(frozen=True)
class Dataset:
    """Samples and how to read them. Inputs may be stored as uint8: a quarter of the memory.

    train_inputs, test_inputs: (samples, channels, height, width) uint8, or (samples, features)
    float32; `batch` and `test` give them as float32, times `scale`: images lie in 0 .. 1.
    train_targets, test_targets: (samples,) integers in 0 .. classes - 1.
    """

    name: str
    train_inputs: np.ndarray
    train_targets: np.ndarray
    test_inputs: np.ndarray
    test_targets: np.ndarray
    classes: int  # 0: nothing to classify
    attribution: str
    split: str  # where the test samples come from
    scale: float = 1.0

    @property
    def samples(self) -> int:
        """How many training samples there are."""
        return len(self.train_targets)

    @property
    def test_samples(self) -> int:
        return len(self.test_targets)

    @property
    def features(self) -> int:
        """Numbers in one input."""
        return math.prod(self.train_inputs.shape[1:])

    def batch(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The training samples `indices` (rows,): inputs (rows, ...) float32, targets int64."""
        targets = self.train_targets[indices].astype(np.int64, copy=False)
        return self._scaled(self.train_inputs[indices]), targets

    def test(self, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
        """Test samples low .. high - 1, as `batch` gives them."""
        targets = self.test_targets[low:high].astype(np.int64, copy=False)
        return self._scaled(self.test_inputs[low:high]), targets

    def _scaled(self, inputs: np.ndarray) -> np.ndarray:
        if self.scale == 1.0 and inputs.dtype == np.float32:
            return inputs
        return np.multiply(inputs, np.float32(self.scale), dtype=np.float32)


@dataclass(frozen=True)
class DataOptions:
    """What data sets can be told; None means not given. `seed` draws made-up data, nothing else:
    real data are split alike in every run."""

    path: Path | None = None  # a folder or file of the user's
    samples: int | None = None  # training samples to use, or to make
    held_back: float | None = None  # share of the samples that becomes the test set, default 0.1
    features: int | None = None  # made-up data: numbers in an input, or words there are
    classes: int | None = None  # made-up data
    seed: int = 0

    def refuse(self, name: str, *fields: str) -> None:
        """UsageError for one of `fields` that is given: it would change nothing."""
        for field in fields:
            if getattr(self, field) is not None:
                raise UsageError(f"data set {name} takes no {field}", getattr(self, field))

    def needed_path(self, name: str, what: str) -> Path:
        """The path, which must exist; `what` it has to be."""
        if self.path is None:
            raise UsageError("--data-path", None, f"data set {name} needs it: {what}")
        if not self.path.exists():
            raise UsageError(str(self.path), None, f"not found; expected {what}")
        return self.path


def load(
    name: str,
    path: str | Path | None = None,
    *,
    samples: int | None = None,
    held_back: float | None = None,
    features: int | None = None,
    classes: int | None = None,
    seed: int = 0,
) -> Dataset:
    """The data set `name`, or that in a FILE.npz; see DataOptions for what can be asked of which.

    Raises UsageError, naming the file and what was expected, for damaged, foreign or missing
    files, and for options that are out of range or would change nothing.
    """
    row = {name: "mpisgd.data.arrays:load_npz"} if name.endswith(".npz") else {}
    loader = resolve(DATASETS | row, name, "--data")
    for option, value in (("samples", samples), ("features", features), ("classes", classes)):
        if value is not None and value < 1:
            raise UsageError(f"{option} of data set {name}", value, "a whole number >= 1")
    if held_back is not None and not 0 < held_back < 1:
        raise UsageError(f"held_back of data set {name}", held_back, "a share between 0 and 1")
    place = None if path is None else Path(path)
    return loader(name, DataOptions(place, samples, held_back, features, classes, seed))
