"""Parameters and multiply-adds of every layered description, and the language they are in."""

import pytest

from mpisgd.predict import nets
from mpisgd.predict.nets.language import (
    Add,
    Concat,
    Conv,
    Dual,
    Full,
    Net,
    Norm,
    Pool,
    lower,
    macs,
    output_shape,
    parameters,
)
from mpisgd.values.errors import UsageError

# parameters; multiply-adds rounded to 10^3, None where no outside count is known
COUNTS = {
    "googlenet": (6_624_904, 1.498376e9),
    "vgg16": (138_357_544, 15.470264e9),
    "resnet50": (25_557_032, 4.089184e9),
    "resnet50-paleo": (25_530_472, None),
    "resnet101": (44_549_160, 7.801405e9),
    "densenet121": (7_978_856, None),
    "mobilenetv2": (3_504_872, 0.300774e9),
    "resnext50": (25_028_904, None),
    "dpn92": (37_668_392, None),
    "inception3": (23_834_568, 5.713216e9),
    "googlenet-cifar": (6_166_250, 1521.756e6),
    "vgg16-cifar": (14_728_266, 313.202e6),
    "resnet50-cifar": (23_520_842, 1297.830e6),
    "resnet101-cifar": (42_512_970, 2509.984e6),
    "densenet121-cifar": (6_956_298, None),
    "mobilenetv2-cifar": (2_296_922, 91.155e6),
    "resnext29-cifar": (9_128_778, None),
    "dpn92-cifar": (34_236_634, None),
}


def test_every_net_has_its_counts_here():
    assert set(COUNTS) == set(nets.NETS)


@pytest.mark.parametrize("name", COUNTS)
def test_counts(name):
    layers = nets.layers(name)
    expected_parameters, expected_macs = COUNTS[name]
    assert parameters(layers) == expected_parameters
    if expected_macs is not None:
        assert round(macs(layers), -3) == round(expected_macs)


@pytest.mark.parametrize("name", COUNTS)
def test_names_and_classes(name):
    net = nets.find(name)
    assert net.name == name
    assert output_shape(net) == (10 if name.endswith("-cifar") else 1000, 1, 1)
    layers = nets.layers(name)
    assert len({layer.name for layer in layers}) == len(layers)
    assert [layer.first for layer in layers].count(True) == 1


def test_unknown_net():
    with pytest.raises(UsageError, match="--net 'resnet5': one of googlenet"):
        nets.find("resnet5")


def lowered(*chain, sample=(4, 8, 6)):
    return lower(Net("test", sample, chain))


def test_convolution_shapes_and_counts():
    (layer,) = lowered(Conv(6, (3, 1), 2, (1, 0), groups=2, bias=True))
    assert layer.outputs == (6, 4, 3)
    assert layer.parameters == 3 * 1 * 2 * 6 + 6 + 12
    assert layer.macs == 6 * 4 * 3 * 3 * 2


@pytest.mark.parametrize("size", range(1, 12))
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [1, 3, 7])
def test_same_padding_keeps_the_size_over_the_stride(size, stride, kernel):
    (layer,) = lowered(Conv(1, kernel, stride, "same"), sample=(1, size, size))
    assert layer.outputs[1] == -(-size // stride)
    assert min(layer.padding) >= 0


def test_joins():
    net = Net(
        "test",
        (4, 8, 8),
        (
            Concat(((), (Conv(3, 1),))),
            Add(((Conv(7, 1),), ())),
            Dual(((Conv(9, 1),), (Conv(8, 1),)), 6),
        ),
    )
    assert output_shape(net) == (6 + 3 + 2, 8, 8)


def test_add_refuses_unequal_shapes():
    with pytest.raises(AssertionError):
        lowered(Add(((Conv(5, 1),), ())))


def test_pools():
    floor, ceil, whole = (
        lowered(Pool(3, 2), sample=(1, 8, 8)),
        lowered(Pool(3, 2, ceil=True), sample=(1, 8, 8)),
        lowered(Pool(0), sample=(1, 8, 8)),
    )
    assert [chain[0].outputs[1] for chain in (floor, ceil, whole)] == [3, 4, 1]
    # A last window that would lie in the padding is dropped.
    assert lowered(Pool(2, 2, 1, ceil=True), sample=(1, 3, 3))[0].outputs[1] == 2


def test_norm_and_full():
    layers = lowered(Norm(), Full(5))
    assert parameters(layers) == 8 + (4 * 8 * 6 + 1) * 5
    assert macs(layers) == 4 * 8 * 6 * 5
