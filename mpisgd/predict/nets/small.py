"""Networks outside of the tables of papers, described so that their cost can be modelled."""

from mpisgd.predict.nets.language import Add, Chain, Conv, Full, Net, Node, Pool


def mnist_cnn(widths: tuple[int, ...] = (16, 16, 32, 32)) -> Net:
    """Chen et al. 2016, A.1 on 28x28 images, `widths` channels; weight normalisation counts as
    its biases do."""
    chain: Chain = ()
    for number, channels in enumerate(widths):
        chain += (Conv(channels, 3, padding=1, bias=True, norm=False),)
        chain += (Pool(2, 2),) if 28 >> number > 1 else ()  # one pixel is pooled no further
    return Net("mnist-cnn", (1, 28, 28), (*chain, Full(10)), "Chen et al. 2016")


def resnet8(width: tuple[int, ...] = (16,)) -> Net:
    """One block a stage, see `_cifar_resnet`."""
    return _cifar_resnet("resnet8", width[0], 1)


def resnet20(width: tuple[int, ...] = (16,)) -> Net:
    """Three blocks a stage, see `_cifar_resnet`."""
    return _cifar_resnet("resnet20", width[0], 3)


def _cifar_resnet(name: str, width: int, blocks: int) -> Net:
    """He et al. 2015, section 4.2 on 32x32 images; shortcuts have no parameters, and no cost."""
    chain: list[Node] = [Conv(width, 3, padding=1)]
    for stage in range(3):
        channels = width << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            body = (Conv(channels, 3, stride, 1), Conv(channels, 3, padding=1, relu=False))
            chain.append(Add((body,)))
    return Net(name, (3, 32, 32), (*chain, Pool(0), Full(10)), "He et al. 2015")


def pixelcnn(width: int = 96, blocks: int = 5) -> Net:
    """The PixelCNN of `torch:pixelcnn` on 32x32 images: its masks save no arithmetic."""

    def conv(channels: int, kernel: int) -> Conv:
        return Conv(channels, kernel, padding=kernel // 2, bias=True, norm=False)

    block = Add(((), (conv(width // 2, 1), conv(width // 2, 3), conv(width, 1))), relu=False)
    chain: Chain = (conv(width, 7), *(block,) * blocks, conv(width, 1), conv(3 * 256, 1))
    return Net("pixelcnn", (3, 32, 32), chain, "van den Oord et al. 2016")
