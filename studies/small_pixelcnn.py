"""A PixelCNN small enough for a core: the plug-in model `studies/small_pixelcnn.py:build`."""

import dataclasses

from mpisgd.data import Dataset
from mpisgd.models import Model
from mpisgd.predict.nets.small import pixelcnn

WIDTH, BLOCKS = 24, 2


def build(dataset: Dataset) -> Model:
    """That of `torch:pixelcnn`, of width 24 with two blocks instead of 96 with five."""
    from mpisgd.models.torch_model import TorchModel
    from mpisgd.models.torch_pixelcnn import Bits, network

    sample = tuple(dataset.train_inputs.shape[1:])
    net = dataclasses.replace(pixelcnn(WIDTH, BLOCKS), sample=sample)
    return TorchModel("small-pixelcnn", net, lambda: network(WIDTH, BLOCKS), Bits())
