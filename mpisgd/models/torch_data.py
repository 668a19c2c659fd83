"""Which data PyTorch's networks can learn: asked before PyTorch is imported: that takes seconds."""

import numpy as np

from mpisgd.data import Dataset
from mpisgd.models import ModelOptions
from mpisgd.values.errors import UsageError


def check(dataset: Dataset, options: ModelOptions) -> None:
    """UsageError for data that the network `options.name` cannot learn."""
    name = options.name.partition(":")[2]
    if name == "mlp":
        from mpisgd.models import mlp

        mlp.build_mlp(dataset, options)
    elif name == "cnn":
        _check_images(dataset, options.name)
    elif name == "pixelcnn":
        _check_colours(dataset, options.name)
    else:
        from mpisgd.predict import nets
        from mpisgd.predict.nets.language import output_shape

        net = nets.find(name)
        _check_samples(dataset, options.name, net.sample, output_shape(net)[0])


def _check_images(dataset: Dataset, name: str) -> None:
    shape = dataset.train_inputs.shape[1:]
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise UsageError("--data", dataset.name, f"--model {name} needs images from 4x4 up")
    _check_classes(dataset, name)


def _check_colours(dataset: Dataset, name: str) -> None:
    shape = dataset.train_inputs.shape[1:]
    if len(shape) != 3 or shape[0] != 3 or dataset.train_inputs.dtype != np.uint8:
        allowed = f"--model {name} needs images of three colours, 8 bits"
        raise UsageError("--data", dataset.name, allowed)


def _check_samples(dataset: Dataset, name: str, sample: tuple[int, ...], classes: int) -> None:
    _check_classes(dataset, name)
    shape = tuple(dataset.train_inputs.shape[1:])
    if shape != sample:
        needed, found = ("x".join(map(str, each)) for each in (sample, shape))
        raise UsageError(
            "--data", dataset.name, f"--model {name} needs samples of {needed}; these are {found}"
        )
    if dataset.classes != classes:
        message = f"--model {name} has {classes} classes; the data have {dataset.classes}"
        raise UsageError("--data", dataset.name, message)


def _check_classes(dataset: Dataset, name: str) -> None:
    if dataset.classes < 2:
        raise UsageError("--data", dataset.name, f"--model {name} needs data with classes")
