"""A quadratic for the laws: each rank has its own optimum and, if wanted, its own curvature."""

import math

import numpy as np

from mpisgd.data import Dataset
from mpisgd.models import ModelOptions, Progress, Ready, Sums
from mpisgd.training.parameters import Parameters
from mpisgd.values.errors import UsageError

# Optima must not be the draws of a starting point or a permutation of the same seed.
STREAM = 0x7175_6164


class Quadratic:
    """f_r(x) = 0.5 * sum(a_r * (x - c_r)^2) on rank r; the objective is the mean over ranks.

    A batch adds noise: its loss is f_r(x) + n . (x - c_r) with n the mean of the batch's rows, so
    its gradient is a_r * (x - c_r) + n. The Hessian diag(a_r) is the same for every batch.
    """

    name = "quadratic"

    def __init__(self, curvatures: np.ndarray, optima: np.ndarray, rank: int):
        """curvatures, optima: (ranks, features) float64."""
        self.curvature, self.optimum = curvatures[rank].copy(), optima[rank].copy()
        # The objective, expanded: it needs no row of another rank at run time.
        self._mean_curvature = curvatures.mean(axis=0)
        self._mean_slope = (curvatures * optima).mean(axis=0)
        self._constant = float((curvatures * optima**2).mean(axis=0).sum()) / 2
        self.shapes = {"x": (curvatures.shape[1],)}

    @property
    def solution(self) -> np.ndarray:
        """Where the objective, the mean over ranks, is least: (features,) float64."""
        return self._mean_slope / self._mean_curvature

    def initialise(self, parameters: Parameters, generator: np.random.Generator) -> None:
        """Standard normal."""
        parameters.flat[:] = generator.standard_normal(parameters.size)

    def gradient(
        self,
        parameters: Parameters,
        inputs: np.ndarray,
        targets: np.ndarray,
        gradient: Parameters,
        progress: Progress,
        ready: Ready | None = None,
    ) -> float:
        """See Model.gradient. inputs: (rows, features), the noise; targets are not looked at."""
        if len(inputs) == 0:
            gradient.flat[:] = 0
            progress(1.0)
            if ready is not None:
                ready(0)
            return 0.0
        dtype = parameters.dtype
        with np.errstate(over="ignore", invalid="ignore"):
            distance = parameters.flat - self.optimum.astype(dtype)
            noise = inputs.reshape(len(inputs), -1).mean(axis=0, dtype=dtype)
            slope = self.curvature.astype(dtype) * distance
            np.add(slope, noise, out=gradient.flat)
            progress(1.0)
            if ready is not None:
                ready(0)
            return float(np.sum(distance * (slope / 2 + noise), dtype=np.float64))

    def evaluate(self, parameters: Parameters, inputs: np.ndarray, targets: np.ndarray) -> Sums:
        """The objective, free of noise, once for each sample; none is ever `correct`."""
        x = parameters.flat.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            value = x @ (self._mean_curvature * x / 2 - self._mean_slope) + self._constant
        return Sums(float(value) * len(targets), 0, len(targets))


def build_quadratic(dataset: Dataset, options: ModelOptions) -> Quadratic:
    """Curvatures 1 .. `condition` in geometric steps, times a factor per rank; optima normal.

    Every rank draws all rows from the seed, so all agree on the objective. Raises UsageError for
    a negative spread and a condition below 1.
    """
    for field, least in (("optimum_spread", 0), ("curvature_spread", 0), ("condition", 1)):
        value = getattr(options, field)
        if not least <= value < math.inf:
            raise UsageError(f"quadratic's {field}", value, f"a finite number >= {least}")
    generator = np.random.default_rng((options.seed, STREAM))
    shape = (options.size, dataset.features)
    optima = options.optimum_spread * generator.standard_normal(shape)
    factors = np.exp(options.curvature_spread * generator.standard_normal((options.size, 1)))
    curvatures = np.geomspace(1, options.condition, dataset.features) * factors
    return Quadratic(curvatures, optima, options.rank)
