"""PyTorch modules made from the layered descriptions that the performance model reads.

One description serves both: what `mpisgd predict` counts is what is trained.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from mpisgd.predict.nets.language import (
    Add,
    Chain,
    Concat,
    Conv,
    Dual,
    Full,
    Layer,
    Net,
    Node,
    Norm,
    Pool,
    Shape,
    joined_shape,
    layer_of,
)


def build(net: Net) -> nn.Module:
    """The network `net`: (rows, channels, height, width) -> (rows, classes).

    Its parameters lie in forward order. Made under `torch.device("meta")` it takes no memory.
    Padding "same" (PALEO's ResNet-50) is not a symmetric padding and is refused by an assertion.
    """

    def relu() -> nn.Module:
        ceiling = net.ceiling
        return nn.ReLU(inplace=True) if ceiling > 6 else nn.Hardtanh(0.0, ceiling, inplace=True)

    module, _ = _chain(net.chain, net.sample, relu)
    return module


def _chain(chain: Chain, shape: Shape, relu: Callable[[], nn.Module]) -> tuple[nn.Module, Shape]:
    parts: list[nn.Module] = []
    for node in chain:
        if isinstance(node, Concat | Add | Dual):
            branches = [_chain(branch, shape, relu) for branch in node.chains]
            parts.append(_join(node, [module for module, _ in branches]))
            shape = joined_shape(node, [outputs for _, outputs in branches])
        else:
            layer = layer_of(node, shape)
            parts += _layer(node, layer)
            shape = layer.outputs
        if getattr(node, "relu", isinstance(node, Norm)):
            parts.append(relu())
    return nn.Sequential(*parts), shape


def _layer(node: Node, layer: Layer) -> list[nn.Module]:
    inputs, outputs = layer.inputs[0], layer.outputs[0]
    if isinstance(node, Norm):
        return [nn.BatchNorm2d(inputs)]
    if isinstance(node, Full):
        features = layer.inputs[0] * layer.inputs[1] * layer.inputs[2]
        return [nn.Flatten(), nn.Linear(features, outputs)]
    if isinstance(node, Pool):
        return [_pool(node)]
    assert isinstance(node, Conv), node
    assert node.padding != "same", node
    convolution = nn.Conv2d(
        inputs, outputs, layer.kernel, layer.stride, layer.padding, groups=layer.groups,
        bias=node.bias,
    )  # fmt: skip
    return [convolution, nn.BatchNorm2d(outputs)] if node.norm else [convolution]


def _pool(node: Pool) -> nn.Module:
    if node.kernel == 0:
        return nn.AdaptiveAvgPool2d(1)
    kind: Any = nn.AvgPool2d if node.mean else nn.MaxPool2d
    return kind(node.kernel, node.stride, node.padding, ceil_mode=node.ceil)


def _join(node: Concat | Add | Dual, branches: list[nn.Module]) -> nn.Module:
    if isinstance(node, Dual):
        return DualJoin(branches, node.residual)
    return ConcatJoin(branches) if isinstance(node, Concat) else AddJoin(branches)


class ConcatJoin(nn.ModuleList):
    """The outputs of all branches, stacked along the channels."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(inputs) for branch in self], 1)


class AddJoin(nn.ModuleList):
    """The sum of all branches."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        first, *others = [branch(inputs) for branch in self]
        for other in others:
            first = first + other
        return first


class DualJoin(nn.ModuleList):
    """The first `residual` channels of two branches are added, the rest of both stacked."""

    def __init__(self, branches: list[nn.Module], residual: int):
        super().__init__(branches)
        self.residual = residual

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        one, other = (branch(inputs) for branch in self)
        low = self.residual
        return torch.cat([one[:, :low] + other[:, :low], one[:, low:], other[:, low:]], 1)
