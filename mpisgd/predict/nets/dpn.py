"""DPN-92 (Chen et al. 2017): a residual and a dense path side by side, 32 groups."""

from mpisgd.predict.nets.language import Chain, Conv, Dual, Full, Net, Node, Norm, Pool

GROUPS = 32
# width of the 3x3, channels of the residual path, channels the dense path grows by, blocks
STAGES = ((96, 256, 16, 3), (192, 512, 32, 4), (384, 1024, 24, 20), (768, 2048, 128, 3))


def _pre(conv: Conv) -> Chain:
    """Normalisation before the convolution, as the authors have it."""
    return (Norm(), conv)


def imagenet() -> Net:
    """224x224, the authors' form: normalisation first, a projection of 2 more growths."""
    chain: list[Node] = [Conv(64, 7, 2, 3), Pool(3, 2, 1)]
    for stage, (width, residual, growth, count) in enumerate(STAGES):
        for block in range(count):
            stride = 2 if stage and not block else 1
            body = (
                *_pre(Conv(width, 1, norm=False, relu=False)),
                *_pre(Conv(width, 3, stride, 1, GROUPS, norm=False, relu=False)),
                *_pre(Conv(residual + growth, 1, norm=False, relu=False)),
            )
            project = _pre(Conv(residual + 2 * growth, 1, stride, norm=False, relu=False))
            chain.append(Dual((() if block else project, body), residual, relu=False))
    chain += [Norm(), Pool(0), Full(1000)]
    return Net("dpn92", (3, 224, 224), tuple(chain), "the authors' MXNet form")


def cifar() -> Net:
    """32x32, pytorch-cifar: normalisation behind the convolutions, a 3x3 stem."""
    chain: list[Node] = [Conv(64, 3, 1, 1)]
    for stage, (width, residual, growth, count) in enumerate(STAGES):
        for block in range(count):
            stride = 2 if stage and not block else 1
            out = residual + growth
            body = (Conv(width, 1), Conv(width, 3, stride, 1, GROUPS), Conv(out, 1, relu=False))
            project = (Conv(out, 1, stride, relu=False),)
            chain.append(Dual((() if block else project, body), residual))
    chain += [Pool(0), Full(10)]
    return Net("dpn92-cifar", (3, 32, 32), tuple(chain), "pytorch-cifar")
