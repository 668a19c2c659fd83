"""Augmentation: what it may do to an image, and that it depends on its place in the run alone."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpisgd.data import load
from mpisgd.data.augment import AUGMENTS, DEGREES, PAD, ZOOM, build, crop_flip, rotate_zoom
from mpisgd.values.errors import UsageError

KINDS = [name for name in AUGMENTS if name != "none"]
every_kind = pytest.mark.parametrize("name", KINDS)
ROWS, SIDE = 12, 20


def augmentation(name, seed) -> Any:
    return build(name, seed, load("digits", samples=1))


def pictures(channels=2, high=SIDE, wide=SIDE):
    return np.random.default_rng(0).random((ROWS, channels, high, wide), np.float32)


@every_kind
def test_a_batch_depends_on_seed_number_and_rank_alone(name):
    inputs = pictures()
    augment = augmentation(name, 7)
    first = augment(inputs, 3, 1)
    augment(inputs, 4, 1)  # what came in between is forgotten
    assert augmentation(name, 7)(inputs, 3, 1).tobytes() == first.tobytes()
    for other in (
        augmentation(name, 8)(inputs, 3, 1),
        augment(inputs, 4, 1),
        augment(inputs, 3, 2),
    ):
        assert not np.array_equal(other, first)
    assert first.dtype == np.float32
    assert first.shape == inputs.shape
    assert np.array_equal(inputs, pictures())  # a copy was changed, not the data


@every_kind
@pytest.mark.parametrize("rows", [0, 1])
def test_small_batches_and_images_that_are_not_square(name, rows):
    inputs = pictures(1, 9, 13)[:rows]
    assert augmentation(name, 0)(inputs, 1, 0).shape == (rows, 1, 9, 13)


@every_kind
def test_values_stay_within_those_of_the_image_and_zero(name):
    inputs = pictures() - 0.3
    out = augmentation(name, 0)(inputs, 1, 0)
    assert out.min() >= inputs.min() - 1e-6
    assert out.max() <= inputs.max() + 1e-6


def test_nothing_is_done_when_nothing_is_asked_for():
    assert augmentation("none", 0) is None


def test_a_users_mistakes():
    with pytest.raises(UsageError, match=r"--augment 'blur': one of none, rotate-zoom"):
        augmentation("blur", 0)
    with pytest.raises(UsageError, match=r"--augment 'crop-flip': the data set synthetic has no"):
        build("crop-flip", 0, load("synthetic", samples=10))


def fixed(*draws) -> Any:
    """A generator that draws what it is told."""
    left = list(draws)

    def uniform(low, high, rows):
        value = left.pop(0)
        assert low <= value <= high
        return np.full(rows, value)

    return SimpleNamespace(uniform=uniform)


def test_no_turn_and_no_zoom_leave_the_image():
    inputs = pictures()
    np.testing.assert_allclose(rotate_zoom(inputs, fixed(0.0, 1.0)), inputs, atol=1e-6)


def test_a_turn_moves_a_spot_around_the_centre_and_a_zoom_away_from_it():
    inputs = np.zeros((1, 1, 41, 41), np.float32)
    inputs[0, 0, 20, 35] = 1  # 15 pixels to the right of the centre
    for degrees, zoom in ((DEGREES, 1.0), (-DEGREES, 1.0), (0.0, 1 + ZOOM), (0.0, 1 - ZOOM)):
        out = rotate_zoom(inputs, fixed(degrees, zoom))[0, 0]
        down, right = (float((out * axis).sum() / out.sum()) for axis in np.indices(out.shape))
        angle = np.degrees(np.arctan2(down - 20, right - 20))
        assert abs(angle) == pytest.approx(abs(degrees), abs=1.5)
        assert np.hypot(down - 20, right - 20) == pytest.approx(15 * zoom, abs=0.5)
    turned = [rotate_zoom(inputs, fixed(d, 1.0))[0, 0] for d in (DEGREES, -DEGREES)]
    np.testing.assert_allclose(turned[0], turned[1][::-1], atol=1e-6)  # either way about


def test_a_crop_is_a_window_of_the_padded_image_mirrored_or_not():
    inputs = pictures()
    out = crop_flip(inputs, np.random.default_rng(3))
    padded = np.pad(inputs, ((0, 0), (0, 0), (PAD, PAD), (PAD, PAD)))
    places = set()
    for image, around in zip(out, padded, strict=True):
        found = [
            (down, right, flipped)
            for down in range(2 * PAD + 1)
            for right in range(2 * PAD + 1)
            for flipped in (False, True)
            if np.array_equal(
                image[:, :, ::-1] if flipped else image,
                around[:, down : down + SIDE, right : right + SIDE],
            )
        ]
        assert len(found) == 1
        places.add(found[0])
    assert len(places) > ROWS / 2
    assert {flipped for *_, flipped in places} == {False, True}
