"""Models: the loss of a batch and its gradient, by hand, on flat parameters.

Adding one: a class with the members of `Model`, a function (dataset, options) -> Model, one row.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from mpisgd.data import Dataset
from mpisgd.training.parameters import Parameters
from mpisgd.values.registry import resolve

MODELS = {
    "softmax": "mpisgd.models.mlp:build_softmax",
    "mlp": "mpisgd.models.mlp:build_mlp",
    "quadratic": "mpisgd.models.quadratic:build_quadratic",
    "bag": "mpisgd.models.bag:build_bag",
    "mnist-cnn": "mpisgd.models.cnn:build_mnist_cnn",
    "resnet8": "mpisgd.models.cnn:build_resnet8",
    "resnet20": "mpisgd.models.cnn:build_resnet20",
    "torch:mlp": "mpisgd.models.torch_model:build_mlp",
    "torch:cnn": "mpisgd.models.torch_model:build_cnn",
    "torch:pixelcnn": "mpisgd.models.torch_model:build_pixelcnn",
    "torch:googlenet-cifar": "mpisgd.models.torch_model:build_net",
    "torch:vgg16-cifar": "mpisgd.models.torch_model:build_net",
    "torch:resnet50-cifar": "mpisgd.models.torch_model:build_net",
    "torch:resnet101-cifar": "mpisgd.models.torch_model:build_net",
    "torch:densenet121-cifar": "mpisgd.models.torch_model:build_net",
    "torch:mobilenetv2-cifar": "mpisgd.models.torch_model:build_net",
    "torch:resnext29-cifar": "mpisgd.models.torch_model:build_net",
    "torch:dpn92-cifar": "mpisgd.models.torch_model:build_net",
    "torch:googlenet": "mpisgd.models.torch_model:build_net",
    "torch:vgg16": "mpisgd.models.torch_model:build_net",
    "torch:resnet50": "mpisgd.models.torch_model:build_net",
    "torch:resnet101": "mpisgd.models.torch_model:build_net",
    "torch:densenet121": "mpisgd.models.torch_model:build_net",
    "torch:mobilenetv2": "mpisgd.models.torch_model:build_net",
    "torch:resnext50": "mpisgd.models.torch_model:build_net",
    "torch:dpn92": "mpisgd.models.torch_model:build_net",
    "torch:inception3": "mpisgd.models.torch_model:build_net",
}

# The models that `--hidden` is for, with its default: units of layers, the width of an embedding,
# channels of convolutions, the first width of a residual network.
HIDDEN: dict[str, tuple[int, ...]] = {
    "mlp": (64,),
    "bag": (32,),
    "mnist-cnn": (16, 16, 32, 32),  # the paper says how many layers, not how wide
    "resnet8": (16,),
    "resnet20": (16,),
    "torch:mlp": (64,),
}

# Called with the share of the step that is done, in 0 .. 1, never falling; the last call says 1.0.
Progress = Callable[[float], object]

# A model whose layers may get their parameters one by one takes `needs` too, in `gradient`: called
# with `high` before a layer uses `parameters.flat[:high]`, from the first layer to the last.

# One with an embedding may say of which rows of which parameter a batch alone makes use, for
# servers: `embedding` is that parameter's name, `rows(inputs)` their numbers, (count,) int64,
# ascending. No other row has a part in the batch's loss, nor a gradient.

# Called with `low` when `gradient.flat[low:]` is final: low never rises, the last call says 0.
Ready = Callable[[int], object]

CHECKS = {"torch": "mpisgd.models.torch_data:check"}  # of data, before what takes long to import


class Sums(NamedTuple):
    """Sums over samples, so that the parts of several ranks add up to the whole."""

    loss_sum: float
    correct: int
    samples: int


class Model(Protocol):
    """What workers ask of a model. A model keeps its scratch, so it serves one thread at a time."""

    @property
    def name(self) -> str: ...

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the named parameters, in their order in the flat buffer."""

    def initialise(self, parameters: Parameters, generator: np.random.Generator) -> None:
        """Draw the starting point; the same draws for every dtype."""

    def gradient(
        self,
        parameters: Parameters,
        inputs: np.ndarray,
        targets: np.ndarray,
        gradient: Parameters,
        progress: Progress,
        ready: Ready | None = None,
    ) -> float:
        """The mean loss of the batch; its gradient overwrites `gradient.flat`.

        inputs: (rows, ...); targets: (rows,) int64. No rows: loss 0.0 and a gradient of zeros.
        Values that are not finite pass through without warnings. `progress` is called between
        layers and between blocks of large products; `ready`, if given, once a layer at most, as
        soon as the backward pass has that layer's gradient, with the values of every batch.
        """

    def evaluate(self, parameters: Parameters, inputs: np.ndarray, targets: np.ndarray) -> Sums:
        """Sums over the given samples, in float64."""


@dataclass(frozen=True)
class ModelOptions:
    """What models can be told; each takes what concerns it."""

    name: str = ""  # which row of the table it is, where one function builds several
    hidden: tuple[int, ...] | None = None  # those of HIDDEN; None: its default
    rank: int = 0  # quadratic: whose optimum and curvature
    size: int = 1  # quadratic: ranks whose mean is the objective
    seed: int = 0  # quadratic: draws optima and curvatures
    optimum_spread: float = 1.0  # quadratic: standard deviation of the optima over ranks
    condition: float = 10.0  # quadratic: largest over smallest curvature
    curvature_spread: float = 0.0  # quadratic: standard deviation of log(curvature) over ranks


def build(name: str, dataset: Dataset, **options: Any) -> Model:
    """The model `name` for the inputs and classes of `dataset`; options: see ModelOptions.

    Raises UsageError for an unknown name, an option out of range, a data set it cannot learn.
    """
    chosen = ModelOptions(name, **options)
    if name.startswith("torch:") and name in MODELS:
        resolve(CHECKS, "torch", "--model")(dataset, chosen)
    return resolve(MODELS, name, "--model")(dataset, chosen)
