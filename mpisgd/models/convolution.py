"""Convolutions of 3x3 pixels with a zero border: the neighbours as columns, and one product."""

import math
from typing import Any

import numpy as np

from mpisgd.models.layer import Layer, Pass
from mpisgd.models.planes import WORKSPACE, Array, Planes
from mpisgd.training.parameters import Parameters

SIDE = 3
OFFSETS = tuple((down, right) for down in (-1, 0, 1) for right in (-1, 0, 1))


class Convolution(Layer):
    """y[k, i, j] = sum over offsets (u, v) and channels c of w[u, v, k, c] x[c, si + u, sj + v].

    No bias. `weight`: (3, 3, outputs, inputs). With stride 1 the derivative by x is a convolution
    of the slope with the mirrored weight, and the slope's columns serve the derivative by the
    weight as well; otherwise the columns of x are gathered again.
    """

    def __init__(
        self, name: str, inputs: int, outputs: int, size: tuple[int, int], stride: int = 1,
        *, first: bool = False,
    ):  # fmt: skip
        """`size`: (height, width) of the images that come in; `first`: nobody needs the derivative
        by them."""
        super().__init__(name)
        self.inputs, self.outputs, self.stride, self.first = inputs, outputs, stride, first
        self.size = (-(-size[0] // stride), -(-size[1] // stride))  # of the images that go out
        self.shapes = {f"{name}.weight": (SIDE, SIDE, outputs, inputs)}
        # Products go over the borders too.
        product = SIDE * SIDE * inputs * outputs * (self.size[0] + 1) * (self.size[1] + 1)
        self.work = product * (2 if first else 3)
        self._x: Planes
        self._weight: Array

    def initialise(self, parameters: Parameters, generator: np.random.Generator) -> None:
        """Normal with variance 2 / inputs of a unit (He et al. 2015)."""
        weight = parameters[f"{self.name}.weight"]
        weight[...] = drawn(weight.shape, generator)

    def weight(self, run: Pass) -> Array:
        """The weight (3, 3, outputs, inputs) that the products use."""
        return run.parameters[f"{self.name}.weight"]

    def derive(self, slope: Array, run: Pass) -> None:
        """Take the derivative by the weight, (3, 3, outputs, inputs)."""
        run.slope(f"{self.name}.weight")[...] = slope

    def forward(self, x: Planes, run: Pass) -> Planes:
        self._x, self._weight = x, self.weight(run)
        y = WORKSPACE.planes(f"{self.name}.output", self.outputs, x.rows, *self.size, x.flat)
        matrix = self._weight.transpose(2, 0, 1, 3).reshape(self.outputs, -1)
        run.multiply(matrix, self._columns(x), y.matrix)
        y.clear()
        return y

    def backward(self, slope: Planes, run: Pass) -> Planes | None:
        if self.first or self.stride > 1:
            return self._backward_gathered(slope, run)
        x, like = self._x, slope.flat
        columns = WORKSPACE.array("columns", (SIDE * SIDE, slope.flat.size), like)
        for column, (down, right) in zip(columns, OFFSETS, strict=True):
            column[...] = slope.shifted(-down, -right)
        columns = columns.reshape(SIDE * SIDE * self.outputs, -1)
        weights = WORKSPACE.array("weights", (len(columns), self.inputs), like)
        run.multiply(columns, x.matrix.T, weights)
        self.derive(weights.reshape(self._weight.shape), run)
        down_slope = self._slope(x)
        mirrored = self._weight.reshape(-1, self.inputs).T
        run.multiply(mirrored, columns, down_slope.matrix)
        down_slope.clear()
        return down_slope

    def _backward_gathered(self, slope: Planes, run: Pass) -> Planes | None:
        x, like = self._x, slope.flat
        columns = self._columns(x)
        weights = WORKSPACE.array("weights", (len(columns), self.outputs), like)
        run.multiply(columns, slope.matrix.T, weights)
        shape = (SIDE, SIDE, self.inputs, self.outputs)
        self.derive(weights.reshape(shape).transpose(0, 1, 3, 2), run)
        if self.first:
            return None
        matrix = self._weight.transpose(0, 1, 3, 2).reshape(-1, self.outputs)
        run.multiply(matrix, slope.matrix, columns)
        down_slope = self._slope(x)
        down_slope.buffer[...] = 0
        high, wide = slope.height, slope.width
        parts = columns.reshape(SIDE * SIDE, self.inputs, x.rows, high + 1, wide + 1)
        for part, offset in zip(parts, OFFSETS, strict=True):
            target = self._seen(down_slope, offset)
            run.xp.add(target, part[:, :, :high, :wide], out=target)
        down_slope.clear()
        return down_slope

    def _columns(self, x: Planes) -> Array:
        """Each output pixel's neighbourhood in `x` as a column: (9 * inputs, output elements)."""
        high, wide = self.size
        shape = (SIDE * SIDE, self.inputs, x.rows, high + 1, wide + 1)
        columns = WORKSPACE.array("columns", shape, x.flat)
        if self.stride == 1:
            for column, offset in zip(columns, OFFSETS, strict=True):
                column.reshape(-1)[...] = x.shifted(*offset)
        else:
            # Borders of the columns meet zeros of the slope: they must be finite.
            columns[:, :, :, high] = 0
            columns[:, :, :, :, wide] = 0
            for column, offset in zip(columns, OFFSETS, strict=True):
                column[:, :, :high, :wide] = self._seen(x, offset)
        return columns.reshape(SIDE * SIDE * self.inputs, -1)

    def _seen(self, x: Planes, offset: tuple[int, int]) -> Array:
        """The pixels of `x` at `offset` from each output pixel."""
        shifted = x.shifted(*offset).reshape(x.padded.shape)
        return shifted[:, :, : x.height : self.stride, : x.width : self.stride]

    def _slope(self, x: Planes) -> Planes:
        return WORKSPACE.planes(f"{self.name}.slope", x.channels, x.rows, x.height, x.width, x.flat)


def drawn(shape: tuple[int, ...], generator: np.random.Generator) -> Any:
    """A weight (3, 3, outputs, inputs), normal with variance 2 / (9 inputs)."""
    return generator.standard_normal(shape) * math.sqrt(2 / (SIDE * SIDE * shape[-1]))
