"""What the layers of a network have in common."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpisgd.models.layers import Meter, multiply
from mpisgd.training.parameters import Parameters


@dataclass
class Pass:
    """One way through a network and back. `learning`: normalise by the batch, and remember its
    statistics; else by the remembered ones."""

    parameters: Parameters
    statistics: Parameters | None
    meter: Meter
    learning: bool
    gradient: Parameters | None = None

    def __post_init__(self) -> None:
        self.memory = self.parameters.memory
        self.xp = self.memory.module  # NumPy, or what works on the device

    def multiply(self, left: Any, right: Any, out: Any) -> None:
        """out = left @ right, see layers.multiply."""
        multiply(left, right, out, self.meter, self.xp.matmul)

    def slope(self, name: str) -> np.ndarray:
        """Where the derivative by the parameter `name` goes."""
        assert self.gradient is not None, "a pass without a gradient goes forward only"
        return self.gradient[name]


class Layer:
    """Turns planes into planes. `shapes`: of its parameters; `statistics`: of what it remembers;
    `work`: multiply-adds of a sample, forward and backward. It keeps what `backward` will need
    until the next `forward`, in the workspace."""

    def __init__(self, name: str):
        self.name = name
        self.shapes: Mapping[str, tuple[int, ...]] = {}
        self.statistics: Mapping[str, tuple[int, ...]] = {}
        self.work = 0

    def initialise(self, parameters: Parameters, generator: np.random.Generator) -> None:
        """Draw the starting point of the layer's parameters."""

    def forward(self, x: Any, run: Pass) -> Any:
        """The layer's output for the planes `x`."""
        raise NotImplementedError

    def backward(self, slope: Any, run: Pass) -> Any:
        """The derivative by `x`, given that by the output, which it may overwrite; fills the
        gradient of the layer's parameters."""
        raise NotImplementedError
