"""Optimisers on flat arrays, in place: the same few sums for a model of any shape.

All are elementwise, so they work through the arrays in blocks that stay in the cache, and need
scratch for one block only. The gradient is read, never changed.
"""

import math
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike

from mpisgd.training.learning_rates import SCHEDULES, keywords, require, schedule
from mpisgd.values.registry import resolve

__all__ = ["EMA", "OPTIMISERS", "SCHEDULES", "SGD", "Optimiser", "RMSProp", "build", "schedule"]

OPTIMISERS = {
    "sgd": "mpisgd.training.optimisers:SGD",
    "rmsprop": "mpisgd.training.optimisers:RMSProp",
}

BLOCK = 1 << 17  # elements


class Optimiser(Protocol):
    """What a worker or a server asks of an optimiser."""

    def step(self, parameters: np.ndarray, gradient: np.ndarray, rate: float) -> None:
        """Update `parameters` (size,) in place with `gradient` (size,), which stays as it is."""

    def state(self) -> dict[str, np.ndarray]:
        """Live arrays: saving reads them, resuming copies into them."""


def build(name: str, size: int, dtype: DTypeLike, **options: Any) -> Optimiser:
    """The optimiser `name` for `size` parameters; options left None take their defaults.

    Raises UsageError for an unknown name or option and for values out of range.
    """
    optimiser = resolve(OPTIMISERS, name, "--optimiser")
    return optimiser(size, dtype, **keywords(optimiser, options, f"--optimiser {name}"))


class SGD:
    """v <- momentum * v + d;  x <- x - rate * v, where d = gradient + weight_decay * x.

    PyTorch's form: the rate is outside the buffer v, which starts at zero; with `nesterov`,
    x <- x - rate * (d + momentum * v).
    """

    def __init__(
        self,
        size: int,
        dtype: DTypeLike,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ):
        """Raises UsageError for momentum outside [0, 1), a negative weight decay, and Nesterov
        without momentum."""
        _check(momentum, weight_decay)
        require(momentum > 0 or not nesterov, "--nesterov", None, "needs --momentum above 0")
        self.momentum, self.nesterov, self.weight_decay = momentum, nesterov, weight_decay
        self._velocity = np.zeros(size if momentum else 0, dtype)
        self._scratch = np.empty(min(size, BLOCK), dtype)

    def step(self, parameters: np.ndarray, gradient: np.ndarray, rate: float) -> None:
        """One update of `parameters` (size,), in place. Overflow gives inf, without a warning."""
        with np.errstate(over="ignore", invalid="ignore"):
            for block in _blocks(parameters.size):
                self._step(block, parameters[block], gradient[block], rate)

    def _step(self, block: slice, x: np.ndarray, direction: np.ndarray, rate: float) -> None:
        scratch = self._scratch[: x.size]
        if self.weight_decay:
            np.multiply(x, self.weight_decay, out=scratch)
            direction = np.add(direction, scratch, out=scratch)
        if self.momentum:
            velocity = self._velocity[block]
            np.multiply(velocity, self.momentum, out=velocity)
            np.add(velocity, direction, out=velocity)
            if self.nesterov:
                # d + mu*v without a second scratch: x - rate*d - (rate*mu)*v
                np.multiply(direction, rate, out=scratch)
                np.subtract(x, scratch, out=x)
                rate = rate * self.momentum
            direction = velocity
        np.multiply(direction, rate, out=scratch)
        np.subtract(x, scratch, out=x)

    def state(self) -> dict[str, np.ndarray]:
        """`velocity` (size,), if there is momentum; a live array."""
        return {"velocity": self._velocity} if self.momentum else {}


class RMSProp:
    """s <- decay * s + (1 - decay) * d^2;  v <- momentum * v + rate * d / sqrt(s + epsilon);
    x <- x - v, where d = gradient + weight_decay * x.

    TensorFlow's form: s starts at one, epsilon is inside the root, the rate inside the buffer v.
    The defaults are the recipe of Chen et al. for Inception.
    """

    def __init__(
        self,
        size: int,
        dtype: DTypeLike,
        momentum: float = 0.9,
        decay: float = 0.9,
        epsilon: float = 1.0,
        weight_decay: float = 0.0,
    ):
        """Raises UsageError for momentum or decay outside [0, 1), epsilon or weight decay < 0."""
        _check(momentum, weight_decay)
        require(0 <= decay < 1, "--rmsprop-decay", decay, "in [0, 1)")
        require(0 <= epsilon < math.inf, "--epsilon", epsilon, "a finite number >= 0")
        self.momentum, self.decay, self.epsilon = momentum, decay, epsilon
        self.weight_decay = weight_decay
        self._mean_square = np.ones(size, dtype)
        self._velocity = np.zeros(size if momentum else 0, dtype)
        self._scratch = np.empty((2, min(size, BLOCK)), dtype)

    def step(self, parameters: np.ndarray, gradient: np.ndarray, rate: float) -> None:
        """One update of `parameters` (size,), in place. Overflow gives inf, without a warning."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for block in _blocks(parameters.size):
                self._step(block, parameters[block], gradient[block], rate)

    def _step(self, block: slice, x: np.ndarray, direction: np.ndarray, rate: float) -> None:
        first, second = self._scratch[:, : x.size]
        mean_square = self._mean_square[block]
        if self.weight_decay:
            np.multiply(x, self.weight_decay, out=first)
            direction = np.add(direction, first, out=first)
        np.multiply(direction, direction, out=second)
        np.multiply(second, 1 - self.decay, out=second)
        np.multiply(mean_square, self.decay, out=mean_square)
        np.add(mean_square, second, out=mean_square)
        np.add(mean_square, self.epsilon, out=second)
        np.sqrt(second, out=second)
        np.multiply(direction, rate, out=first)
        change = np.divide(first, second, out=first)
        if self.momentum:
            velocity = self._velocity[block]
            np.multiply(velocity, self.momentum, out=velocity)
            change = np.add(velocity, change, out=velocity)
        np.subtract(x, change, out=x)

    def state(self) -> dict[str, np.ndarray]:
        """`mean_square` (size,) and, if there is momentum, `velocity` (size,); live arrays."""
        velocity = {"velocity": self._velocity} if self.momentum else {}
        return {"mean_square": self._mean_square, **velocity}


class EMA:
    """average <- decay * average + (1 - decay) * x, an exponential moving average of parameters.

    The first update copies x: pass the initial parameters first, as TensorFlow does. With
    `warm_up`, the decay of update t = 1, 2, .. after that is min(decay, (1 + t) / (10 + t)).
    """

    def __init__(
        self, size: int, decay: float, warm_up: bool = False, dtype: DTypeLike = "float32"
    ):
        """Raises UsageError for a decay outside [0, 1)."""
        require(0 <= decay < 1, "--ema", decay, "in [0, 1)")
        self.decay, self.warm_up = decay, warm_up
        self.average = np.zeros(size, dtype)
        self._updates = np.zeros(1, np.int64)
        self._scratch = np.empty(min(size, BLOCK), dtype)

    def update(self, flat: np.ndarray) -> None:
        """Take in the parameters `flat` (size,)."""
        count = int(self._updates[0])
        self._updates[0] += 1
        if count == 0:
            self.average[:] = flat
            return
        decay = min(self.decay, (1 + count) / (10 + count)) if self.warm_up else self.decay
        for block in _blocks(flat.size):
            average, x = self.average[block], flat[block]
            scratch = self._scratch[: x.size]
            np.multiply(x, 1 - decay, out=scratch)
            np.multiply(average, decay, out=average)
            np.add(average, scratch, out=average)

    def state(self) -> dict[str, np.ndarray]:
        """`average` (size,) and `updates` (1,), how many there were; live arrays."""
        return {"average": self.average, "updates": self._updates}


def _blocks(size: int) -> Iterator[slice]:
    return (slice(start, min(start + BLOCK, size)) for start in range(0, size, BLOCK))


def _check(momentum: float, weight_decay: float) -> None:
    require(0 <= momentum < 1, "--momentum", momentum, "in [0, 1)")
    require(0 <= weight_decay < math.inf, "--weight-decay", weight_decay, "a finite number >= 0")
