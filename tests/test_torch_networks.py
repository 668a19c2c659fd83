"""PyTorch's networks: counts, gradients, and equality with what is known of them."""

import numpy as np
import pytest

from mpisgd.data import load
from mpisgd.models import MODELS, build
from mpisgd.predict import nets
from mpisgd.predict.nets.language import output_shape
from mpisgd.training.parameters import Parameters

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch_runs import images, silent, small, start  # noqa: E402

from mpisgd.models import torch_nets  # noqa: E402
from mpisgd.models.torch_count import count  # noqa: E402

# Parameters; multiply-adds of one sample rounded to 10^3, None where no outside count is known.
COUNTS = {
    "torch:googlenet-cifar": (6_166_250, 1_521_756),
    "torch:vgg16-cifar": (14_728_266, 313_202),
    "torch:resnet50-cifar": (23_520_842, 1_297_830),
    "torch:resnet101-cifar": (42_512_970, 2_509_984),
    "torch:densenet121-cifar": (6_956_298, None),
    "torch:mobilenetv2-cifar": (2_296_922, 91_155),
    "torch:resnext29-cifar": (9_128_778, None),
    "torch:dpn92-cifar": (34_236_634, None),
    "torch:googlenet": (6_624_904, 1_498_376),
    "torch:vgg16": (138_357_544, 15_470_264),
    "torch:resnet50": (25_557_032, 4_089_184),
    "torch:resnet101": (44_549_160, 7_801_405),
    "torch:densenet121": (7_978_856, None),
    "torch:mobilenetv2": (3_504_872, 300_774),
    "torch:resnext50": (25_028_904, None),
    "torch:dpn92": (37_668_392, None),
    "torch:inception3": (23_834_568, 5_713_216),
}
CIFAR = [name for name in COUNTS if name.endswith("-cifar")]
IMAGENET = [name for name in COUNTS if not name.endswith("-cifar")]


def test_every_network_is_counted_here():
    made = {"torch:mlp", "torch:cnn", "torch:pixelcnn"}
    assert set(COUNTS) == {n for n in MODELS if n.startswith("torch:")} - made
    assert {name[6:] for name in COUNTS} == set(nets.NETS) - {"resnet50-paleo"}


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_and_multiply_adds(name):
    net = nets.find(name[6:])
    with torch.device("meta"):
        module = torch_nets.build(net)
    counted = count(module, net.sample)
    parameters, thousands = COUNTS[name]
    assert counted.parameters == parameters
    if thousands is not None:
        assert round(counted.total_macs / 1000) == thousands
    assert list(counted.macs.values()) == [n.macs for n in nets.layers(name[6:]) if n.macs]
    shape = module(torch.zeros(2, *net.sample, device="meta")).shape
    assert tuple(shape) == (2, output_shape(net)[0])


def test_the_counter_counts():
    module = torch.nn.Sequential(
        torch.nn.Conv2d(4, 6, (3, 1), groups=2), torch.nn.BatchNorm2d(6), torch.nn.Flatten(),
        torch.nn.Linear(6 * 2 * 4, 5),
    )  # fmt: skip
    counted = count(module, (4, 4, 4))
    assert counted.parameters == (3 * 2 * 6 + 6) + 12 + (48 * 5 + 5)
    assert counted.macs == {"0": 48 * 3 * 2, "3": 48 * 5}
    assert module.training


def check_a_step(model, dataset):
    """Forward and backward of two samples: all that the protocol promises."""
    parameters = Parameters(model.shapes)
    draws = np.random.default_rng(1).standard_normal(4999, np.float32) * 0.05
    parameters.flat[:] = np.resize(draws, parameters.size)  # many normal draws would take long
    gradient = parameters.like()
    gradient.buffer[:] = np.nan
    shares, lows = [], []
    batch = dataset.batch(np.arange(2))
    loss = model.gradient(parameters, *batch, gradient, shares.append, lows.append)
    assert np.isfinite(loss)
    assert np.isfinite(gradient.flat).all()
    for name, view in gradient.views.items():
        assert view.any() or not name.endswith("weight"), name
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert lows == sorted(set(lows), reverse=True)
    assert lows[-1] == 0
    assert len(lows) <= len({name.rpartition(".")[0] for name in model.shapes})
    return lows


@pytest.mark.parametrize("name", CIFAR)
def test_forward_and_backward_of_the_cifar_forms(name):
    dataset = images()
    lows = check_a_step(build(name, dataset), dataset)
    assert len(lows) > 20  # what is pushed or all-reduced early


@pytest.mark.slow
@pytest.mark.parametrize("name", [name[6:] for name in IMAGENET if name != "torch:vgg16"])
def test_forward_and_backward_of_the_imagenet_forms_on_small_images(name):
    sample = (3, 80, 80) if name == "inception3" else (3, 64, 64)
    check_a_step(small(name, sample), images(sample, 1000))


@pytest.mark.slow
@pytest.mark.parametrize("name", IMAGENET)
def test_forward_and_backward_of_the_imagenet_forms(name):
    dataset = images(nets.find(name[6:]).sample, 1000, 2)
    check_a_step(build(name, dataset), dataset)


def test_pixelcnn_and_cnn_step():
    dataset = images()
    for name in ("torch:pixelcnn", "torch:cnn"):
        check_a_step(build(name, dataset), dataset)


# Equal to what is known


@pytest.mark.parametrize("hidden", [(7,), (9, 5)])
def test_the_mlp_is_the_mlp(hidden):
    """By autograd as by hand: loss and gradient, to rounding."""
    dataset = load("digits")
    ours, theirs = (build(n, dataset, hidden=hidden) for n in ("mlp", "torch:mlp"))
    one = start(ours, "float64")
    other = Parameters(theirs.shapes, "float64")
    for mine, its in zip(one.views.values(), other.views.values(), strict=True):
        its[...] = mine.T
    slopes = one.like(), other.like()
    batch = dataset.batch(np.arange(20))
    losses = (
        ours.gradient(one, *batch, slopes[0], silent),
        theirs.gradient(other, *batch, slopes[1], silent),
    )
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    for mine, its in zip(slopes[0].views.values(), slopes[1].views.values(), strict=True):
        np.testing.assert_allclose(its, mine.T, rtol=1e-9, atol=1e-14)
    sums = [m.evaluate(p, *batch) for m, p in ((ours, one), (theirs, other))]
    assert sums[0].loss_sum == pytest.approx(sums[1].loss_sum, rel=1e-12)
    assert sums[0][1:] == sums[1][1:]


class Bottleneck(torch.nn.Module):
    """He et al. 2015, Fig. 5, written from the paper and not from a description."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        conv, norm, out = torch.nn.Conv2d, torch.nn.BatchNorm2d, 4 * width
        self.one, self.norm_one = conv(inputs, width, 1, bias=False), norm(width)
        self.three, self.norm_three = conv(width, width, 3, stride, 1, bias=False), norm(width)
        self.last, self.norm_last = conv(width, out, 1, bias=False), norm(out)
        self.skip = torch.nn.Sequential()
        if inputs != out:
            self.skip = torch.nn.Sequential(conv(inputs, out, 1, stride, bias=False), norm(out))

    def forward(self, x):
        y = torch.relu(self.norm_one(self.one(x)))
        y = torch.relu(self.norm_three(self.three(y)))
        return torch.relu(self.norm_last(self.last(y)) + self.skip(x))


def resnet50():
    parts = [torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False), torch.nn.BatchNorm2d(64)]
    parts.append(torch.nn.ReLU())
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            width = 64 * 2**stage
            parts.append(Bottleneck(inputs, width, 2 if stage and not block else 1))
            inputs = 4 * width
    return torch.nn.Sequential(
        *parts, torch.nn.AvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(2048, 10)
    )


def test_resnet50_is_that_of_the_paper():
    dataset = images()
    model = build("torch:resnet50-cifar", dataset)
    parameters = start(model)
    gradient = parameters.like()
    batch = dataset.batch(np.arange(2))
    loss = model.gradient(parameters, *batch, gradient, silent)
    reference = resnet50()
    pieces = zip(reference.parameters(), parameters.views.values(), strict=True)
    for parameter, view in pieces:
        parameter.data = torch.from_numpy(view.copy())
    inputs, targets = map(torch.from_numpy, batch)
    expected = torch.nn.functional.cross_entropy(reference(inputs), targets)
    expected.backward()
    assert loss == pytest.approx(float(expected.detach()), rel=1e-4)
    found = gradient["0.weight"]
    wanted = next(reference.parameters()).grad.numpy()
    assert np.abs(found - wanted).max() < 0.02 * np.abs(wanted).max()


# PixelCNN


def test_no_probability_depends_on_what_comes_later():
    from mpisgd.models.torch_pixelcnn import VALUES, network

    torch.manual_seed(0)
    module = network(width=12, blocks=2)
    inputs = torch.rand(1, 3, 5, 6)
    with torch.no_grad():
        before = module(inputs).reshape(3, VALUES, 5, 6)
        for colour, row, column in [(0, 0, 0), (1, 2, 3), (2, 2, 3), (2, 4, 5), (0, 3, 5)]:
            changed = inputs.clone()
            changed[0, colour, row, column] += 0.5
            moved = (module(changed).reshape(3, VALUES, 5, 6) != before).any(1).numpy()
            order = np.arange(30).reshape(5, 6) * 3 + np.arange(3)[:, None, None]
            place = order[colour, row, column]
            assert not moved[order <= place].any()
            if place < 89:
                assert moved[order > place].any()


def test_the_pixelcnn_is_the_one_described():
    from mpisgd.models.torch_pixelcnn import network
    from mpisgd.predict.nets import small as described
    from mpisgd.predict.nets.language import lower

    with torch.device("meta"):
        counted = count(network(), (3, 32, 32))
    layers = lower(described.pixelcnn())
    assert list(counted.macs.values()) == [layer.macs for layer in layers]
    assert counted.parameters == sum(layer.parameters for layer in layers)


def test_bits_per_dimension_of_uniform_probabilities():
    dataset = images(samples=3)
    model = build("torch:pixelcnn", dataset)
    parameters = Parameters(model.shapes)  # zeros: all values are equally likely
    batch = dataset.batch(np.arange(3))
    loss = model.gradient(parameters, *batch, parameters.like(), silent)
    assert loss == pytest.approx(8, rel=1e-6)
    sums = model.evaluate(parameters, *batch)
    assert sums.loss_sum == pytest.approx(24, rel=1e-6)
    assert (sums.correct, sums.samples) == (0, 3)
