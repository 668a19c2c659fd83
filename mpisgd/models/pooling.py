"""Pooling: the largest of 2x2 pixels, the mean of a whole image."""

from mpisgd.models.layer import Layer, Pass
from mpisgd.models.planes import WORKSPACE, Array, Planes

CORNERS = ((0, 0), (0, 1), (1, 0), (1, 1))


class MaxPooling(Layer):
    """y[k, i, j] = the largest of x[k, 2i .. 2i + 1, 2j .. 2j + 1]; an odd last line or column is
    left out. The slope goes to the first of the four that is the largest."""

    def __init__(self, name: str, size: tuple[int, int]):
        """`size`: (height, width) of the images that come in."""
        super().__init__(name)
        self.size = (size[0] // 2, size[1] // 2)
        self._x: Planes
        self._y: Planes
        self._corners: Array

    def forward(self, x: Planes, run: Pass) -> Planes:
        high, wide = self.size
        y = WORKSPACE.planes(f"{self.name}.output", x.channels, x.rows, high, wide, x.flat)
        corners = WORKSPACE.array(f"{self.name}.corners", (4, *y.padded.shape), x.flat)
        for corner, (down, right) in zip(corners, CORNERS, strict=True):
            corner[:, :, :high, :wide] = x.inner[:, :, down : 2 * high : 2, right : 2 * wide : 2]
        run.xp.maximum(corners[0], corners[1], out=y.padded)
        run.xp.maximum(y.padded, corners[2], out=y.padded)
        run.xp.maximum(y.padded, corners[3], out=y.padded)
        y.clear()
        self._x, self._y, self._corners = x, y, corners
        return y

    def backward(self, slope: Planes, run: Pass) -> Planes:
        x, (high, wide) = self._x, self.size
        down_slope = WORKSPACE.planes(
            f"{self.name}.slope", x.channels, x.rows, x.height, x.width, x.flat
        )
        if x.height % 2 or x.width % 2:
            down_slope.flat[...] = 0
        shape = slope.padded.shape
        largest = WORKSPACE.array(f"{self.name}.largest", shape, slope.flat, flags=True)
        taken = WORKSPACE.array(f"{self.name}.taken", shape, slope.flat)
        for corner, (down, right) in zip(self._corners, CORNERS, strict=True):
            run.xp.equal(corner, self._y.padded, out=largest)
            run.xp.multiply(slope.padded, largest, out=taken)
            run.xp.subtract(slope.padded, taken, out=slope.padded)  # what is taken is gone
            target = down_slope.inner[:, :, down : 2 * high : 2, right : 2 * wide : 2]
            target[...] = taken[:, :, :high, :wide]
        down_slope.clear()
        return down_slope


class MeanPooling(Layer):
    """y[k] = the mean of x[k] over the image: planes of one pixel."""

    def __init__(self, name: str):
        super().__init__(name)
        self._x: Planes

    def forward(self, x: Planes, run: Pass) -> Planes:
        self._x = x
        y = WORKSPACE.planes(f"{self.name}.output", x.channels, x.rows, 1, 1, x.flat)
        y.inner[:, :, 0, 0] = x.flat.reshape(x.channels, x.rows, -1).sum(axis=2)
        y.inner[...] /= x.height * x.width
        y.clear()
        return y

    def backward(self, slope: Planes, run: Pass) -> Planes:
        x = self._x
        down_slope = WORKSPACE.planes(
            f"{self.name}.slope", x.channels, x.rows, x.height, x.width, x.flat
        )
        down_slope.padded[...] = slope.inner / (x.height * x.width)
        down_slope.clear()
        return down_slope
