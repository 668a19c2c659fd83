"""MobileNetV2 (Sandler et al. 2018): inverted residuals with depthwise convolutions."""

from mpisgd.predict.nets.language import Add, Chain, Conv, Full, Net, Node, Pool

# expansion, channels, blocks, stride of the first block
ROWS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _body(inputs: int, expansion: int, channels: int, stride: int, expand: bool) -> Chain:
    wide = inputs * expansion
    first = (Conv(wide, 1),) if expand else ()
    return (*first, Conv(wide, 3, stride, 1, groups=wide), Conv(channels, 1, relu=False))


def imagenet() -> Net:
    """224x224, torchvision: a block is added to its input only where the shapes agree."""
    chain: list[Node] = [Conv(32, 3, 2, 1)]
    inputs = 32
    for expansion, channels, count, first in ROWS:
        for block in range(count):
            body = _body(inputs, expansion, channels, 1 if block else first, expansion > 1)
            chain += [Add((body, ()), relu=False)] if block else body
            inputs = channels
    chain += [Conv(1280, 1), Pool(0), Full(1000)]
    return Net("mobilenetv2", (3, 224, 224), tuple(chain), "torchvision", ceiling=6.0)


def cifar() -> Net:
    """32x32, pytorch-cifar: stride 1 in the stem and in the second row, and every block of
    stride 1 has a shortcut, a 1x1 convolution where the channels differ."""
    chain: list[Node] = [Conv(32, 3, 1, 1)]
    inputs = 32
    for row, (expansion, channels, count, first) in enumerate(ROWS):
        for block in range(count):
            stride = 1 if block or row == 1 else first
            body = _body(inputs, expansion, channels, stride, expand=True)
            shortcut = () if inputs == channels else (Conv(channels, 1, relu=False),)
            chain += [Add((body, shortcut), relu=False)] if stride == 1 else body
            inputs = channels
    chain += [Conv(1280, 1), Pool(0), Full(10)]
    return Net("mobilenetv2-cifar", (3, 32, 32), tuple(chain), "pytorch-cifar")
