"""Inception-v3 (Szegedy et al. 2015) at 299x299, torchvision's form, no auxiliary classifier."""

from mpisgd.predict.nets.language import Chain, Concat, Conv, Full, Net, Node, Pool


def _same(channels: int, height: int, width: int) -> Conv:
    return Conv(channels, (height, width), padding=(height // 2, width // 2))


def _a(pooled: int) -> Node:
    return Concat(
        (
            (Conv(64, 1),),
            (Conv(48, 1), _same(64, 5, 5)),
            (Conv(64, 1), _same(96, 3, 3), _same(96, 3, 3)),
            (Pool(3, 1, 1, mean=True), Conv(pooled, 1)),
        )
    )


def _b() -> Node:
    long = (Conv(64, 1), _same(96, 3, 3), Conv(96, 3, 2))
    return Concat(((Conv(384, 3, 2),), long, (Pool(3, 2),)))


def _c(width: int) -> Node:
    tall, wide = _same(width, 7, 1), _same(width, 1, 7)
    return Concat(
        (
            (Conv(192, 1),),
            (Conv(width, 1), wide, _same(192, 7, 1)),
            (Conv(width, 1), tall, wide, tall, _same(192, 1, 7)),
            (Pool(3, 1, 1, mean=True), Conv(192, 1)),
        )
    )


def _d() -> Node:
    long = (Conv(192, 1), _same(192, 1, 7), _same(192, 7, 1), Conv(192, 3, 2))
    return Concat(((Conv(192, 1), Conv(320, 3, 2)), long, (Pool(3, 2),)))


def _e() -> Node:
    split = Concat(((_same(384, 1, 3),), (_same(384, 3, 1),)))
    return Concat(
        (
            (Conv(320, 1),),
            (Conv(384, 1), split),
            (Conv(448, 1), _same(384, 3, 3), split),
            (Pool(3, 1, 1, mean=True), Conv(192, 1)),
        )
    )


def imagenet() -> Net:
    """299x299, 1000 classes."""
    stem: Chain = (
        Conv(32, 3, 2),
        Conv(32, 3),
        _same(64, 3, 3),
        Pool(3, 2),
        Conv(80, 1),
        Conv(192, 3),
        Pool(3, 2),
    )
    blocks = (_a(32), _a(64), _a(64), _b(), _c(128), _c(160), _c(160), _c(192), _d(), _e(), _e())
    chain = (*stem, *blocks, Pool(0), Full(1000))
    return Net("inception3", (3, 299, 299), chain, "torchvision")
