"""The layers of convolutional networks against their definitions, pixel by pixel."""

import numpy as np
import pytest

from mpisgd.models.convolution import Convolution
from mpisgd.models.layer import Pass
from mpisgd.models.layers import Meter
from mpisgd.models.normalisation import EPSILON, BatchNormalisation
from mpisgd.models.planes import Planes
from mpisgd.models.pooling import MaxPooling, MeanPooling
from mpisgd.models.rectifier import BiasedRectifier, Rectifier
from mpisgd.models.weight_norm import NormalisedConvolution, lengths
from mpisgd.training.parameters import Parameters

SHAPES = [(2, 3, 4, 5), (1, 1, 1, 1), (3, 2, 5, 4), (2, 2, 7, 1)]  # channels, rows, height, width
every_shape = pytest.mark.parametrize("shape", SHAPES)


def planes(shape, seed=0):
    """Normal pixels between zero borders."""
    buffer = np.full(Planes.elements(shape), np.nan)
    made = Planes(buffer, *shape)
    made.inner[...] = np.random.default_rng(seed).standard_normal(shape)
    made.clear()
    return made


def passing(layer, learning=True):
    parameters = Parameters(layer.shapes, "float64")
    layer.initialise(parameters, np.random.default_rng(1))
    kept = Parameters(layer.statistics, "float64")
    return Pass(parameters, kept, Meter(None, 1), learning, parameters.like())


def borders(made):
    """All that is not a pixel."""
    outside = made.buffer.copy()
    twin = Planes(outside, made.channels, made.rows, made.height, made.width)
    twin.inner[...] = 0
    return outside


@every_shape
def test_a_shifted_plane_holds_each_pixels_neighbour_or_zero(shape):
    x = planes(shape)
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            seen = x.shifted(down, right).reshape(x.padded.shape)
            for i in range(x.height):
                for j in range(x.width):
                    inside = 0 <= i + down < x.height and 0 <= j + right < x.width
                    wanted = x.inner[:, :, i + down, j + right] if inside else 0
                    assert np.array_equal(seen[:, :, i, j], np.broadcast_to(wanted, shape[:2]))


@every_shape
@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_is_its_definition(shape, stride):
    x = planes(shape)
    layer = Convolution("c", shape[0], 3, shape[2:], stride)
    run = passing(layer)
    y = layer.forward(x, run)
    assert (y.height, y.width) == layer.size == (-(-shape[2] // stride), -(-shape[3] // stride))
    weight = run.parameters["c.weight"]
    around = np.pad(x.inner, ((0, 0), (0, 0), (1, 1), (1, 1)))
    for i in range(y.height):
        for j in range(y.width):
            window = around[:, :, stride * i : stride * i + 3, stride * j : stride * j + 3]
            wanted = np.einsum("uvkc,cnuv->kn", weight, window)
            np.testing.assert_allclose(y.inner[:, :, i, j], wanted, atol=1e-12)
    assert not borders(y).any()


@every_shape
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("first", [False, True])
def test_its_derivatives_are_those_of_a_bilinear_map(shape, stride, first):
    """<slope, y(x, w)> is linear in x and in w: its derivatives give it back."""
    x = planes(shape)
    layer = Convolution("c", shape[0], 3, shape[2:], stride, first=first)
    run = passing(layer)
    y = layer.forward(x, run)
    slope = planes((3, shape[1], *layer.size), seed=5)
    value = float((slope.inner * y.inner).sum())
    by_x = layer.backward(slope, run)
    weight, by_weight = run.parameters["c.weight"], run.gradient["c.weight"]
    assert float((weight * by_weight).sum()) == pytest.approx(value, rel=1e-10, abs=1e-10)
    if first:
        assert by_x is None
        return
    assert by_x is not None
    assert float((x.inner * by_x.inner).sum()) == pytest.approx(value, rel=1e-10, abs=1e-10)
    assert not borders(by_x).any()
    other = planes(shape, seed=9)  # and for every other x too
    moved = float((slope.inner * layer.forward(other, run).inner).sum())
    assert float((other.inner * by_x.inner).sum()) == pytest.approx(moved, rel=1e-10, abs=1e-10)


def test_a_normalised_weight_is_as_long_as_its_gain_says():
    layer = NormalisedConvolution("c", 2, 3, (4, 4))
    run = passing(layer)
    direction, gain = run.parameters["c.direction"], run.parameters["c.gain"]
    np.testing.assert_allclose(layer.weight(run), direction, rtol=1e-12)  # at the start
    gain[:] = 2.0, -1.0, 0.5
    before = layer.weight(run)
    np.testing.assert_allclose(lengths(before), np.abs(gain), rtol=1e-12)
    direction *= np.array([3.0, 0.2, 7.0])[:, None]  # of any length
    np.testing.assert_allclose(layer.weight(run), before, rtol=1e-12)
    layer.derive(np.random.default_rng(3).standard_normal(direction.shape), run)
    along = (run.gradient["c.direction"] * direction).sum(axis=(0, 1, 3))
    np.testing.assert_allclose(along, 0, atol=1e-12)


@pytest.mark.parametrize("shape", [(2, 3, 4, 6), (1, 2, 5, 7), (2, 1, 3, 2)])
def test_max_pooling_takes_the_largest_and_gives_the_slope_to_one(shape):
    x = planes(shape)
    x.inner[...] = np.round(x.inner)  # ties, all-equal corners among them
    layer = MaxPooling("p", shape[2:])
    y = layer.forward(x, passing(layer))
    high, wide = shape[2] // 2, shape[3] // 2
    cut = x.inner[:, :, : 2 * high, : 2 * wide].reshape(*shape[:2], high, 2, wide, 2)
    assert np.array_equal(y.inner, cut.max(axis=(3, 5)))
    slope = planes((*shape[:2], high, wide), seed=4)
    given = slope.inner.copy()
    by_x = layer.backward(slope, passing(layer))
    parts = by_x.inner[:, :, : 2 * high, : 2 * wide].reshape(cut.shape)
    assert np.array_equal(parts.sum(axis=(3, 5)), given)
    assert ((parts != 0).sum(axis=(3, 5)) == 1).all()
    assert (cut[parts != 0] == np.broadcast_to(y.inner[:, :, :, None, :, None], cut.shape)
            [parts != 0]).all()  # fmt: skip
    assert not by_x.inner[:, :, 2 * high :].any()
    assert not by_x.inner[:, :, :, 2 * wide :].any()
    assert not borders(by_x).any()


@every_shape
def test_mean_pooling_is_a_mean_and_its_slope_a_share(shape):
    x = planes(shape)
    layer = MeanPooling("m")
    y = layer.forward(x, passing(layer))
    np.testing.assert_allclose(y.inner[:, :, 0, 0], x.inner.mean(axis=(2, 3)), rtol=1e-12)
    slope = planes((*shape[:2], 1, 1), seed=4)
    by_x = layer.backward(slope, passing(layer))
    share = slope.inner / (shape[2] * shape[3])
    np.testing.assert_allclose(by_x.inner, np.broadcast_to(share, shape), rtol=1e-12)
    assert not borders(by_x).any()


def test_rectifiers_block_where_they_are_zero():
    shape = (2, 3, 4, 5)
    biased = BiasedRectifier("b", 2)
    run = passing(biased)
    run.parameters["b.bias"][:] = 0.5, -0.5
    x = planes(shape)
    before = x.inner.copy()
    y = biased.forward(x, run)
    np.testing.assert_allclose(
        y.inner, np.maximum(before + np.reshape([0.5, -0.5], (2, 1, 1, 1)), 0)
    )
    assert np.array_equal(x.inner, before)  # the pooling before it still needs its output
    assert not borders(y).any()
    slope = planes(shape, seed=4)
    passed = slope.inner * (y.inner > 0)
    assert np.array_equal(biased.backward(slope, run).inner, passed)
    np.testing.assert_allclose(run.gradient["b.bias"], passed.sum(axis=(1, 2, 3)))
    plain = Rectifier("r")
    again = plain.forward(planes(shape), run)
    assert np.array_equal(again.inner, np.maximum(before, 0))


def test_batch_normalisation_leaves_mean_shift_and_deviation_scale():
    shape = (2, 5, 3, 4)
    layer = BatchNormalisation("n", 2)
    run = passing(layer)
    run.parameters["n.scale"][:] = 2.0, 0.5
    run.parameters["n.shift"][:] = -1.0, 3.0
    x = planes(shape)
    x.inner[...] = 3 * x.inner + 7
    pixels = x.inner.copy()
    y = layer.forward(x, run)
    np.testing.assert_allclose(y.inner.mean(axis=(1, 2, 3)), [-1, 3], rtol=1e-10)
    np.testing.assert_allclose(y.inner.std(axis=(1, 2, 3)), [2, 0.5], rtol=1e-5)
    assert not borders(y).any()
    # The first batch is all that is remembered, whatever was there before.
    np.testing.assert_allclose(run.statistics["n.mean"], pixels.mean(axis=(1, 2, 3)))
    np.testing.assert_allclose(run.statistics["n.variance"], pixels.var(axis=(1, 2, 3), ddof=1))
    assert run.statistics["n.count"] == 5


def test_remembered_statistics_are_used_when_not_learning_and_stay():
    shape = (1, 4, 2, 2)
    layer = BatchNormalisation("n", 1)
    run = passing(layer, learning=False)
    run.statistics["n.mean"][:], run.statistics["n.variance"][:] = 2.0, 9.0
    before = run.statistics.flat.copy()
    x = planes(shape)
    pixels = x.inner.copy()
    y = layer.forward(x, run)
    np.testing.assert_allclose(y.inner, (pixels - 2) / np.sqrt(9 + EPSILON), rtol=1e-12)
    assert not borders(y).any()
    assert np.array_equal(run.statistics.flat, before)


def test_first_batches_count_alike_and_later_ones_a_tenth():
    layer = BatchNormalisation("n", 1)
    run = passing(layer)
    means = []
    for seed in range(30):
        x = planes((1, 6, 2, 3), seed)
        means.append(x.inner.mean())
        layer.forward(x, run)
        if seed < 10:
            assert run.statistics["n.mean"][0] == pytest.approx(np.mean(means), rel=1e-9)
    recent = np.mean(means[:10])
    for mean in means[10:]:
        recent = 0.9 * recent + 0.1 * mean
    assert run.statistics["n.mean"][0] == pytest.approx(recent, rel=1e-9)
