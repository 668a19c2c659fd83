"""PyTorch networks behind the Model protocol, on the same flat buffers as all other models.

Parameters of the module are views of the flat buffer, and each gradient is moved to its place in
the other as soon as backward has it: NumPy, or CuPy on a device (`--backend cupy`), MPI and PyTorch
see one memory. What data a network can learn: torch_data, asked before.
"""

import dataclasses
import os
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from allreduce.arrays import HOST, Device, Host
from mpisgd.data import Dataset
from mpisgd.models import ModelOptions, Progress, Ready, Sums
from mpisgd.models.layers import Meter
from mpisgd.predict.nets.language import Net, lower
from mpisgd.training.parameters import Parameters
from mpisgd.values.errors import MissingExtra

try:
    import torch
    from torch import nn
except ImportError:
    raise MissingExtra("PyTorch", "--model torch:...", "torch") from None

from mpisgd.models.torch_flat import Flat, Running, tensor

# Threads change bits and timings; the command line sets this variable from --blas-threads.
THREADS = "OMP_NUM_THREADS"


class Criterion(Protocol):
    """What is learned: the loss of a network's outputs."""

    rows: int  # samples evaluated at once: bounds the memory

    def loss(self, outputs: Any, inputs: Any, targets: Any) -> Any:
        """The mean loss of the samples."""

    def sums(self, outputs: Any, inputs: Any, targets: Any) -> tuple[float, int]:
        """The sum of the losses, and how many samples are correct."""


class Classes:
    """Softmax cross-entropy in nats; correct where the largest output is the target's."""

    rows = 256

    def loss(self, outputs: Any, inputs: Any, targets: Any) -> Any:
        return nn.functional.cross_entropy(outputs, targets)

    def sums(self, outputs: Any, inputs: Any, targets: Any) -> tuple[float, int]:
        losses = nn.functional.cross_entropy(outputs, targets, reduction="none")
        return float(losses.double().sum()), int((outputs.argmax(1) == targets).sum())


class Own(Classes):
    """The loss of a user's module, `loss(outputs, targets)`, or else that of classes."""

    def __init__(self, module: Any):
        self.own = getattr(module, "loss", None)

    def loss(self, outputs: Any, inputs: Any, targets: Any) -> Any:
        if self.own is None:
            return super().loss(outputs, inputs, targets)
        return self.own(outputs, targets)

    def sums(self, outputs: Any, inputs: Any, targets: Any) -> tuple[float, int]:
        """Correct where the largest output is the target's, in a table (samples, classes)."""
        if self.own is None:
            return super().sums(outputs, inputs, targets)
        correct = (outputs.argmax(1) == targets).sum() if outputs.ndim == 2 else 0
        return float(self.own(outputs, targets)) * len(targets), int(correct)


class TorchModel:
    """A module whose parameters lie in forward order, and its loss.

    `statistics`: the running means and variances of its normalising layers, None if it has none.
    """

    def __init__(
        self,
        name: str,
        net: Net,
        make: Callable[[], Any],
        criterion: Criterion,
    ):
        """make: builds the module that `net` describes."""
        torch.set_num_threads(int(os.environ.get(THREADS, "1") or "1"))
        self.name, self.sample, self.criterion = name, net.sample, criterion
        self._make = make
        with torch.device("meta"):  # the values will be those of flat buffers
            self.module = make()
        self._macs = _macs(self.module, net)
        self._total = 3 * sum(self._macs.values())  # forward, and twice as many backward
        self._meter: Meter | None = None
        self.flat = Flat(self.module, self._arrived)
        self.shapes = self.flat.shapes
        self._running = Running.of(self.module)
        self.statistics = None if self._running is None else self._running.statistics
        for part_name, work in self._macs.items():
            part = self.module.get_submodule(part_name)
            part.register_forward_hook(lambda *_, work=work: self._advance(work))

    def move(self, memory: Host) -> None:
        """Parameters and batches will lie there; running statistics stay the host's."""
        if self._running is not None and isinstance(memory, Device):
            self._running.device = f"cuda:{memory.number}"

    def plain(self, parameters: Parameters) -> Any:
        """The module with a copy of `parameters` in memory of its own, without hooks: what any
        PyTorch program would have."""
        module = self._make()
        module.load_state_dict(
            {name: torch.from_numpy(view.copy()) for name, view in parameters.views.items()},
            strict=False,
        )
        return module.to(tensor(parameters.flat).dtype)

    def initialise(self, parameters: Parameters, generator: np.random.Generator) -> None:
        """Weights normal with variance 2 / inputs (He et al. 2015), biases zero, scales one."""
        for name, shape in self.shapes.items():
            view = parameters[name]
            if len(shape) > 1:
                inputs = int(np.prod(shape[1:]))
                view[...] = generator.standard_normal(shape) * (2 / inputs) ** 0.5
            else:
                view[...] = 1 if name.endswith("weight") else 0

    def gradient(
        self,
        parameters: Parameters,
        inputs: np.ndarray,
        targets: np.ndarray,
        gradient: Parameters,
        progress: Progress,
        ready: Ready | None = None,
    ) -> float:
        """See Model.gradient. `progress` is called behind each layer forward, and backward from
        hooks as each gradient is accumulated; `ready` from those too."""
        if len(targets) == 0:
            gradient.flat[:] = 0
            progress(1.0)
            if ready is not None:
                ready(0)
            return 0.0
        self.flat.bind(parameters, gradient, ready)
        images, labels = self._batch(parameters, inputs, targets)
        last = 0.0

        def told(share: float) -> None:
            nonlocal last
            last = share
            progress(share)

        with self._metered(told, len(targets)):
            loss = self.criterion.loss(self._learn(images), images, labels)
            # Hooks must run here, on the caller's thread: they send messages.
            with torch.autograd.set_multithreading_enabled(False):
                loss.backward()
        self.flat.finish()
        if last < 1.0:
            progress(1.0)
        memory, loss = parameters.memory, loss.detach()
        return float(loss) if memory is HOST else memory.asarray(loss.double())

    def evaluate(self, parameters: Parameters, inputs: np.ndarray, targets: np.ndarray) -> Sums:
        """See Model.evaluate. Normalising layers use `statistics`."""
        loss_sum, correct, rows = 0.0, 0, self.criterion.rows
        self.flat.bind(parameters, None, None)
        self._mode(learning=False)
        if self._running is not None:
            self._running.load(tensor(parameters.flat).dtype)
        with torch.no_grad():
            for start in range(0, len(targets), rows):
                part = slice(start, start + rows)
                images, labels = self._batch(parameters, inputs[part], targets[part])
                sums = self.criterion.sums(self.module(images), images, labels)
                loss_sum, correct = loss_sum + sums[0], correct + sums[1]
        return Sums(loss_sum, correct, len(targets))

    def observe(self, parameters: Parameters, inputs: np.ndarray) -> None:
        """Take the batch `inputs` into `statistics`, at the given parameters; nothing else."""
        self.flat.bind(parameters, None, None)
        with torch.no_grad():
            self._learn(self._batch(parameters, inputs, np.zeros(len(inputs), np.int64))[0])

    def reset_statistics(self) -> None:
        """Forget what was remembered: means zero, variances one, counts zero."""
        if self._running is not None:
            self._running.reset()

    def _learn(self, images: Any) -> Any:
        """The outputs of the module in training, which its statistics remember."""
        self._mode(learning=True)
        if self._running is None:
            return self.module(images)
        self._running.load(images.dtype, len(images))
        outputs = self.module(images)
        self._running.store()
        return outputs

    def _mode(self, learning: bool) -> None:
        """Switch all modules, which takes a while, only where that changes something."""
        if self.module.training != learning:
            self.module.train(learning)

    def _batch(self, parameters: Parameters, inputs: np.ndarray, targets: np.ndarray) -> Any:
        shaped = inputs.reshape(len(inputs), *self.sample).astype(parameters.dtype, copy=False)
        if parameters.memory is HOST:
            shaped = np.ascontiguousarray(shaped)
        return tensor(shaped), tensor(targets)

    @contextmanager
    def _metered(self, progress: Progress, rows: int):
        self._meter = Meter(progress, rows * self._total)
        self._rows = rows
        try:
            yield
        finally:
            self._meter = None

    def _advance(self, macs: int) -> None:
        if self._meter is not None:
            self._meter.advance(self._rows * macs)

    def _arrived(self, name: str) -> None:
        """The gradient of the parameter `name` is complete: its layer's backward work is done."""
        owner, _, kind = name.rpartition(".")
        if kind == "weight" and owner in self._macs:
            self._advance(2 * self._macs[owner])


def _macs(module: Any, net: Net) -> dict[str, int]:
    """Multiply-adds of one sample in each convolution and full layer, by the module's name; in a
    module that nothing describes its weights, in each part that has some."""
    if not net.chain:
        owned = ((n, list(p.parameters(recurse=False))) for n, p in module.named_modules())
        return {name: sum(each.numel() for each in some) for name, some in owned if some}
    names = [n for n, part in module.named_modules() if isinstance(part, nn.Conv2d | nn.Linear)]
    works = [layer.macs for layer in lower(net) if layer.macs]
    return dict(zip(names, works, strict=True))


def wrap(name: str, dataset: Dataset, make: Callable[[], Any]) -> TorchModel:
    """A user's module, which `make` builds, for the samples of `dataset`."""
    sample = tuple(dataset.train_inputs.shape[1:])
    return TorchModel(name, Net(name, sample, ()), make, Own(make()))


def build_net(dataset: Dataset, options: ModelOptions) -> TorchModel:
    """The network that `mpisgd predict --net` describes under the name behind `torch:`."""
    from mpisgd.models import torch_nets
    from mpisgd.predict import nets

    net = nets.find(options.name.partition(":")[2])
    return TorchModel(options.name, net, lambda: torch_nets.build(net), Classes())


def build_mlp(dataset: Dataset, options: ModelOptions) -> TorchModel:
    """The network of `mlp`, with `hidden` layers, through PyTorch."""
    from mpisgd.models import mlp
    from mpisgd.predict.nets.language import Chain, Full

    same = mlp.build_mlp(dataset, options)
    hidden: Chain = tuple(Full(units, relu=True) for units in same.widths[1:-1])
    return _small(options.name, dataset, (dataset.features, 1, 1), hidden)


def build_cnn(dataset: Dataset, options: ModelOptions) -> TorchModel:
    """Four 3x3 convolutions of 16, 16, 32, 32 channels, a maximum pool behind each second."""
    from mpisgd.predict.nets.language import Conv, Pool

    shape = dataset.train_inputs.shape[1:]
    pair = [
        (Conv(width, 3, padding=1, bias=True, norm=False),) * 2 + (Pool(2, 2),)
        for width in (16, 32)
    ]
    return _small(options.name, dataset, shape, (*pair[0], *pair[1]))


def build_pixelcnn(dataset: Dataset, options: ModelOptions) -> TorchModel:
    """A PixelCNN for the data set's images."""
    from mpisgd.models.torch_pixelcnn import Bits, network
    from mpisgd.predict.nets import small

    shape = tuple(dataset.train_inputs.shape[1:])
    net = dataclasses.replace(small.pixelcnn(), sample=shape)
    return TorchModel(options.name, net, network, Bits())


def _small(name: str, dataset: Dataset, sample: Any, chain: Any) -> TorchModel:
    from mpisgd.models import torch_nets
    from mpisgd.predict.nets.language import Full

    net = Net(name, sample, (*chain, Full(dataset.classes)))
    return TorchModel(name, net, lambda: torch_nets.build(net), Classes())
