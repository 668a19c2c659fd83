"""max(0, x), and with a bias: max(0, x + b)."""

import math

import numpy as np

from mpisgd.models.layer import Layer, Pass
from mpisgd.models.planes import WORKSPACE, Planes
from mpisgd.training.parameters import Parameters


class Rectifier(Layer):
    """y = max(0, x), in place."""

    def __init__(self, name: str):
        super().__init__(name)
        self._y: Planes

    def forward(self, x: Planes, run: Pass) -> Planes:
        run.xp.maximum(x.flat, 0, out=x.flat)
        self._y = x
        return x

    def backward(self, slope: Planes, run: Pass) -> Planes:
        blocked(slope, self._y, run)
        return slope


class BiasedRectifier(Layer):
    """y[k] = max(0, x[k] + bias[k]). `bias`: (channels,)."""

    def __init__(self, name: str, channels: int):
        super().__init__(name)
        self.shapes = {f"{name}.bias": (channels,)}
        self._y: Planes

    def initialise(self, parameters: Parameters, generator: np.random.Generator) -> None:
        """Zeros."""
        parameters[f"{self.name}.bias"][...] = 0

    def forward(self, x: Planes, run: Pass) -> Planes:
        shape = (x.channels, x.rows, x.height, x.width)
        self._y = y = WORKSPACE.planes(f"{self.name}.rectified", *shape, x.flat)
        run.xp.add(x.matrix, run.parameters[f"{self.name}.bias"][:, None], out=y.matrix)
        run.xp.maximum(y.flat, 0, out=y.flat)
        y.clear()
        return y

    def backward(self, slope: Planes, run: Pass) -> Planes:
        blocked(slope, self._y, run)
        run.slope(f"{self.name}.bias")[...] = slope.matrix.sum(axis=1)
        return slope


def blocked(slope: Planes, y: Planes, run: Pass) -> None:
    """Zero the slope where the output is."""
    count = math.prod(slope.flat.shape)
    passed = WORKSPACE.array("passed", (count,), slope.flat, flags=True)
    run.xp.greater(y.flat, 0, out=passed)
    run.xp.multiply(slope.flat, passed, out=slope.flat)
