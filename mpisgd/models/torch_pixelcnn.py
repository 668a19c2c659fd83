"""A small PixelCNN (van den Oord et al. 2016): the likelihood of images, pixel by pixel.

Each of the 256 values of each colour of each pixel has a probability, given all pixels above and
to the left and the colours before it. The loss is its negative logarithm, in bits per dimension.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import nn

VALUES = 256
WIDTH, BLOCKS = 96, 5  # channels, a third of them for each colour; residual blocks


class MaskedConv(nn.Conv2d):
    """A convolution that sees only what comes before: pixels above and to the left, and at the
    pixel itself the colours before its own, which it sees too unless it is the `first` layer.

    Channels are in three equal groups, for red, green and blue.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, first: bool = False):
        super().__init__(inputs, outputs, kernel, padding=kernel // 2)
        mask = np.zeros(self.weight.shape, np.float32)
        middle = kernel // 2
        mask[:, :, :middle, :] = 1
        mask[:, :, middle, :middle] = 1
        colour_in, colour_out = (np.arange(n) * 3 // n for n in (inputs, outputs))
        allowed = colour_in[None, :] < colour_out[:, None] + (0 if first else 1)
        mask[:, :, middle, middle] = allowed
        self._mask = mask
        self._masks: dict[tuple[Any, Any], torch.Tensor] = {}  # by device and dtype

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        key = self.weight.device, self.weight.dtype
        if key not in self._masks:
            self._masks[key] = torch.tensor(self._mask, device=key[0], dtype=key[1])
        return self._conv_forward(inputs, self.weight * self._masks[key], self.bias)


class Residual(nn.Sequential):
    """x + 1x1(relu(3x3(relu(1x1(relu x))))), narrow in the middle."""

    def __init__(self, width: int):
        half = width // 2
        super().__init__(
            nn.ReLU(), MaskedConv(width, half, 1), nn.ReLU(), MaskedConv(half, half, 3),
            nn.ReLU(), MaskedConv(half, width, 1),
        )  # fmt: skip

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + super().forward(inputs)


def network(width: int = WIDTH, blocks: int = BLOCKS) -> nn.Module:
    """(rows, 3, height, width) in 0 .. 1 -> logits (rows, 3 * VALUES, height, width), the values
    of a colour side by side. `width`: a multiple of 6."""
    return nn.Sequential(
        MaskedConv(3, width, 7, first=True),
        *(Residual(width) for _ in range(blocks)),
        nn.ReLU(), MaskedConv(width, width, 1), nn.ReLU(), MaskedConv(width, 3 * VALUES, 1),
    )  # fmt: skip


class Bits:
    """Bits per dimension, the mean over colours and pixels of -log2 p; nothing is ever correct."""

    rows = 32

    def loss(self, outputs: Any, inputs: Any, targets: Any) -> Any:
        return self._bits(outputs, inputs).mean()

    def sums(self, outputs: Any, inputs: Any, targets: Any) -> tuple[float, int]:
        return float(self._bits(outputs, inputs).mean((1, 2, 3)).double().sum()), 0

    def _bits(self, outputs: Any, inputs: Any) -> Any:
        """(rows, colours, height, width)."""
        rows, colours, *extent = inputs.shape
        values = (inputs * (VALUES - 1)).round().long()
        logits = outputs.reshape(rows, colours, VALUES, *extent).transpose(1, 2)
        return nn.functional.cross_entropy(logits, values, reduction="none") / math.log(2)
