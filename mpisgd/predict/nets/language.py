"""A small language for layered networks, and what can be counted in one.

A chain is a tuple of nodes. `Conv`, `Pool`, `Full` and `Norm` are layers; `Concat`, `Add` and
`Dual` join chains that start from the same tensor (an empty chain is the tensor itself).
`lower` walks a net, infers shapes and returns its layers, in forward order, as `Layer` records.
Activations, sums and concatenations have no parameters and, as in PALEO, no cost; they are told
for those who build a net to train it. Dropout is left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, prod
from typing import NamedTuple, TypeAlias

Shape: TypeAlias = tuple[int, int, int]  # channels, height, width
Pair: TypeAlias = int | tuple[int, int]
Chain: TypeAlias = tuple["Node", ...]


@dataclass(frozen=True)
class Conv:
    """A convolution to `channels`, with a bias or with batch normalisation behind it, then ReLU.

    padding: a number, a pair (height, width), or "same" as in PALEO and TensorFlow.
    """

    channels: int
    kernel: Pair
    stride: int = 1
    padding: Pair | str = 0
    groups: int = 1
    bias: bool = False
    norm: bool = True
    name: str = ""
    relu: bool = True


@dataclass(frozen=True)
class Pool:
    """Maximum or, with `mean`, average pooling. kernel 0 is the average of all. `ceil` rounds the
    output size up."""

    kernel: int
    stride: int = 1
    padding: int = 0
    ceil: bool = False
    name: str = ""
    mean: bool = False


@dataclass(frozen=True)
class Full:
    """A fully connected layer with bias, on the flattened tensor."""

    channels: int
    name: str = ""
    relu: bool = False


@dataclass(frozen=True)
class Norm:
    """Batch normalisation by itself, then ReLU: two parameters a channel."""


@dataclass(frozen=True)
class Concat:
    """Chains whose outputs are stacked along the channels."""

    chains: tuple[Chain, ...]


@dataclass(frozen=True)
class Add:
    """Chains whose outputs are added: all of one shape. Then ReLU."""

    chains: tuple[Chain, ...]
    relu: bool = True


@dataclass(frozen=True)
class Dual:
    """Dual path: the first `residual` channels are added, the rest of both stacked; then ReLU."""

    chains: tuple[Chain, Chain]
    residual: int
    relu: bool = True


Node: TypeAlias = Conv | Pool | Full | Norm | Concat | Add | Dual


@dataclass(frozen=True)
class Net:
    """A named network: the shape of one sample and its chain. ReLU is cut off at `ceiling`."""

    name: str
    sample: Shape
    chain: Chain
    source: str = ""
    ceiling: float = inf


class Layer(NamedTuple):
    """One layer with its shapes. kind: conv, pool, full or norm."""

    kind: str
    name: str
    inputs: Shape
    outputs: Shape
    kernel: tuple[int, int] = (1, 1)
    stride: int = 1
    padding: tuple[int, int] = (0, 0)
    groups: int = 1
    parameters: int = 0
    first: bool = False

    @property
    def macs(self) -> int:
        """Multiply-adds of one sample's forward pass (convolutions and full layers)."""
        if self.kind == "conv":
            taps = prod(self.kernel) * self.inputs[0] // self.groups
            return prod(self.outputs) * taps
        return prod(self.inputs) * self.outputs[0] if self.kind == "full" else 0


def lower(net: Net) -> tuple[Layer, ...]:
    """The layers of `net` in forward order; the first convolution is marked `first`."""
    layers = list(_walk(net.chain, net.sample, []))
    start = next((i for i, layer in enumerate(layers) if layer.kind in ("conv", "full")), None)
    if start is not None:
        layers[start] = layers[start]._replace(first=True)
    return tuple(
        layer if layer.name else layer._replace(name=f"{layer.kind}{i + 1}")
        for i, layer in enumerate(layers)
    )


def output_shape(net: Net) -> Shape:
    """The shape of one sample's output."""
    ends: list[Shape] = []
    list(_walk(net.chain, net.sample, ends))
    return ends[-1]


def parameters(layers: tuple[Layer, ...]) -> int:
    """Trainable parameters, biases and normalisation included."""
    return sum(layer.parameters for layer in layers)


def macs(layers: tuple[Layer, ...]) -> int:
    """Multiply-adds of one sample's forward pass."""
    return sum(layer.macs for layer in layers)


def _walk(chain: Chain, shape: Shape, ends: list[Shape]) -> Iterator[Layer]:
    """Yields the layers of `chain` and appends its output shape to `ends`."""
    for node in chain:
        if isinstance(node, Concat | Add | Dual):
            joined: list[Shape] = []
            for branch in node.chains:
                yield from _walk(branch, shape, joined)
            shape = joined_shape(node, joined)
        else:
            layer = layer_of(node, shape)
            yield layer
            shape = layer.outputs
    ends.append(shape)


def joined_shape(node: Concat | Add | Dual, shapes: list[Shape]) -> Shape:
    """The shape of what `node` makes of its chains' outputs."""
    assert len({shape[1:] for shape in shapes}) == 1, (node, shapes)
    channels = [shape[0] for shape in shapes]
    if isinstance(node, Add):
        assert len(set(channels)) == 1, channels
        return shapes[0]
    once = node.residual * (len(channels) - 1) if isinstance(node, Dual) else 0
    return (sum(channels) - once, *shapes[0][1:])


def layer_of(node: Conv | Pool | Full | Norm, shape: Shape) -> Layer:
    """`node` on a tensor of `shape`."""
    if isinstance(node, Norm):
        return Layer("norm", "", shape, shape, parameters=2 * shape[0])
    if isinstance(node, Full):
        weights = (prod(shape) + 1) * node.channels
        return Layer("full", node.name, shape, (node.channels, 1, 1), parameters=weights)
    return _conv(node, shape) if isinstance(node, Conv) else _pool(node, shape)


def _pair(value: Pair) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


def _conv(node: Conv, shape: Shape) -> Layer:
    assert shape[0] % node.groups == 0, (shape, node)
    assert node.channels % node.groups == 0, (shape, node)
    kernel, stride = _pair(node.kernel), node.stride
    if isinstance(node.padding, str):
        assert node.padding == "same", node
        high, wide = -(-shape[1] // stride), -(-shape[2] // stride)
        padding = (
            max(0, (high - 1) * stride + kernel[0] - shape[1]) // 2,
            max(0, (wide - 1) * stride + kernel[1] - shape[2]) // 2,
        )
    else:
        padding = _pair(node.padding)
        high = (shape[1] + 2 * padding[0] - kernel[0]) // stride + 1
        wide = (shape[2] + 2 * padding[1] - kernel[1]) // stride + 1
    weights = prod(kernel) * shape[0] * node.channels // node.groups
    weights += node.channels * (int(node.bias) + 2 * int(node.norm))
    outputs = (node.channels, high, wide)
    return Layer("conv", node.name, shape, outputs, kernel, stride, padding, node.groups, weights)


def _pool(node: Pool, shape: Shape) -> Layer:
    if node.kernel == 0:
        return Layer("pool", node.name, shape, (shape[0], 1, 1), (shape[1], shape[2]))
    outputs = (shape[0], _pooled(node, shape[1]), _pooled(node, shape[2]))
    kernel, padding = _pair(node.kernel), _pair(node.padding)
    return Layer("pool", node.name, shape, outputs, kernel, node.stride, padding)


def _pooled(node: Pool, size: int) -> int:
    """The output size for one axis of a pool."""
    span = size + 2 * node.padding - node.kernel
    steps = -(-span // node.stride) if node.ceil else span // node.stride
    # A window that would start in the padding behind the tensor is left out.
    if node.ceil and steps * node.stride >= size + node.padding:
        steps -= 1
    return steps + 1
