"""Small data files for tests of the loaders, and the refusal of bad ones."""

import gzip
import re

import numpy as np
import pytest

from mpisgd.data import load
from mpisgd.values.errors import UsageError


def refused(message, name, path=None, **options):
    """Loading is refused by one line that contains `message`."""
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        load(name, path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def images(count, seed=0, size=(4, 3)):
    return np.random.default_rng(seed).integers(0, 256, (count, *size), np.uint8)


def labels(count):
    return (np.arange(count) % 10).astype(np.uint8)


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
