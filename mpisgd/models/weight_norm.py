"""Weight normalisation (Salimans and Kingma 2016): a weight as a direction times a length."""

from collections.abc import Mapping

import numpy as np

from mpisgd.models.convolution import Convolution, drawn
from mpisgd.models.layer import Pass
from mpisgd.models.planes import Array, module_of
from mpisgd.training.parameters import Parameters


class NormalisedConvolution(Convolution):
    """w_k = gain_k * direction_k / |direction_k| for each output channel k.

    `direction`: (3, 3, outputs, inputs); `gain`: (outputs,).
    """

    def __init__(
        self, name: str, inputs: int, outputs: int, size: tuple[int, int], *, first: bool = False
    ):
        super().__init__(name, inputs, outputs, size, first=first)
        (shape,) = self.shapes.values()
        self.shapes: Mapping[str, tuple[int, ...]] = {
            f"{name}.direction": shape,
            f"{name}.gain": (outputs,),
        }
        self._norm: Array

    def initialise(self, parameters: Parameters, generator: np.random.Generator) -> None:
        """As without normalisation: directions normal, gains their lengths."""
        direction = parameters[f"{self.name}.direction"]
        direction[...] = drawn(direction.shape, generator)
        parameters[f"{self.name}.gain"][...] = lengths(direction)

    def weight(self, run: Pass) -> Array:
        direction = run.parameters[f"{self.name}.direction"]
        self._norm = lengths(direction)
        return direction * (run.parameters[f"{self.name}.gain"] / self._norm)[:, None]

    def derive(self, slope: Array, run: Pass) -> None:
        """By the gain: the part of the slope along the direction; by the direction: the rest of
        it, times gain / length."""
        unit = run.parameters[f"{self.name}.direction"] / self._norm[:, None]
        along = (slope * unit).sum(axis=(0, 1, 3))
        run.slope(f"{self.name}.gain")[...] = along
        across = slope - unit * along[:, None]
        across *= (run.parameters[f"{self.name}.gain"] / self._norm)[:, None]
        run.slope(f"{self.name}.direction")[...] = across


def lengths(direction: Array) -> Array:
    """Of each output channel's direction: (outputs,)."""
    return module_of(direction).sqrt((direction * direction).sum(axis=(0, 1, 3)))
