"""PyTorch's networks on the flat buffers: views, statistics, mistakes."""

import subprocess
import sys

import numpy as np
import pytest

from allreduce import arrays
from allreduce.testing import device as double
from mpisgd.data import load
from mpisgd.data.device import there as on_device
from mpisgd.models import build
from mpisgd.values.errors import UsageError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch_runs import images, silent, small, start  # noqa: E402

from mpisgd.models import torch_nets  # noqa: E402
from mpisgd.models.torch_model import Classes, TorchModel  # noqa: E402

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


def test_parameters_on_a_device_are_used_and_differentiated_where_they_lie(monkeypatch):
    """On a double, whose bytes PyTorch sees as those of the host once all before is done."""
    from mpisgd.models import torch_flat, torch_model

    on_host = torch_flat.tensor

    def tensor(array):
        if isinstance(array, double.ndarray):
            array.now()
        return on_host(getattr(array, "host", array))

    for module in (torch_flat, torch_model):
        monkeypatch.setattr(module, "tensor", tensor)
    dataset = load("digits")
    model, memory = build("torch:cnn", dataset), arrays.of(double.zeros(1))
    here = start(model)
    there, batches = here.to(memory), on_device(dataset, memory)
    slope, slope_there, rows = here.like(), there.like(), np.arange(8)
    double.zeros(1).now()
    loss = model.gradient(here, *dataset.batch(rows), slope, silent)
    told = model.gradient(there, *batches.batch(rows), slope_there, silent)
    assert isinstance(told, double.ndarray)
    assert (float(told), slope_there.flat.now().tobytes()) == (loss, slope.flat.tobytes())
    assert model.evaluate(there, *batches.test(0, 9)) == model.evaluate(here, *dataset.test(0, 9))


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


# A user's module


OWN = """
from torch import nn


class Net(nn.Sequential):
    def __init__(self, dataset, hidden: int = 64):
        super().__init__(
            nn.Flatten(), nn.Linear(dataset.features, hidden), nn.ReLU(),
            nn.Linear(hidden, dataset.classes),
        )


class Smooth(Net):
    def loss(self, outputs, targets):
        return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.5)


def make(dataset):
    return Net(dataset, 8)
"""


def test_a_users_module_learns_as_ours_does(tmp_path):
    """Softmax cross-entropy, or its own loss; `progress` ends at 1, `ready` at 0."""
    from mpisgd.experiment import building
    from mpisgd.experiment.experiment import Experiment

    (tmp_path / "net.py").write_text(OWN)
    dataset, losses = load("digits"), []
    batch = dataset.batch(np.arange(16))
    for name in ("torch:mlp", f"{tmp_path}/net.py:Net", f"{tmp_path}/net.py:Smooth"):
        model = building.build_model(Experiment.read({"model": name}), dataset, 0, 1)
        parameters = start(model)
        gradient, shares, lows = parameters.like(), [], []
        loss = model.gradient(parameters, *batch, gradient, shares.append, lows.append)
        sums = model.evaluate(parameters, *batch)
        losses.append((loss, gradient.flat.tobytes(), sums.correct, sums.loss_sum))
        assert shares[-1] == 1.0
        assert lows[-1] == 0
        assert shares == sorted(shares)
    ours, own, smooth = losses
    assert own == ours
    assert smooth[0] != own[0]
    assert smooth[2] == own[2]
    assert smooth[3] == pytest.approx(16 * smooth[0], rel=1e-6)
    few = {"model": f"{tmp_path}/net.py:make"}
    model = building.build_model(Experiment.read(few), dataset, 0, 1)
    assert model.shapes["1.weight"] == (8, 64)
