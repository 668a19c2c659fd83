"""A network: layers in a row behind the members of `Model`."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from allreduce.arrays import Host
from mpisgd.models import Progress, Sums
from mpisgd.models.layer import Layer, Pass
from mpisgd.models.layers import Meter, cross_entropy, evaluated, mean_loss
from mpisgd.models.planes import WORKSPACE, Array, Planes
from mpisgd.models.statistics import forget
from mpisgd.training.parameters import Parameters

# Samples that are evaluated at once: bounds the scratch that evaluation needs.
EVALUATION_ROWS = 64


class Network:
    """Layers from images to logits, and softmax cross-entropy.

    `statistics`: what normalising layers remember for evaluation, float64 in one buffer; not
    trained, None without such layers. Each `gradient` takes its batch into it.
    """

    def __init__(self, name: str, channels: int, size: tuple[int, int], layers: Sequence[Layer]):
        """`channels`, `size`: of the images; the last layer gives logits (rows, classes)."""
        self.name, self.channels, self.size, self.layers = name, channels, size, layers
        self.shapes = {k: v for layer in layers for k, v in layer.shapes.items()}
        kept = {k: v for layer in layers for k, v in layer.statistics.items()}
        self.statistics = Parameters(kept, "float64") if kept else None
        if self.statistics is not None:
            forget(self.statistics)
        self.work = sum(layer.work for layer in layers)
        self._starts: list[int] = []  # where each layer's parameters begin
        low = 0
        for layer in layers:
            self._starts.append(low)
            low += sum(math.prod(shape) for shape in layer.shapes.values())

    def move(self, memory: Host) -> None:
        """Remember statistics there, where the parameters lie, instead; they are as at first."""
        if self.statistics is not None and memory is not self.statistics.memory:
            self.statistics = Parameters(self.statistics.shapes, "float64", memory=memory)
            forget(self.statistics)

    def initialise(self, parameters: Parameters, generator: np.random.Generator) -> None:
        """See Model.initialise; each layer says how."""
        for layer in self.layers:
            layer.initialise(parameters, generator)

    def gradient(
        self,
        parameters: Parameters,
        inputs: np.ndarray,
        targets: np.ndarray,
        gradient: Parameters,
        progress: Progress,
        ready: Callable[[int], object] | None = None,
        needs: Callable[[int], object] | None = None,
    ) -> float:
        """See Model.gradient. inputs: (rows, channels, height, width)."""
        rows = len(targets)
        if rows == 0:
            gradient.flat[...] = 0
            progress(1.0)
            if ready is not None:
                ready(0)
            return 0.0
        run = Pass(parameters, self.statistics, Meter(progress, rows * self.work), True, gradient)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            logits = self._forward(inputs, run, needs)
            losses, positions = cross_entropy(logits, targets, run.memory)
            slope = logits
            slope.reshape(-1)[positions] -= 1
            slope /= rows
            for layer, low in zip(reversed(self.layers), reversed(self._starts), strict=True):
                slope = layer.backward(slope, run)
                if ready is not None and layer.shapes:
                    ready(low)
            return mean_loss(losses, rows, run.memory)

    def evaluate(self, parameters: Parameters, inputs: np.ndarray, targets: np.ndarray) -> Sums:
        """See Model.evaluate; normalising layers use `statistics`."""
        run = Pass(parameters, self.statistics, Meter(None, 1), False)
        return evaluated(
            lambda part: self._forward(inputs[part], run), targets, EVALUATION_ROWS, run.memory
        )

    def _forward(
        self, inputs: np.ndarray, run: Pass, needs: Callable[[int], object] | None = None
    ) -> Array:
        like = run.parameters.flat
        x: Any = WORKSPACE.planes("images", self.channels, len(inputs), *self.size, like)
        assert isinstance(x, Planes)
        x.inner[...] = inputs.transpose(1, 0, 2, 3)
        x.clear()
        for layer, high in zip(self.layers, [*self._starts[1:], None], strict=True):
            if needs is not None and layer.shapes:
                needs(run.parameters.size if high is None else high)
            x = layer.forward(x, run)
        return x
