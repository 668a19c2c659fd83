"""PyTorch's networks on the flat buffers: counts, gradients, views, statistics."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from mpisgd.data import Dataset, load
from mpisgd.errors import UsageError
from mpisgd.models import MODELS, build
from mpisgd.parameters import Parameters
from mpisgd.predict import nets
from mpisgd.predict.nets.language import output_shape

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from mpisgd.models import torch_nets  # noqa: E402
from mpisgd.models.torch_count import count  # noqa: E402
from mpisgd.models.torch_model import Classes, TorchModel  # noqa: E402

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


def images(sample=(3, 32, 32), classes=10, samples=6):
    generator = np.random.default_rng(0)
    inputs = generator.integers(0, 256, (samples, *sample)).astype(np.uint8)
    targets = generator.integers(0, classes, samples)
    return Dataset("made up", inputs, targets, inputs, targets, classes, "", "", 1 / 255)


def small(name, sample):
    """The network `name` for images of another size."""
    net = dataclasses.replace(nets.find(name), sample=sample)
    return TorchModel(name, net, lambda: torch_nets.build(net), Classes())


def start(model, dtype="float32", extra=0):
    parameters = Parameters(model.shapes, dtype, extra)
    model.initialise(parameters, np.random.default_rng(1))
    return parameters


def silent(share):
    pass


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


# Flat buffers


def test_parameters_and_gradients_are_views_of_the_flat_buffers():
    dataset = load("digits")
    model = build("torch:cnn", dataset)
    parameters = start(model, extra=2)
    gradient = parameters.like()
    gradient.extra[:] = 5, 6
    model.gradient(parameters, *dataset.batch(np.arange(4)), gradient, silent)
    for index, name in enumerate(model.shapes):
        parameter = model.flat.parameters[index]
        assert parameter.data_ptr() == parameters[name].ctypes.data
        assert parameter.grad.data_ptr() == gradient[name].ctypes.data
    assert gradient.extra.tolist() == [5, 6]


def test_other_buffers_and_dtypes_in_between_change_no_bit():
    dataset = load("digits")
    model = build("torch:cnn", dataset)
    parameters, wide = start(model), start(model, "float64")
    first, second, other = parameters.like(), parameters.like(), wide.like()
    batch = dataset.batch(np.arange(16))
    model.gradient(parameters, *batch, first, silent)
    for rows in (3, 0, 30):
        model.gradient(wide, *dataset.batch(np.arange(rows)), other, silent)
    model.evaluate(wide, *dataset.test(0, 4))
    model.gradient(parameters, *batch, second, silent)
    assert first.flat.tobytes() == second.flat.tobytes()
    model.gradient(wide, *batch, other, silent)
    np.testing.assert_allclose(other.flat, first.flat, rtol=1e-3, atol=1e-6)


def test_on_a_device_of_its_own_the_result_is_the_same(monkeypatch):
    """The copies to and from a device, tried on the host: parts come back as they are ready."""
    from mpisgd.models.torch_flat import Flat

    dataset = load("digits")
    results = []
    for staged in (False, True):
        monkeypatch.setattr(Flat, "_staged", staged)
        model = build("torch:cnn", dataset)
        parameters = start(model)
        gradient = parameters.like()
        seen = []

        def ready(low, gradient=gradient, seen=seen):
            seen.append((low, gradient.flat[low:].tobytes()))

        for _ in range(2):
            model.gradient(parameters, *dataset.batch(np.arange(8)), gradient, silent, ready)
            parameters.flat -= 0.1 * gradient.flat
        results.append(
            (seen, gradient.flat.tobytes(), model.evaluate(parameters, *dataset.test(0, 9)))
        )
    assert results[0] == results[1]


def test_what_is_ready_is_final():
    model = small("mobilenetv2-cifar", (3, 8, 8))
    dataset = images((3, 8, 8))
    parameters = start(model)
    gradient = parameters.like()
    early = []
    model.gradient(
        parameters, *dataset.batch(np.arange(2)), gradient, silent,
        lambda low: early.append((low, gradient.flat[low:].copy())),
    )  # fmt: skip
    for low, values in early:
        assert (gradient.flat[low:] == values).all()


def test_an_empty_batch():
    dataset = load("digits")
    model = build("torch:cnn", dataset)
    parameters = start(model)
    gradient = parameters.like()
    gradient.flat[:] = 7
    calls = []
    batch = dataset.batch(np.arange(0))
    assert model.gradient(parameters, *batch, gradient, calls.append, calls.append) == 0.0
    assert calls == [1.0, 0]
    assert not gradient.flat.any()
    assert tuple(model.evaluate(parameters, *dataset.test(0, 0))) == (0.0, 0, 0)


def test_an_error_of_a_listener_comes_out():
    dataset = load("digits")
    model = build("torch:cnn", dataset)
    parameters = start(model)
    batch = dataset.batch(np.arange(4))

    def fail(low):
        raise InterruptedError("no longer wanted")

    with pytest.raises(InterruptedError, match="no longer wanted"):
        model.gradient(parameters, *batch, parameters.like(), silent, fail)
    again = parameters.like()
    assert np.isfinite(model.gradient(parameters, *batch, again, silent))


def test_the_start_depends_on_the_seed_alone():
    dataset = images()
    narrow, wide = (
        start(build("torch:mobilenetv2-cifar", dataset, rank=rank, size=4), dtype)
        for rank, dtype in ((0, "float32"), (3, "float64"))
    )
    assert (wide.flat.astype(np.float32) == narrow.flat).all()
    assert narrow["0.weight"].std() == pytest.approx((2 / 27) ** 0.5, rel=0.1)
    assert (narrow["1.weight"] == 1).all()
    assert not narrow["1.bias"].any()


# Statistics


def normalised():
    from mpisgd.predict.nets.language import Conv, Full, Net, Pool

    net = Net("n", (1, 8, 8), (Conv(4, 3, padding=1), Pool(0), Full(10)))
    return TorchModel("n", net, lambda: torch_nets.build(net), Classes())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_statistics_are_those_of_the_batches(dtype):
    dataset, model = load("digits"), normalised()
    parameters = start(model, dtype)
    assert list(model.statistics.shapes) == ["1.mean", "1.variance", "1.count"]
    rows = 0
    outputs = []
    convolution = model.module[0]
    for size in (8, 24):
        inputs, targets = dataset.batch(np.arange(rows, rows + size))
        model.gradient(parameters, inputs, targets, parameters.like(), silent)
        rows += size
        with torch.no_grad():
            images = torch.from_numpy(inputs.astype(dtype))
            outputs.append(convolution(images).transpose(0, 1).reshape(4, -1).numpy())
    assert model.statistics["1.count"][0] == 32
    means = [o.mean(1) for o in outputs]
    variances = [o.var(1, ddof=1) for o in outputs]
    np.testing.assert_allclose(model.statistics["1.mean"], means[0] / 4 + means[1] * 3 / 4, 1e-4)
    np.testing.assert_allclose(
        model.statistics["1.variance"], variances[0] / 4 + variances[1] * 3 / 4, 1e-4
    )


def test_evaluation_uses_the_statistics_and_leaves_them():
    dataset, model = load("digits"), normalised()
    parameters = start(model)
    model.observe(parameters, dataset.batch(np.arange(50))[0])
    kept = model.statistics.buffer.copy()
    test = dataset.test(0, 40)
    before = model.evaluate(parameters, *test)
    assert (model.statistics.buffer == kept).all()
    model.statistics["1.mean"][:] += 1
    assert model.evaluate(parameters, *test).loss_sum != before.loss_sum
    model.statistics.buffer[:] = kept
    assert model.evaluate(parameters, *test) == before
    model.reset_statistics()
    assert (model.statistics["1.variance"] == 1).all()
    assert not model.statistics["1.mean"].any()
    assert build("torch:cnn", dataset).statistics is None


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


# Mistakes


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("torch:resnet50-cifar", "digits", "needs samples of 3x32x32; these are 1x8x8"),
        ("torch:resnet50", "synthetic", "needs samples of 3x224x224; these are 32"),
        ("torch:mlp", "noise", "needs data with classes"),
        ("torch:cnn", "synthetic", "needs images"),
        ("torch:pixelcnn", "digits", "images of three colours"),
    ],
)
def test_data_that_do_not_fit(name, data, message):
    with pytest.raises(UsageError, match=message):
        build(name, load(data))


def test_classes_that_do_not_fit():
    with pytest.raises(UsageError, match="has 10 classes; the data have 7"):
        build("torch:vgg16-cifar", images(classes=7))


def test_torch_is_imported_only_when_asked_for():
    code = (
        "import sys; from mpisgd.models import build; from mpisgd.data import load\n"
        "build('mlp', load('digits')); print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
