"""DenseNet-121 (Huang et al. 2016): growth 32, bottleneck 4, compression one half."""

from mpisgd.predict.nets.language import Chain, Concat, Conv, Full, Net, Node, Norm, Pool

GROWTH = 32
BLOCKS = (6, 12, 24, 16)


def _dense_layer() -> Node:
    body = (Norm(), Conv(4 * GROWTH, 1), Conv(GROWTH, 3, padding=1, norm=False, relu=False))
    return Concat(((), body))


def _body() -> Chain:
    chain: list[Node] = []
    channels = 2 * GROWTH
    for stage, count in enumerate(BLOCKS):
        chain += [_dense_layer()] * count
        channels += count * GROWTH
        chain.append(Norm())
        if stage < len(BLOCKS) - 1:
            channels //= 2
            chain += [Conv(channels, 1, norm=False, relu=False), Pool(2, 2, mean=True)]
    return tuple(chain)


def imagenet() -> Net:
    """224x224, torchvision."""
    stem = (Conv(64, 7, 2, 3), Pool(3, 2, 1))
    chain = (*stem, *_body(), Pool(0), Full(1000))
    return Net("densenet121", (3, 224, 224), chain, "torchvision")


def cifar() -> Net:
    """32x32, pytorch-cifar: a 3x3 stem that has no normalisation of its own."""
    chain = (Conv(64, 3, padding=1, norm=False, relu=False), *_body(), Pool(0), Full(10))
    return Net("densenet121-cifar", (3, 32, 32), chain, "pytorch-cifar")
