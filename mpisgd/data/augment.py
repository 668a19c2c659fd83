"""Changed copies of training images: small rotations and zooms, crops and flips.

What a batch becomes is drawn from (seed, purpose, deal, rank) alone, so there is no state to save,
and a batch that is computed again, or replayed, is the same.
"""

import math
from collections.abc import Callable

import numpy as np

from allreduce import arrays
from mpisgd.data import Dataset
from mpisgd.values.errors import UsageError
from mpisgd.values.registry import resolve

AUGMENTS = {
    "none": "",
    "rotate-zoom": "mpisgd.data.augment:rotate_zoom",
    "crop-flip": "mpisgd.data.augment:crop_flip",
}

# (inputs, number of the batch, rank) -> inputs of the same shape.
Augment = Callable[[np.ndarray, int, int], np.ndarray]

PURPOSE = 0x6175_676D  # a stream of its own among those of the seed
DEGREES, ZOOM = 10.0, 0.1  # small, as Chen et al. 2016, A.1 say without numbers
PAD = 4  # pixels on each side, as He et al. 2016, 4.2


def build(name: str, seed: int, dataset: Dataset) -> Augment | None:
    """The augmentation `name` of the samples of `dataset`; None for "none".

    Raises UsageError for an unknown name, and for samples that are no images.
    """
    if name == "none":
        return None
    function = resolve(AUGMENTS, name, "--augment")
    if dataset.train_inputs.ndim != 4:
        raise UsageError("--augment", name, f"the data set {dataset.name} has no images; leave it")

    def augment(inputs: np.ndarray, deal: int, rank: int) -> np.ndarray:
        return function(inputs, np.random.default_rng((seed, PURPOSE, deal, rank)))

    return augment


def rotate_zoom(inputs: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Each image about its centre by up to DEGREES and by a factor of 1 - ZOOM .. 1 + ZOOM.

    inputs: (rows, channels, height, width). Between pixels linear; zero from outside.
    """
    rows, _, high, wide = inputs.shape
    asarray = arrays.of(inputs).asarray
    angles = generator.uniform(-DEGREES, DEGREES, rows) * (math.pi / 180)
    zooms = generator.uniform(1 - ZOOM, 1 + ZOOM, rows)
    cosine, sine = np.cos(angles) / zooms, np.sin(angles) / zooms
    down = asarray((np.arange(high) - (high - 1) / 2)[None, :, None])
    right = asarray((np.arange(wide) - (wide - 1) / 2)[None, None, :])
    c, s = asarray(cosine[:, None, None]), asarray(sine[:, None, None])
    at_down = c * down - s * right + (high - 1) / 2
    at_right = s * down + c * right + (wide - 1) / 2
    return _between(inputs, at_down, at_right)


def crop_flip(inputs: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Each image with PAD zeros around it, cut out at a random place, and mirrored half the time.

    inputs: (rows, channels, height, width).
    """
    rows, channels, high, wide = inputs.shape
    memory = arrays.of(inputs)
    padded = memory.zeros((rows, channels, high + 2 * PAD, wide + 2 * PAD), inputs.dtype)
    padded[:, :, PAD : PAD + high, PAD : PAD + wide] = inputs
    down, right = generator.integers(0, 2 * PAD + 1, (2, rows))
    columns = np.arange(wide)[None, :] + right[:, None]
    flipped = generator.random(rows) < 0.5
    columns[flipped] = columns[flipped, ::-1]
    lines = np.arange(high)[None, :] + down[:, None]
    row = np.arange(rows)[:, None, None, None]
    channel = np.arange(channels)[None, :, None, None]
    places = (row, channel, lines[:, None, :, None], columns[:, None, None, :])
    return padded[tuple(map(memory.asarray, places))]


def _between(inputs: np.ndarray, at_down: np.ndarray, at_right: np.ndarray) -> np.ndarray:
    """`inputs` at places (rows, height, width) between its pixels, which stand for all channels."""
    rows, channels, high, wide = inputs.shape
    memory = arrays.of(inputs)
    xp = memory.module
    padded = memory.zeros((rows, channels, high + 2, wide + 2), inputs.dtype)
    padded[:, :, 1:-1, 1:-1] = inputs
    flat = padded.reshape(rows, channels, (high + 2) * (wide + 2))
    # From a pixel outside on, all is zero: nothing is lost by cutting there.
    at_down, at_right = xp.clip(at_down + 1, 0, high + 1), xp.clip(at_right + 1, 0, wide + 1)
    top = xp.minimum(at_down.astype(np.int64), high)
    left = xp.minimum(at_right.astype(np.int64), wide)
    below = (at_down - top).astype(inputs.dtype)[:, None]
    beside = (at_right - left).astype(inputs.dtype)[:, None]
    place = (top * (wide + 2) + left).reshape(rows, 1, high * wide)
    shape = (rows, channels, high, wide)

    def corner(offset: int) -> np.ndarray:
        return xp.take_along_axis(flat, place + offset, axis=2).reshape(shape)

    upper = corner(0) * (1 - beside) + corner(1) * beside
    lower = corner(wide + 2) * (1 - beside) + corner(wide + 3) * beside
    return upper * (1 - below) + lower * below
