"""Parameters and multiply-adds of a PyTorch module, counted as it runs: by forward hooks.

It knows nothing of the descriptions that the performance model counts in, so that each checks the
other.
"""

from math import prod
from typing import NamedTuple

import torch
from torch import nn


class Count(NamedTuple):
    """parameters: trainable ones; macs: multiply-adds of one sample's forward pass, by module."""

    parameters: int
    macs: dict[str, int]

    @property
    def total_macs(self) -> int:
        return sum(self.macs.values())


def count(module: nn.Module, sample: tuple[int, ...]) -> Count:
    """What `module` has and does for one sample of shape `sample`.

    Convolutions and full layers count, as outputs x inputs of each; sums, pools and normalisation
    do not. The module is run once in evaluation mode, on the device of its parameters: on "meta"
    nothing is computed.
    """
    macs: dict[str, int] = {}
    hooks = []
    for name, part in module.named_modules():
        if isinstance(part, nn.Conv2d | nn.Linear):

            def seen(layer: nn.Module, inputs: tuple, output: torch.Tensor, name: str = name):
                macs[name] = macs.get(name, 0) + output[0].numel() * _taps(layer)

            hooks.append(part.register_forward_hook(seen))
    first = next(module.parameters())
    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            module(torch.zeros((1, *sample), device=first.device, dtype=first.dtype))
    finally:
        module.train(training)
        for hook in hooks:
            hook.remove()
    return Count(sum(p.numel() for p in module.parameters() if p.requires_grad), macs)


def _taps(layer: nn.Module) -> int:
    """Multiply-adds of one output element."""
    if isinstance(layer, nn.Conv2d):
        return prod(layer.kernel_size) * layer.in_channels // layer.groups
    assert isinstance(layer, nn.Linear)
    return layer.in_features
