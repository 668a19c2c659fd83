"""Optimisers on flat arrays, in place: the same few sums for a model of any shape.

All are elementwise, so they work through the arrays in blocks that stay in the cache, and need
scratch for one block only. The gradient is read, never changed. What they keep lies where the
parameters lie, and so is worked on there; `like` is an array of the parameters' size and type.
"""

import math
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from allreduce import arrays
from mpisgd.training.learning_rates import OPTIMISERS, SCHEDULES, keywords, require, schedule
from mpisgd.values.registry import resolve

__all__ = [
    "EMA",
    "OPTIMISERS",
    "SCHEDULES",
    "SGD",
    "Decoupled",
    "Optimiser",
    "RMSProp",
    "build",
    "schedule",
]


class Optimiser(Protocol):
    """What a worker or a server asks of an optimiser."""

    def step(self, parameters: np.ndarray, gradient: np.ndarray, rate: float) -> None:
        """Update `parameters` (size,) in place with `gradient` (size,), which stays as it is."""

    def state(self) -> dict[str, np.ndarray]:
        """Live arrays: saving reads them, resuming copies into them."""


def build(name: str, like: Any, **options: Any) -> Optimiser:
    """The optimiser `name` for parameters like these; options left None take their defaults.

    Raises UsageError for an unknown name or option and for values out of range.
    """
    optimiser = resolve(OPTIMISERS, name, "--optimiser")
    return optimiser(like, **keywords(optimiser, options, f"--optimiser {name}"))


class SGD:
    """v <- momentum * v + d;  x <- x - rate * v, where d = gradient + weight_decay * x.

    PyTorch's form: the rate is outside the buffer v, which starts at zero; with `nesterov`,
    x <- x - rate * (d + momentum * v).
    """

    def __init__(
        self,
        like: Any,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ):
        """Raises UsageError for momentum outside [0, 1), a negative weight decay, and Nesterov
        without momentum."""
        _check(momentum, weight_decay)
        require(momentum > 0 or not nesterov, "--nesterov", None, "needs --momentum above 0")
        self.momentum, self.nesterov, self.weight_decay = momentum, nesterov, weight_decay
        self._memory = memory = arrays.of(like)
        self._velocity = memory.zeros(like.size if momentum else 0, like.dtype)
        self._scratch = memory.empty(min(like.size, memory.block), like.dtype)

    def step(self, parameters: np.ndarray, gradient: np.ndarray, rate: float) -> None:
        """One update of `parameters` (size,), in place. Overflow gives inf, without a warning."""
        with np.errstate(over="ignore", invalid="ignore"):
            for block in _blocks(parameters.size, self._memory.block):
                self._step(block, parameters[block], gradient[block], rate)

    def _step(self, block: slice, x: np.ndarray, direction: np.ndarray, rate: float) -> None:
        xp, scratch = self._memory.module, self._scratch[: x.size]
        if self.weight_decay:
            xp.multiply(x, self.weight_decay, out=scratch)
            direction = xp.add(direction, scratch, out=scratch)
        if self.momentum:
            velocity = self._velocity[block]
            xp.multiply(velocity, self.momentum, out=velocity)
            xp.add(velocity, direction, out=velocity)
            if self.nesterov:
                # d + mu*v without a second scratch: x - rate*d - (rate*mu)*v
                xp.multiply(direction, rate, out=scratch)
                xp.subtract(x, scratch, out=x)
                rate = rate * self.momentum
            direction = velocity
        xp.multiply(direction, rate, out=scratch)
        xp.subtract(x, scratch, out=x)

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
        like: Any,
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
        self._memory = memory = arrays.of(like)
        self._mean_square = memory.zeros(like.size, like.dtype)
        self._mean_square += 1
        self._velocity = memory.zeros(like.size if momentum else 0, like.dtype)
        self._scratch = memory.empty((2, min(like.size, memory.block)), like.dtype)

    def step(self, parameters: np.ndarray, gradient: np.ndarray, rate: float) -> None:
        """One update of `parameters` (size,), in place. Overflow gives inf, without a warning."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for block in _blocks(parameters.size, self._memory.block):
                self._step(block, parameters[block], gradient[block], rate)

    def _step(self, block: slice, x: np.ndarray, direction: np.ndarray, rate: float) -> None:
        xp, (first, second) = self._memory.module, self._scratch[:, : x.size]
        mean_square = self._mean_square[block]
        if self.weight_decay:
            xp.multiply(x, self.weight_decay, out=first)
            direction = xp.add(direction, first, out=first)
        xp.multiply(direction, direction, out=second)
        xp.multiply(second, 1 - self.decay, out=second)
        xp.multiply(mean_square, self.decay, out=mean_square)
        xp.add(mean_square, second, out=mean_square)
        xp.add(mean_square, self.epsilon, out=second)
        xp.sqrt(second, out=second)
        xp.multiply(direction, rate, out=first)
        change = xp.divide(first, second, out=first)
        if self.momentum:
            velocity = self._velocity[block]
            xp.multiply(velocity, self.momentum, out=velocity)
            change = xp.add(velocity, change, out=velocity)
        xp.subtract(x, change, out=x)

    def state(self) -> dict[str, np.ndarray]:
        """`mean_square` (size,) and, if there is momentum, `velocity` (size,); live arrays."""
        velocity = {"velocity": self._velocity} if self.momentum else {}
        return {"mean_square": self._mean_square, **velocity}


class Decoupled:
    """x <- (1 - rate * weight_decay) x, then a step of an optimiser without weight decay: neither
    momentum nor a scale of the gradient has a part in the decay (Loshchilov and Hutter 2019, arXiv
    1711.05101; Fast.Ai's)."""

    def __init__(self, optimiser: Optimiser, weight_decay: float):
        """Raises UsageError for a negative weight decay."""
        _check(0.0, weight_decay)
        self.optimiser, self.weight_decay = optimiser, weight_decay

    def step(self, parameters: np.ndarray, gradient: np.ndarray, rate: float) -> None:
        """One update of `parameters` (size,), in place."""
        parameters *= parameters.dtype.type(1 - rate * self.weight_decay)
        self.optimiser.step(parameters, gradient, rate)

    def state(self) -> dict[str, np.ndarray]:
        """Of the other one."""
        return self.optimiser.state()


class EMA:
    """average <- decay * average + (1 - decay) * x, an exponential moving average of parameters.

    The first update copies x: pass the initial parameters first, as TensorFlow does. With
    `warm_up`, the decay of update t = 1, 2, .. after that is min(decay, (1 + t) / (10 + t)).
    """

    def __init__(self, like: Any, decay: float, warm_up: bool = False):
        """Raises UsageError for a decay outside [0, 1)."""
        require(0 <= decay < 1, "--ema", decay, "in [0, 1)")
        self.decay, self.warm_up = decay, warm_up
        self._memory = memory = arrays.of(like)
        self.average = memory.zeros(like.size, like.dtype)
        self._updates = np.zeros(1, np.int64)
        self._scratch = memory.empty(min(like.size, memory.block), like.dtype)

    def update(self, flat: np.ndarray) -> None:
        """Take in the parameters `flat` (size,)."""
        count = int(self._updates[0])
        self._updates[0] += 1
        if count == 0:
            self.average[:] = flat
            return
        xp = self._memory.module
        decay = min(self.decay, (1 + count) / (10 + count)) if self.warm_up else self.decay
        for block in _blocks(flat.size, self._memory.block):
            average, x = self.average[block], flat[block]
            scratch = self._scratch[: x.size]
            xp.multiply(x, 1 - decay, out=scratch)
            xp.multiply(average, decay, out=average)
            xp.add(average, scratch, out=average)

    def state(self) -> dict[str, np.ndarray]:
        """`average` (size,) and `updates` (1,), how many there were; live arrays."""
        return {"average": self.average, "updates": self._updates}


def _blocks(size: int, most: int) -> Iterator[slice]:
    return (slice(start, min(start + most, size)) for start in range(0, size, most))


def _check(momentum: float, weight_decay: float) -> None:
    require(0 <= momentum < 1, "--momentum", momentum, "in [0, 1)")
    require(0 <= weight_decay < math.inf, "--weight-decay", weight_decay, "a finite number >= 0")
