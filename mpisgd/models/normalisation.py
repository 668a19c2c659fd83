"""Batch normalisation (Ioffe and Szegedy 2015), with what evaluation needs to know of all data."""

from typing import Any

import numpy as np

from allreduce.arrays import HOST
from mpisgd.models.layer import Layer, Pass
from mpisgd.models.planes import WORKSPACE, Array, Planes
from mpisgd.training.parameters import Parameters

EPSILON = 1e-5
# Least weight of a new batch in the remembered statistics. The first batches weigh what they are
# of all samples so far: the statistics never hold anything of their starting values.
MOMENTUM = 0.1


class BatchNormalisation(Layer):
    """y[k] = scale[k] * (x[k] - mean[k]) / sqrt(variance[k] + epsilon) + shift[k].

    Mean and variance over the samples and pixels of the batch; when not learning, the remembered
    ones. `scale`, `shift`: (channels,). Remembers `mean`, `variance` (unbiased): (channels,), and
    `count`: (1,), the samples it has seen. `x` is overwritten.
    """

    def __init__(self, name: str, channels: int):
        super().__init__(name)
        self.shapes = {f"{name}.scale": (channels,), f"{name}.shift": (channels,)}
        self.statistics = {
            f"{name}.mean": (channels,),
            f"{name}.variance": (channels,),
            f"{name}.count": (1,),
        }
        self._x: Planes
        self._inverse: Array

    def initialise(self, parameters: Parameters, generator: np.random.Generator) -> None:
        """Scales one, shifts zero."""
        parameters[f"{self.name}.scale"][...] = 1
        parameters[f"{self.name}.shift"][...] = 0

    def forward(self, x: Planes, run: Pass) -> Planes:
        if not run.learning:
            return self._apply(x, run)
        mean = x.matrix.sum(axis=1) / x.pixels
        run.xp.subtract(x.matrix, mean[:, None], out=x.matrix)
        x.clear()
        variance = _dots(x.matrix, x.matrix, run.xp) / x.pixels
        self._remember(mean, variance, x, run)
        self._x, self._inverse = x, 1 / run.xp.sqrt(variance + EPSILON)
        shape = (x.channels, x.rows, x.height, x.width)
        y = WORKSPACE.planes(f"{self.name}.output", *shape, x.flat)
        factor = run.parameters[f"{self.name}.scale"] * self._inverse
        run.xp.multiply(x.matrix, factor[:, None], out=y.matrix)
        run.xp.add(y.matrix, run.parameters[f"{self.name}.shift"][:, None], out=y.matrix)
        y.clear()
        return y

    def backward(self, slope: Planes, run: Pass) -> Planes:
        x, inverse = self._x, self._inverse
        by_shift = slope.matrix.sum(axis=1)
        by_scale = _dots(slope.matrix, x.matrix, run.xp) * inverse
        run.slope(f"{self.name}.shift")[...] = by_shift
        run.slope(f"{self.name}.scale")[...] = by_scale
        factor = run.parameters[f"{self.name}.scale"] * inverse
        run.xp.multiply(slope.matrix, factor[:, None], out=slope.matrix)
        # What the batch's mean and variance take back; x is not needed any more.
        run.xp.multiply(x.matrix, (factor * inverse * by_scale / x.pixels)[:, None], out=x.matrix)
        run.xp.subtract(slope.matrix, x.matrix, out=slope.matrix)
        run.xp.subtract(slope.matrix, (factor * by_shift / x.pixels)[:, None], out=slope.matrix)
        slope.clear()
        return slope

    def _apply(self, x: Planes, run: Pass) -> Planes:
        """With the remembered statistics, in place."""
        assert run.statistics is not None
        dtype = x.flat.dtype
        mean = run.statistics[f"{self.name}.mean"].astype(dtype)
        variance = run.statistics[f"{self.name}.variance"].astype(dtype)
        factor = run.parameters[f"{self.name}.scale"] / run.xp.sqrt(variance + EPSILON)
        offset = run.parameters[f"{self.name}.shift"] - mean * factor
        run.xp.multiply(x.matrix, factor[:, None], out=x.matrix)
        run.xp.add(x.matrix, offset[:, None], out=x.matrix)
        x.clear()
        return x

    def _remember(self, mean: Array, variance: Array, x: Planes, run: Pass) -> None:
        assert run.statistics is not None
        count = run.statistics[f"{self.name}.count"]
        count += x.rows
        weight: Any = max(MOMENTUM, x.rows / float(count[0])) if run.memory is HOST else None
        share = weight
        if weight is None:  # (1,), where the statistics lie: nobody waits to see it
            weight = run.xp.maximum(x.rows / count, MOMENTUM)
            share = weight.astype(mean.dtype)
        unbiased = x.pixels / max(1, x.pixels - 1)
        for kind, new in (("mean", mean), ("variance", variance * unbiased)):
            kept = run.statistics[f"{self.name}.{kind}"]
            kept *= 1 - weight
            kept += share * new


def _dots(one: Array, other: Array, xp: Any) -> Array:
    """The scalar products of the rows: (channels,)."""
    return xp.matmul(one[:, None, :], other[:, :, None])[:, 0, 0]
