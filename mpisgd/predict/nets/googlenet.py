"""GoogLeNet (Szegedy et al. 2014), without the auxiliary classifiers.

ImageNet: torchvision's form, with batch normalisation and 3x3 where the paper has 5x5. CIFAR:
the pytorch-cifar form, with 3x3+3x3 in place of 5x5, and biases beside the normalisation.
"""

from mpisgd.predict.nets.language import Chain, Concat, Conv, Full, Net, Node, Pool

# 1x1; before 3x3, 3x3; before 5x5, 5x5; behind the pool. One row a block, in three stages.
BLOCKS = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)


def _block(widths: tuple[int, ...], bias: bool, doubled: bool) -> Node:
    one, before_three, three, before_five, five, pooled = widths

    def conv(channels: int, kernel: int) -> Conv:
        return Conv(channels, kernel, padding=kernel // 2, bias=bias)

    last: Chain = (conv(five, 3), conv(five, 3)) if doubled else (conv(five, 3),)
    return Concat(
        (
            (conv(one, 1),),
            (conv(before_three, 1), conv(three, 3)),
            (conv(before_five, 1), *last),
            (Pool(3, 1, 1), conv(pooled, 1)),
        )
    )


def _stages(bias: bool, doubled: bool, pools: tuple[Pool, Pool]) -> Chain:
    stages = [tuple(_block(row, bias, doubled) for row in rows) for rows in BLOCKS]
    return (*stages[0], pools[0], *stages[1], pools[1], *stages[2])


def imagenet() -> Net:
    """224x224, torchvision."""
    stem = (
        Conv(64, 7, 2, 3),
        Pool(3, 2, ceil=True),
        Conv(64, 1),
        Conv(192, 3, padding=1),
        Pool(3, 2, ceil=True),
    )
    stages = _stages(False, False, (Pool(3, 2, ceil=True), Pool(2, 2, ceil=True)))
    return Net("googlenet", (3, 224, 224), (*stem, *stages, Pool(0), Full(1000)), "torchvision")


def cifar() -> Net:
    """32x32, pytorch-cifar."""
    stem = Conv(192, 3, padding=1, bias=True)
    stages = _stages(True, True, (Pool(3, 2, 1), Pool(3, 2, 1)))
    return Net("googlenet-cifar", (3, 32, 32), (stem, *stages, Pool(0), Full(10)), "pytorch-cifar")
