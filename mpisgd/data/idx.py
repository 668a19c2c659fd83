"""MNIST, Fashion-MNIST and others in IDX files, in parts or not, or in Keras' mnist.npz.

An IDX file is 00 00 type dimensions, one big-endian u32 per dimension, then the data.
"""

import math
import re
from pathlib import Path
from typing import BinaryIO

import numpy as np

from mpisgd.data import DataOptions, Dataset
from mpisgd.data.files import (
    LARGEST_EXPANSION,
    check_labels,
    check_unpacked,
    fill,
    listing,
    npz,
    opened,
)
from mpisgd.data.split import held_back, limited
from mpisgd.values.errors import UsageError

FORMAT = "a folder with IDX files (train-images-idx3-ubyte.gz, ..) or an mnist.npz"
NAME = re.compile(r"(train|t10k)-(images|labels)(.*)[-.]idx[13]-ubyte(\.gz)?")
MAGIC = {"images": 0x0803, "labels": 0x0801}
ATTRIBUTIONS = {
    "mnist": "MNIST, (c) Yann LeCun and Corinna Cortes, CC BY-SA 3.0",
    "fashion-mnist": "Fashion-MNIST, H. Xiao, K. Rasul, R. Vollgraf (2017), MIT licence",
    "idx": "IDX files of the user",
}

# What a loader of one layout returns: split -> (images, labels).
Pairs = dict[str, tuple[np.ndarray, np.ndarray]]


def load_idx(name: str, options: DataOptions) -> Dataset:
    """Inputs (1, height, width) in 0 .. 1. Without test files, a tenth is held back."""
    options.refuse(name, "features", "classes")
    path = options.needed_path(name, FORMAT)
    pairs = _read_path(path)
    images, labels = pairs["train"]
    if "t10k" in pairs:
        options.refuse(f"{name} with test files", "held_back")
        parts = (images, labels, *pairs["t10k"], "the test files")
    else:
        parts = held_back(images, labels, options)
    train_inputs, train_targets, test_inputs, test_targets, split = parts
    if train_inputs.shape[1:] != test_inputs.shape[1:]:
        raise UsageError(str(path), None, "training and test images differ in size")
    largest = int(max(train_targets.max(), test_targets.max()))
    if name != "idx" and largest > 9:
        raise UsageError(f"label {largest} in {path}", None, f"{name} has the labels 0 to 9")
    known = int(train_targets.max())
    if name == "idx" and "t10k" in pairs and largest > known:
        allowed = f"the training labels end at {known}, so that no model could learn it"
        raise UsageError(f"test label {largest} in {path}", None, allowed)
    dataset = Dataset(
        name=name,
        train_inputs=train_inputs[:, None],
        train_targets=train_targets,
        test_inputs=test_inputs[:, None],
        test_targets=test_targets,
        classes=10 if name != "idx" else largest + 1,
        attribution=ATTRIBUTIONS[name],
        split=split,
        scale=1 / 255,
    )
    return limited(dataset, options.samples)


def _read_path(path: Path) -> Pairs:
    if path.is_file():
        return _read_npz(path)
    chosen = _choose(listing(path))
    if chosen:
        return {
            split: _read_parts(path, split, chosen)
            for split in ("train", "t10k")
            if split == "train" or any(key[0] == split for key in chosen)
        }
    if (path / "mnist.npz").is_file():
        return _read_npz(path / "mnist.npz")
    raise UsageError(str(path), None, f"no IDX file in it; expected {FORMAT}")


def _choose(paths: list[Path]) -> dict[tuple[str, str, str], Path]:
    """(split, kind, part) -> file; where a file lies there packed and unpacked, the unpacked."""
    chosen: dict[tuple[str, str, str], Path] = {}
    for path in paths:
        match = NAME.fullmatch(path.name)
        if match:
            split, kind, part, packed = match.groups()
            if not packed or (split, kind, part) not in chosen:
                chosen[split, kind, part] = path
    return chosen


def _read_parts(
    folder: Path, split: str, chosen: dict[tuple[str, str, str], Path]
) -> tuple[np.ndarray, np.ndarray]:
    """All parts of one split, joined in order; images and labels must pair up."""
    images = {key[2]: path for key, path in chosen.items() if key[:2] == (split, "images")}
    labels = {key[2]: path for key, path in chosen.items() if key[:2] == (split, "labels")}
    for part in (*images, *labels):
        for kind, there in (("images", images), ("labels", labels)):
            if part not in there:
                missing = f"{split}-{kind}{part}-idx{3 if kind == 'images' else 1}-ubyte"
                raise UsageError(str(folder), None, f"{missing} (or .gz) is missing")
    if not images:
        raise UsageError(str(folder), None, f"no {split}-images file; expected {FORMAT}")
    shapes = {part: _shape(path, "images") for part, path in images.items()}
    first, size = next(iter(shapes.items()))
    for part, shape in shapes.items():
        if shape[1:] != size[1:]:
            message = f"its images are {shape[1:]}, those of {images[first].name} {size[1:]}"
            raise UsageError(str(images[part]), None, message)
        count = _shape(labels[part], "labels")[0]
        if count != shape[0]:
            message = f"{count} labels, but {shape[0]} images in {images[part].name}"
            raise UsageError(str(labels[part]), None, message)
    total = sum(shape[0] for shape in shapes.values())
    if total == 0 or math.prod(size[1:]) == 0:
        raise UsageError(str(images[first]), None, "there are no images in it")
    joined = np.empty((total, *size[1:]), np.uint8), np.empty(total, np.uint8)
    start = 0
    for part, shape in shapes.items():
        stop = start + shape[0]
        _read_into(images[part], "images", joined[0][start:stop])
        _read_into(labels[part], "labels", joined[1][start:stop])
        start = stop
    return joined


def _shape(path: Path, kind: str) -> tuple[int, ...]:
    """The shape in the header of an IDX file of `kind`."""
    with opened(path) as stream:
        shape = _header(stream, path, kind)
    if math.prod(shape) > LARGEST_EXPANSION * path.stat().st_size:
        raise UsageError(str(path), None, f"truncated: far shorter than its header's {shape}")
    if path.suffix == ".gz":
        check_unpacked(path, math.prod(shape))
    return shape


def _read_into(path: Path, kind: str, target: np.ndarray) -> None:
    with opened(path) as stream:
        _header(stream, path, kind)
        fill(stream, path, target)


def _header(stream: BinaryIO, path: Path, kind: str) -> tuple[int, ...]:
    magic = MAGIC[kind]
    start = stream.read(4)
    if len(start) == 4 and int.from_bytes(start, "big") != magic:
        found = f"it starts with 0x{start.hex()}"
        raise UsageError(str(path), None, f"not IDX {kind} (0x{magic:08x}): {found}")
    sizes = stream.read(4 * (magic & 0xFF))
    if len(start) + len(sizes) < 4 + 4 * (magic & 0xFF):
        raise UsageError(str(path), None, f"truncated: shorter than the header of IDX {kind}")
    return tuple(int.from_bytes(sizes[i : i + 4], "big") for i in range(0, len(sizes), 4))


def _read_npz(path: Path) -> Pairs:
    """Keras' layout: arrays x_train, y_train and, if there, x_test, y_test."""
    arrays = npz(path, FORMAT)
    pairs: Pairs = {}
    for split, suffix in (("train", "train"), ("t10k", "test")):
        if split == "train" or f"x_{suffix}" in arrays:
            pairs[split] = _pair(path, arrays, f"x_{suffix}", f"y_{suffix}")
    return pairs


def _pair(
    path: Path, arrays: dict[str, np.ndarray], x: str, y: str
) -> tuple[np.ndarray, np.ndarray]:
    for key in (x, y):
        if key not in arrays:
            raise UsageError(str(path), None, f"no array {key} in it; it has {sorted(arrays)}")
    images, labels = arrays[x], arrays[y]
    if images.ndim != 3 or images.dtype != np.uint8 or images.size == 0:
        message = f"{x} is {images.dtype} {images.shape}; expected uint8 (samples, height, width)"
        raise UsageError(str(path), None, message)
    check_labels(f"{path}: {y}", labels, len(images))
    return images, labels
