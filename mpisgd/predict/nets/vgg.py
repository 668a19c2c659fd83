"""VGG-16 (Simonyan, Zisserman 2014). CIFAR: with batch normalisation and one full layer."""

from mpisgd.predict.nets.language import Chain, Conv, Full, Net, Node, Pool

STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


def _features(norm: bool) -> Chain:
    chain: list[Node] = []
    for channels, count in STAGES:
        chain += [Conv(channels, 3, padding=1, bias=True, norm=norm)] * count
        chain.append(Pool(2, 2))
    return tuple(chain)


def imagenet() -> Net:
    """224x224, torchvision: no normalisation, three full layers."""
    head = (Full(4096, relu=True), Full(4096, relu=True), Full(1000))
    return Net("vgg16", (3, 224, 224), (*_features(False), *head), "torchvision")


def cifar() -> Net:
    """32x32, pytorch-cifar."""
    return Net("vgg16-cifar", (3, 32, 32), (*_features(True), Full(10)), "pytorch-cifar")
