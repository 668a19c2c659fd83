"""Layered descriptions of networks by name: a table that imports nothing until asked."""

from functools import cache

from mpisgd.predict.nets.language import Layer, Net, lower
from mpisgd.values.registry import resolve

NETS = {
    "googlenet": "mpisgd.predict.nets.googlenet:imagenet",
    "vgg16": "mpisgd.predict.nets.vgg:imagenet",
    "resnet50": "mpisgd.predict.nets.resnet:resnet50",
    "resnet50-paleo": "mpisgd.predict.nets.resnet:resnet50_paleo",
    "resnet101": "mpisgd.predict.nets.resnet:resnet101",
    "densenet121": "mpisgd.predict.nets.densenet:imagenet",
    "mobilenetv2": "mpisgd.predict.nets.mobilenet:imagenet",
    "resnext50": "mpisgd.predict.nets.resnet:resnext50",
    "dpn92": "mpisgd.predict.nets.dpn:imagenet",
    "inception3": "mpisgd.predict.nets.inception:imagenet",
    "googlenet-cifar": "mpisgd.predict.nets.googlenet:cifar",
    "vgg16-cifar": "mpisgd.predict.nets.vgg:cifar",
    "resnet50-cifar": "mpisgd.predict.nets.resnet:resnet50_cifar",
    "resnet101-cifar": "mpisgd.predict.nets.resnet:resnet101_cifar",
    "densenet121-cifar": "mpisgd.predict.nets.densenet:cifar",
    "mobilenetv2-cifar": "mpisgd.predict.nets.mobilenet:cifar",
    "resnext29-cifar": "mpisgd.predict.nets.resnet:resnext29_cifar",
    "dpn92-cifar": "mpisgd.predict.nets.dpn:cifar",
}


def find(name: str) -> Net:
    """The net called `name`; UsageError when there is none."""
    return resolve(NETS, name, "--net")()


@cache
def layers(name: str) -> tuple[Layer, ...]:
    """The layers of the net called `name`, shapes inferred; UsageError when there is none."""
    return lower(find(name))
