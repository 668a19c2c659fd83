"""Networks outside of the tables of papers, described so that their cost can be modelled."""

from mpisgd.predict.nets.language import Add, Chain, Conv, Full, Net, Pool


def mnist_cnn() -> Net:
    """Chen et al. 2016, A.1 on 28x28 images, 16-16-32-32 channels; weight normalisation counts as
    its biases do."""
    chain: Chain = ()
    for channels in (16, 16, 32, 32):
        chain += (Conv(channels, 3, padding=1, bias=True, norm=False), Pool(2, 2))
    return Net("mnist-cnn", (1, 28, 28), (*chain, Full(10)), "Chen et al. 2016")


def pixelcnn(width: int = 96, blocks: int = 5) -> Net:
    """The PixelCNN of `torch:pixelcnn` on 32x32 images: its masks save no arithmetic."""

    def conv(channels: int, kernel: int) -> Conv:
        return Conv(channels, kernel, padding=kernel // 2, bias=True, norm=False)

    block = Add(((), (conv(width // 2, 1), conv(width // 2, 3), conv(width, 1))), relu=False)
    chain: Chain = (conv(width, 7), *(block,) * blocks, conv(width, 1), conv(3 * 256, 1))
    return Net("pixelcnn", (3, 32, 32), chain, "van den Oord et al. 2016")
