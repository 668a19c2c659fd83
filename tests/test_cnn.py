"""Convolutional networks: gradients, what every model promises, and PyTorch as a second opinion."""

import warnings
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from mpisgd.data import Dataset, load
from mpisgd.models import HIDDEN, build
from mpisgd.training.parameters import Parameters
from mpisgd.values.errors import UsageError

CASES = [
    ("mnist-cnn", (1, 9, 10), (3, 2, 4, 3)),  # odd sizes, and one too small to be pooled
    ("mnist-cnn", (2, 7, 7), (3, 2)),
    ("resnet8", (3, 9, 7), (2,)),
    ("resnet20", (1, 5, 6), (2,)),
]
every_network = pytest.mark.parametrize(("name", "shape", "hidden"), CASES)
SAMPLES, CLASSES = 40, 4


def images(shape, samples=SAMPLES, classes=CLASSES):
    """Normal pixels and labels drawn from one seed."""
    generator = np.random.default_rng(0)
    inputs = generator.standard_normal((samples, *shape)).astype(np.float32)
    targets = generator.integers(0, classes, samples)
    return Dataset("made", inputs, targets, inputs[:8], targets[:8], classes, "", "")


def made(name, shape, hidden, dtype="float64", extra=0):
    dataset = images(shape)
    model = build(name, dataset, hidden=hidden)
    parameters = Parameters(model.shapes, dtype, extra)
    model.initialise(parameters, np.random.default_rng(1))
    parameters.flat += 0.05  # biases that are not zero
    return dataset, model, parameters


def batch(dataset, rows, dtype="float64"):
    inputs, targets = dataset.batch(np.arange(rows))
    return inputs.astype(dtype), targets


def silent(share):
    pass


@every_network
@pytest.mark.parametrize("rows", [2, 7])
def test_the_gradient_is_that_of_the_loss(name, shape, hidden, rows):
    dataset, model, parameters = made(name, shape, hidden)
    inputs, targets = batch(dataset, rows)
    gradient, other = parameters.like(), parameters.like()
    model.gradient(parameters, inputs, targets, gradient, silent)
    step = 1e-6
    chosen = np.random.default_rng(2).permutation(parameters.size)[:40]
    for i in [0, parameters.size - 1, *chosen]:
        value = parameters.flat[i]
        losses = []
        for shifted in (value + step, value - step):
            parameters.flat[i] = shifted
            losses.append(model.gradient(parameters, inputs, targets, other, silent))
        parameters.flat[i] = value
        slope = (losses[0] - losses[1]) / (2 * step)
        assert slope == pytest.approx(gradient.flat[i], rel=1e-5, abs=1e-7)


@every_network
def test_progress_rises_to_one_and_gradients_are_ready_from_the_end(name, shape, hidden):
    dataset, model, parameters = made(name, shape, hidden)
    gradient = parameters.like()
    shares: list[float] = []
    lows: list[int] = []
    seen: dict[int, np.ndarray] = {}

    def ready(low):
        lows.append(low)
        seen[low] = gradient.flat[low:].copy()

    model.gradient(parameters, *batch(dataset, 6), gradient, shares.append, ready)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert len(shares) >= 2 * len(hidden) + 1
    assert lows == sorted(set(lows), reverse=True)
    assert lows[-1] == 0
    for low, values in seen.items():  # final when it was said to be
        assert values.tobytes() == gradient.flat[low:].tobytes()
    without = parameters.like()
    model.gradient(parameters, *batch(dataset, 6), without, silent)
    assert without.flat.tobytes() == gradient.flat.tobytes()


@every_network
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_gradient_is_overwritten_and_the_rest_left_alone(name, shape, hidden, dtype):
    dataset, model, parameters = made(name, shape, hidden, dtype, extra=2)
    first, second = parameters.like(), parameters.like()
    second.buffer[:] = np.nan
    before = parameters.buffer.copy()
    losses = [model.gradient(parameters, *batch(dataset, 9, dtype), g, silent)
              for g in (first, second)]  # fmt: skip
    assert losses[0] == losses[1]
    assert first.flat.tobytes() == second.flat.tobytes()
    assert np.isnan(second.extra).all()
    assert parameters.buffer.tobytes() == before.tobytes()


@every_network
def test_no_call_changes_a_bit_of_another(name, shape, hidden):
    """Scratch is shared: by batches of other sizes, other models, other dtypes, by what overflowed,
    and by evaluations."""
    dataset, model, parameters = made(name, shape, hidden, "float32")
    first, second = parameters.like(), parameters.like()
    model.gradient(parameters, *batch(dataset, 16, "float32"), first, silent)
    for rows in (3, 0, 30):
        model.gradient(parameters, *batch(dataset, rows, "float32"), second, silent)
    for other in CASES:
        for dtype in ("float32", "float64"):
            another, its_model, its_parameters = made(*other, dtype)
            its_parameters.flat[:] = np.inf
            given = batch(another, 20, dtype)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                its_model.gradient(its_parameters, *given, its_parameters.like(), silent)
    model.evaluate(parameters, *dataset.test(0, 4))
    model.gradient(parameters, *batch(dataset, 16, "float32"), second, silent)
    assert first.flat.tobytes() == second.flat.tobytes()


@every_network
def test_an_empty_batch_has_no_loss_and_no_gradient(name, shape, hidden):
    dataset, model, parameters = made(name, shape, hidden)
    gradient = parameters.like()
    gradient.flat[:] = 7
    shares: list[float] = []
    lows: list[int] = []
    assert model.gradient(parameters, *batch(dataset, 0), gradient, shares.append, lows.append) == 0
    assert not gradient.flat.any()
    assert (shares, lows) == ([1.0], [0])
    assert tuple(model.evaluate(parameters, *dataset.test(0, 0))) == (0.0, 0, 0)


@every_network
def test_evaluation_adds_up_over_parts(name, shape, hidden):
    dataset, model, parameters = made(name, shape, hidden)
    inputs, targets = dataset.batch(np.tile(np.arange(SAMPLES), 5))  # more than one piece inside
    whole = model.evaluate(parameters, inputs, targets)
    parts = [model.evaluate(parameters, inputs[p], targets[p])
             for p in (slice(0, 77), slice(77, None))]  # fmt: skip
    assert whole.samples == 5 * SAMPLES
    assert whole.correct == sum(part.correct for part in parts)
    assert whole.loss_sum == pytest.approx(sum(part.loss_sum for part in parts), rel=1e-9)


@every_network
def test_the_same_draws_for_every_dtype(name, shape, hidden):
    single = made(name, shape, hidden, "float32")[2]
    double = made(name, shape, hidden, "float64")[2]
    np.testing.assert_allclose(single.flat, double.flat, rtol=1e-6, atol=1e-7)


@every_network
def test_the_loss_falls_when_the_gradient_is_followed(name, shape, hidden):
    dataset, model, parameters = made(name, shape, hidden, "float32")
    gradient = parameters.like()
    given = batch(dataset, 30, "float32")
    last = model.gradient(parameters, *given, gradient, silent)
    for _ in range(5):
        parameters.flat -= 0.01 * gradient.flat
        before, last = last, model.gradient(parameters, *given, gradient, silent)
        assert last < before


def test_parameter_counts():
    """He et al. 2016, table 6: 0.27 million for 20 layers; the rest by hand."""
    cifar = images((3, 32, 32), classes=10)
    assert Parameters(build("resnet20", cifar).shapes).size == 269_722
    # Convolutions: 27 w, then 9 (2 w^2) + 9 (2 + 4) w^2 + 9 (8 + 16) w^2; norms 14 channels of w.
    width = 8
    count = 27 * width + 9 * (2 + 6 + 24) * width**2 + 2 * (3 + 4 + 8) * width + 40 * width + 10
    assert Parameters(build("resnet8", cifar, hidden=(width,)).shapes).size == count
    mnist = images((1, 28, 28), classes=10)
    widths = (1, *HIDDEN["mnist-cnn"])
    count = sum(9 * a * b + 2 * b for a, b in pairwise(widths)) + 32 * 10 + 10
    assert Parameters(build("mnist-cnn", mnist).shapes).size == count


@pytest.mark.parametrize(
    ("name", "dataset", "hidden", "words"),
    [
        ("mnist-cnn", load("synthetic", samples=20), None, ["--data", "'synthetic'", "images"]),
        ("resnet8", replace(images((3, 8, 8)), classes=0), None, ["--data", "classes"]),
        ("mnist-cnn", images((1, 8, 8)), (4, 0), ["--hidden", "'4,0'", ">= 1"]),
        ("mnist-cnn", images((1, 8, 8)), (), ["--hidden", "''", ">= 1"]),
        ("resnet20", images((3, 8, 8)), (4, 8), ["--hidden", "'4,8'", "first width"]),
    ],
)
def test_a_users_mistakes(name, dataset, hidden, words):
    with pytest.raises(UsageError) as refusal:
        build(name, dataset, hidden=hidden)
    assert all(word in str(refusal.value) for word in words), refusal.value


@pytest.mark.parametrize(
    ("name", "shape", "hidden"),
    [*CASES, ("mnist-cnn", (1, 28, 28), (16, 16, 32, 32)), ("resnet8", (3, 32, 32), (8,))],
)
def test_gradients_are_those_of_autograd(name, shape, hidden):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    dataset, model, parameters = made(name, shape, hidden)
    gradient = parameters.like()
    inputs, targets = batch(dataset, 9)
    loss = model.gradient(parameters, inputs, targets, gradient, silent)
    leaves = {key: torch.tensor(view.copy(), requires_grad=True)
              for key, view in parameters.views.items()}  # fmt: skip
    follow = _mnist_cnn if name == "mnist-cnn" else _resnet
    depth = len(hidden) if name == "mnist-cnn" else {"resnet8": 1, "resnet20": 3}[name]
    logits = follow(torch, leaves, torch.tensor(inputs), depth)
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor(targets))
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    for key, leaf in leaves.items():
        np.testing.assert_allclose(gradient[key], leaf.grad.numpy(), rtol=1e-8, atol=1e-11)


def _convolution(torch, x, weight, stride=1):
    return torch.nn.functional.conv2d(x, weight.permute(2, 3, 0, 1), stride=stride, padding=1)


def _mnist_cnn(torch, leaves, x, depth):
    """In the paper's order: the rectifier before the pooling."""
    for i in range(1, depth + 1):
        direction, gain = leaves[f"conv{i}.direction"], leaves[f"conv{i}.gain"]
        norm = (direction * direction).sum((0, 1, 3)).sqrt()
        x = _convolution(torch, x, direction * (gain / norm)[:, None])
        x = torch.relu(x + leaves[f"conv{i}.bias"][None, :, None, None])
        if min(x.shape[2:]) > 1:
            x = torch.nn.functional.max_pool2d(x, 2)
    return x.flatten(1) @ leaves["classifier.weight"] + leaves["classifier.bias"]


def _resnet(torch, leaves, x, blocks):
    def norm(x, name):
        scale, shift = leaves[f"{name}.scale"], leaves[f"{name}.shift"]
        return torch.nn.functional.batch_norm(x, None, None, scale, shift, True)

    x = torch.relu(norm(_convolution(torch, x, leaves["stem.conv.weight"]), "stem.norm"))
    for stage in range(3):
        for number in range(1, blocks + 1):
            name, stride = f"block{stage + 1}.{number}", 2 if stage and number == 1 else 1
            y = _convolution(torch, x, leaves[f"{name}.conv1.weight"], stride)
            y = torch.relu(norm(y, f"{name}.norm1"))
            y = norm(_convolution(torch, y, leaves[f"{name}.conv2.weight"]), f"{name}.norm2")
            past = x[:, :, ::stride, ::stride]
            past = torch.nn.functional.pad(past, (0, 0, 0, 0, 0, y.shape[1] - past.shape[1]))
            x = torch.relu(y + past)
    return x.mean((2, 3)) @ leaves["classifier.weight"] + leaves["classifier.bias"]
