"""What tests of PyTorch's networks share. Needs PyTorch."""

import dataclasses

import numpy as np

from mpisgd.data import Dataset
from mpisgd.models import torch_nets
from mpisgd.models.torch_model import Classes, TorchModel
from mpisgd.predict import nets
from mpisgd.training.parameters import Parameters


def images(sample=(3, 32, 32), classes=10, samples=6):
    generator = np.random.default_rng(0)
    inputs = generator.integers(0, 256, (samples, *sample)).astype(np.uint8)
    targets = generator.integers(0, classes, samples)
    return Dataset("made up", inputs, targets, inputs, targets, classes, "", "", 1 / 255)


def small(name, sample):
    """The network `name` for images of another size."""
    net = dataclasses.replace(nets.find(name), sample=sample)
    return TorchModel(name, net, lambda: torch_nets.build(net), Classes())


def start(model, dtype="float32", extra=0):
    parameters = Parameters(model.shapes, dtype, extra)
    model.initialise(parameters, np.random.default_rng(1))
    return parameters


def silent(share):
    pass
