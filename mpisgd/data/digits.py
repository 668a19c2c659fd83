"""1,797 handwritten digits of 8 x 8 pixels that come with the package (digits.txt: whose)."""

from pathlib import Path

import numpy as np

from mpisgd.data import DataOptions, Dataset
from mpisgd.data.split import limited

ATTRIBUTION = (
    "E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits (1998), "
    "UCI Machine Learning Repository, doi:10.24432/C50P49, CC BY 4.0"
)


def load_digits(name: str, options: DataOptions) -> Dataset:
    """Inputs (1, 8, 8) in 0 .. 1; 1,437 for training, 360 for testing, drawn once and stored.

    The split is part of the file because the last fifth was written by other people: a test on it
    would measure something else.
    """
    options.refuse(name, "path", "held_back", "features", "classes")
    with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as stored:
        images, labels, test = stored["images"], stored["labels"], stored["test"]
    train = np.ones(len(labels), bool)
    train[test] = False
    dataset = Dataset(
        name=name,
        train_inputs=images[train],
        train_targets=labels[train],
        test_inputs=images[test],
        test_targets=labels[test],
        classes=10,
        attribution=ATTRIBUTION,
        split="360 of 1797 samples, a fixed random draw",
        scale=1 / 16,
    )
    return limited(dataset, options.samples)
