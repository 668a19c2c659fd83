"""A module's parameters, gradients and running statistics as views of flat buffers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from mpisgd.models import Ready
from mpisgd.training.parameters import Parameters

LEAST_WEIGHT = 0.1  # of a new batch in running statistics, as in PyTorch


def tensor(array: Any) -> Any:
    """A tensor over the memory of an array: of the host, or of a device by its CUDA interface."""
    if isinstance(array, np.ndarray):
        return torch.from_numpy(array)
    return torch.as_tensor(array, device=f"cuda:{array.device.id}")


class Flat:
    """The parameters of a module in the flat buffers of others, wherever these lie.

    `shapes`: name -> shape, in the order in which they lie in the buffers.
    """

    def __init__(self, module: Any, arrived: Callable[[str], None]):
        """arrived(name): called when a parameter's gradient of a backward pass is complete."""
        self.module = module
        self.parameters: list[nn.Parameter] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._starts = [0]
        self._owners: list[str] = []
        self._arrived = arrived
        for name, old in list(module.named_parameters()):
            index = len(self.parameters)
            owner, _, attribute = name.rpartition(".")
            parameter = nn.Parameter(torch.empty(0))
            parameter.register_post_accumulate_grad_hook(
                lambda _, index=index, name=name: self._complete(index, name)
            )
            setattr(module.get_submodule(owner), attribute, parameter)
            self.parameters.append(parameter)
            self.shapes[name] = tuple(old.shape)
            self._starts.append(self._starts[-1] + old.numel())
            self._owners.append(owner)
        self._values: Parameters | None = None
        self._slopes: Parameters | None = None
        self._slope_views: list[Any] = []
        self._ready: Ready | None = None
        self._done = [False] * len(self.parameters)
        self._top = self._told = len(self.parameters)

    def bind(self, values: Parameters, slopes: Parameters | None, ready: Ready | None) -> None:
        """Let the module's parameters be `values`, and put its gradients into `slopes`.

        ready: see Model.gradient.
        """
        for parameter in self.parameters:
            parameter.grad = None
        if values is not self._values:
            for parameter, view in zip(self.parameters, self._views(values), strict=True):
                parameter.data = view
            self._values = values
        if slopes is not None and slopes is not self._slopes:
            self._slopes, self._slope_views = slopes, self._views(slopes)
        self._ready = ready
        self._done = [False] * len(self.parameters)
        self._top = self._told = len(self.parameters)

    def finish(self) -> None:
        """After the backward pass: what no hook has delivered, as of layers that were not used."""
        for view, done in zip(self._slope_views, self._done, strict=True):
            if not done:
                view.zero_()  # and no `grad`, as PyTorch has it
        self._top = 0
        self._deliver()
        self._ready = None

    def _views(self, whole: Parameters) -> list[Any]:
        """Each parameter's part of the flat tensor."""
        home = tensor(whole.flat)
        bounds = zip(self._starts, self._starts[1:], self.shapes.values(), strict=False)
        return [home[start:stop].view(shape) for start, stop, shape in bounds]

    def _complete(self, index: int, name: str) -> None:
        # To a gradient that is there PyTorch would add: with its zeros twice the work of moving it.
        parameter, view = self.parameters[index], self._slope_views[index]
        view.copy_(parameter.grad)
        parameter.grad = view
        self._done[index] = True
        while self._top and self._done[self._top - 1]:
            self._top -= 1
        self._deliver()
        self._arrived(name)

    def _deliver(self) -> None:
        """Tell how far from the end the gradient is final, once a layer."""
        top = self._top
        whole = top == 0 or self._owners[top - 1] != self._owners[top]
        if not whole or top == self._told:
            return
        self._told = top
        if self._ready is not None:
            self._ready(self._starts[top])


class Running:
    """What a module's batch normalisations remember for evaluation, in one flat buffer.

    `statistics`: NAME.mean and NAME.variance (channels,) and NAME.count (1,), the samples seen,
    for each normalising layer NAME; float64, which holds float32 as it is.
    """

    def __init__(self, layers: dict[str, Any]):
        self.layers, self.device = layers, "cpu"
        shapes: dict[str, tuple[int, ...]] = {}
        for name, layer in layers.items():
            size = (layer.num_features,)
            shapes |= {f"{name}.mean": size, f"{name}.variance": size, f"{name}.count": (1,)}
            layer.num_batches_tracked = None  # it counts batches, which nobody asks for
        self.statistics = Parameters(shapes, "float64")
        self._counts = [self.statistics[f"{name}.count"] for name in layers]
        self._host = torch.from_numpy(self.statistics.flat)
        self._flat = torch.empty(0)
        self.reset()

    @classmethod
    def of(cls, module: Any) -> "Running | None":
        """Those of `module`; None if it does not normalise."""
        layers = {
            name: part for name, part in module.named_modules() if isinstance(part, nn.BatchNorm2d)
        }
        return cls(layers) if layers else None

    def reset(self) -> None:
        """Means zero, variances one, counts zero."""
        for name, view in self.statistics.views.items():
            view[...] = name.endswith(".variance")

    def load(self, dtype: Any, rows: int = 0) -> None:
        """Before the module runs, on a copy of its own dtype; on `rows` samples to learn from.

        A batch counts for a tenth, PyTorch's rule, but the first ones for what they are of all
        samples so far: nothing of the starting values stays.
        """
        if self._flat.dtype != dtype or not self._flat.numel():
            self._flat = torch.empty_like(self._host, dtype=dtype, device=self.device)
            start = 0
            for layer in self.layers.values():
                middle, stop = start + layer.num_features, start + 2 * layer.num_features
                layer.running_mean = self._flat[start:middle]
                layer.running_var = self._flat[middle:stop]
                start = stop + 1
        if rows:
            for count, layer in zip(self._counts, self.layers.values(), strict=True):
                count += rows
                layer.momentum = max(LEAST_WEIGHT, rows / float(count[0]))
        self._flat.copy_(self._host)

    def store(self) -> None:
        """After the module has learned from a batch: what it remembers now."""
        self._host.copy_(self._flat)
