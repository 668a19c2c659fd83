"""Residual networks (He et al. 2015), ResNeXt (Xie et al. 2016), in three forms.

ImageNet: torchvision's v1.5 (the stride sits in the 3x3 convolution). PALEO's own ResNet-50:
convolutions with biases and no normalisation, stride in the first 1x1, "same" padding, and a
pool without padding that leaves 55x55. CIFAR: 32x32 input, a 3x3 (ResNeXt: 1x1) stem, as in the
well-known pytorch-cifar collection.
"""

from mpisgd.predict.nets.language import Add, Chain, Conv, Full, Net, Node, Pool

IMAGENET_STEM: Chain = (Conv(64, 7, 2, 3, name="conv1"), Pool(3, 2, 1, name="pool1"))


def _bottleneck(width: int, out: int, stride: int, groups: int, project: bool) -> Node:
    body = (Conv(width, 1), Conv(width, 3, stride, 1, groups), Conv(out, 1, relu=False))
    return Add((body, (Conv(out, 1, stride, relu=False),) if project else ()))


def _stages(blocks: tuple[int, ...], width: int, expansion: int, groups: int = 1) -> Chain:
    """Stages of bottlenecks: width and output double from one to the next."""
    chain: list[Node] = []
    for stage, count in enumerate(blocks):
        for block in range(count):
            stride = 2 if stage and not block else 1
            scale = 2**stage
            chain.append(
                _bottleneck(
                    width * scale, width * expansion * scale, stride, groups, project=not block
                )
            )
    return tuple(chain)


def _imagenet(name: str, stages: Chain) -> Net:
    return Net(name, (3, 224, 224), (*IMAGENET_STEM, *stages, Pool(0), Full(1000)), "torchvision")


def _cifar(name: str, stem: Conv, stages: Chain) -> Net:
    return Net(name, (3, 32, 32), (stem, *stages, Pool(0), Full(10)), "pytorch-cifar")


def resnet50() -> Net:
    """ResNet-50 v1.5, 224x224."""
    return _imagenet("resnet50", _stages((3, 4, 6, 3), 64, 4))


def resnet101() -> Net:
    """ResNet-101 v1.5, 224x224."""
    return _imagenet("resnet101", _stages((3, 4, 23, 3), 64, 4))


def resnext50() -> Net:
    """ResNeXt-50 32x4d, 224x224."""
    return _imagenet("resnext50", _stages((3, 4, 6, 3), 128, 2, groups=32))


def resnet50_cifar() -> Net:
    """ResNet-50, 32x32."""
    return _cifar("resnet50-cifar", Conv(64, 3, 1, 1), _stages((3, 4, 6, 3), 64, 4))


def resnet101_cifar() -> Net:
    """ResNet-101, 32x32."""
    return _cifar("resnet101-cifar", Conv(64, 3, 1, 1), _stages((3, 4, 23, 3), 64, 4))


def resnext29_cifar() -> Net:
    """ResNeXt29_2x64d, 32x32: three stages of three blocks, a 1x1 stem."""
    return _cifar("resnext29-cifar", Conv(64, 1), _stages((3, 3, 3), 128, 2, groups=2))


def _plain(name: str, channels: int, kernel: int, stride: int = 1, relu: bool = True) -> Conv:
    return Conv(channels, kernel, stride, "same", bias=True, norm=False, name=name, relu=relu)


def resnet50_paleo() -> Net:
    """PALEO's own ResNet-50 (its Caffe description): 25,530,472 parameters."""
    chain: list[Node] = [_plain("conv1", 64, 7, 2), Pool(3, 2, name="pool1")]
    for stage, count in enumerate((3, 4, 6, 3)):
        width = 64 * 2**stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            label = f"res{stage + 2}{'abcdef'[block]}_branch"
            body = (
                _plain(label + "2a", width, 1, stride),
                _plain(label + "2b", width, 3),
                _plain(label + "2c", 4 * width, 1, relu=False),
            )
            shortcut = () if block else (_plain(label + "1", 4 * width, 1, stride, relu=False),)
            chain.append(Add((shortcut, body)))
    chain += [Pool(7, name="pool5", mean=True), Full(1000, name="fc1000")]
    return Net("resnet50-paleo", (3, 224, 224), tuple(chain), "PALEO")
