"""The last layer: planes flattened, and one fully connected layer without a rectifier."""

import math

import numpy as np

from mpisgd.models.layer import Layer, Pass
from mpisgd.models.planes import WORKSPACE, Array, Planes
from mpisgd.training.parameters import Parameters


class Classifier(Layer):
    """logits = x W + b, with x the pixels of all channels: (rows, channels * height * width)."""

    def __init__(self, name: str, channels: int, size: tuple[int, int], classes: int):
        super().__init__(name)
        self.features, self.classes = channels * size[0] * size[1], classes
        self.shapes = {f"{name}.weight": (self.features, classes), f"{name}.bias": (classes,)}
        self.work = 3 * self.features * classes
        self._x: Planes
        self._features: Array

    def initialise(self, parameters: Parameters, generator: np.random.Generator) -> None:
        """Weights normal with variance 1 / features, biases zero."""
        weight = parameters[f"{self.name}.weight"]
        weight[...] = generator.standard_normal(weight.shape) / math.sqrt(self.features)
        parameters[f"{self.name}.bias"][...] = 0

    def forward(self, x: Planes, run: Pass) -> Array:
        """(rows, classes)."""
        shape = (x.rows, x.channels, x.height, x.width)
        images = WORKSPACE.array(f"{self.name}.features", shape, x.flat)
        images[...] = x.inner.transpose(1, 0, 2, 3)
        self._x, self._features = x, images.reshape(x.rows, self.features)
        logits = WORKSPACE.array(f"{self.name}.logits", (x.rows, self.classes), x.flat)
        run.multiply(self._features, run.parameters[f"{self.name}.weight"], logits)
        run.xp.add(logits, run.parameters[f"{self.name}.bias"], out=logits)
        return logits

    def backward(self, slope: Array, run: Pass) -> Planes:
        x, features = self._x, self._features
        run.slope(f"{self.name}.bias")[...] = slope.sum(axis=0)
        run.multiply(features.T, slope, run.slope(f"{self.name}.weight"))
        run.multiply(slope, run.parameters[f"{self.name}.weight"].T, features)
        down_slope = WORKSPACE.planes(
            f"{self.name}.slope", x.channels, x.rows, x.height, x.width, x.flat
        )
        images = features.reshape(x.rows, x.channels, x.height, x.width)
        down_slope.inner[...] = images.transpose(1, 0, 2, 3)
        down_slope.clear()
        return down_slope
