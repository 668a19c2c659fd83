"""Residual blocks (He et al. 2016): y = max(0, x + body(x))."""

from collections.abc import Sequence

import numpy as np

from mpisgd.models.convolution import Convolution
from mpisgd.models.layer import Layer, Pass
from mpisgd.models.normalisation import BatchNormalisation
from mpisgd.models.planes import WORKSPACE, Planes
from mpisgd.models.rectifier import Rectifier, blocked
from mpisgd.training.parameters import Parameters


class Residual(Layer):
    """Two normalised convolutions beside a shortcut without parameters.

    Where the image shrinks and the channels grow, the shortcut takes every second pixel, and zeros
    for the new channels (option A of the paper).
    """

    def __init__(
        self, name: str, inputs: int, outputs: int, size: tuple[int, int], stride: int = 1
    ):
        """`size`: (height, width) of the images that come in."""
        super().__init__(name)
        self.inputs, self.stride = inputs, stride
        first = Convolution(f"{name}.conv1", inputs, outputs, size, stride)
        self.size = first.size
        self.body: Sequence[Layer] = (
            first,
            BatchNormalisation(f"{name}.norm1", outputs),
            Rectifier(f"{name}.rectifier"),
            Convolution(f"{name}.conv2", outputs, outputs, first.size),
            BatchNormalisation(f"{name}.norm2", outputs),
        )
        self.shapes = {k: v for layer in self.body for k, v in layer.shapes.items()}
        self.statistics = {k: v for layer in self.body for k, v in layer.statistics.items()}
        self.work = sum(layer.work for layer in self.body)
        self._y: Planes

    def initialise(self, parameters: Parameters, generator: np.random.Generator) -> None:
        for layer in self.body:
            layer.initialise(parameters, generator)

    def forward(self, x: Planes, run: Pass) -> Planes:
        y = x
        for layer in self.body:
            y = layer.forward(y, run)
        if self.stride == 1:
            run.xp.add(y.flat, x.flat, out=y.flat)
        else:
            kept = y.inner[: self.inputs]
            run.xp.add(kept, x.inner[:, :, :: self.stride, :: self.stride], out=kept)
        run.xp.maximum(y.flat, 0, out=y.flat)
        self._y = y
        return y

    def backward(self, slope: Planes, run: Pass) -> Planes:
        blocked(slope, self._y, run)
        shape = (slope.channels, slope.rows, slope.height, slope.width)
        past = WORKSPACE.planes(f"{self.name}.shortcut", *shape, slope.flat)
        past.flat[...] = slope.flat
        for layer in reversed(self.body):
            slope = layer.backward(slope, run)
        if self.stride == 1:
            run.xp.add(slope.flat, past.flat, out=slope.flat)
        else:
            target = slope.inner[:, :, :: self.stride, :: self.stride]
            run.xp.add(target, past.inner[: self.inputs], out=target)
        return slope
