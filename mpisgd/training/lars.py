"""Rates by layer, for large batches (You, Gitman, Ginsburg 2017, arXiv 1708.03888)."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from allreduce import arrays
from mpisgd.training.learning_rates import require
from mpisgd.training.optimisers import SGD


class LARS:
    """v <- momentum * v + trust * |x| / (|g| + weight_decay |x|) * (g + weight_decay * x) in each
    layer, x <- x - rate * v.

    The rate is outside v, as in SGD here, where the paper has it inside. `layers`: where they lie
    in the flat arrays, and whether they count as such: others (biases, normalisation) take SGD's
    step, as do layers or gradients of zeros.
    """

    def __init__(
        self,
        like: Any,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        trust: float = 0.001,
        layers: Sequence[tuple[slice, bool]] | None = None,
    ):
        """Raises UsageError for what SGD refuses, and a trust that is not above 0."""
        require(0 < trust < math.inf, "--trust", trust, "a finite number > 0")
        self.weight_decay, self.trust = weight_decay, trust
        self.layers = [(slice(0, like.size), True)] if layers is None else layers
        self._sgd = SGD(like, momentum, weight_decay=weight_decay)
        self._sgd.weight_decay = 0.0  # it is in the direction
        self._module = arrays.of(like).module
        self._direction = arrays.of(like).empty(like.size, like.dtype)

    def step(self, parameters: np.ndarray, gradient: np.ndarray, rate: float) -> None:
        """One update of `parameters` (size,), in place. Overflow gives no warning."""
        with np.errstate(over="ignore", invalid="ignore"):
            for layer, adapts in self.layers:
                self._turn(parameters[layer], gradient[layer], self._direction[layer], adapts)
            self._sgd.step(parameters, self._direction, rate)

    def _turn(self, x: Any, gradient: Any, direction: Any, adapts: bool) -> None:
        """The direction in which a layer goes."""
        self._module.multiply(x, self.weight_decay, out=direction)
        self._module.add(direction, gradient, out=direction)
        if adapts:
            self._scale(direction, self._norm(x), self._norm(gradient))

    def _scale(self, direction: Any, norm: Any, slope: Any) -> None:
        """By the layer's rate; on a device nobody waits to see the norms."""
        xp, kind = self._module, direction.dtype
        if xp is np:
            if norm > 0 and slope > 0:
                direction *= kind.type(self.trust * norm / (slope + self.weight_decay * norm))
            return
        rate = self.trust * norm / (slope + self.weight_decay * norm)
        direction *= xp.where((norm > 0) & (slope > 0), rate, 1.0).astype(kind)

    def _norm(self, x: Any) -> Any:
        norm = self._module.sqrt(self._module.dot(x, x))
        return float(norm) if self._module is np else norm.astype(np.float64)

    def state(self) -> dict[str, np.ndarray]:
        """`velocity` (size,), if there is momentum; a live array."""
        return self._sgd.state()
