"""How long one local step takes on a device: PALEO's layer model, fp32.

Each layer takes C + M: C = FLOP / (peak * share), M = bytes of its inputs, weights and outputs
/ (memory bandwidth * share), or max(C, M) when `pipelined`. A multiply-add is 2 FLOP. Backward
is the gradient of the data (none in the first layer) and that of the weights. Normalisation,
activations, sums and concatenations cost nothing, as in PALEO. The update takes 2 FLOP and 12
bytes a parameter at the whole peak.

Source: Qi, Sparks, Talwalkar, "PALEO: a performance model for deep neural networks", ICLR 2017,
and its public code, including how that counts padding and the holes of strided gradients. Its
authors claim an error of 10 to 30 %. Added here: FLOP and weights divided by the groups of a
grouped convolution, which PALEO cannot express.
"""

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from mpisgd.predict.devices import Device
from mpisgd.predict.nets.language import Layer, parameters
from mpisgd.values.errors import among
from mpisgd.values.quantities import number, whole

FLOAT_BYTES = 4
UPDATE_FLOP = 2
UPDATE_BYTES = 12
GIGABYTE = 2**30  # PALEO reads the GB/s of a data sheet so

COMPUTE = ("paleo", "flops")


class Work(NamedTuple):
    """FLOP and bytes moved."""

    flop: float = 0.0
    nbytes: float = 0.0


class LayerWork(NamedTuple):
    """What one layer does for a batch, forward and backward."""

    name: str
    parameters: int
    forward: Work
    backward: Work


class LayerTime(NamedTuple):
    """Seconds of one layer, by arithmetic and by memory, and its parameters."""

    name: str
    parameters: int
    forward_compute_s: float
    forward_memory_s: float
    backward_compute_s: float
    backward_memory_s: float
    forward_s: float
    backward_s: float


@dataclass(frozen=True)
class StepTime:
    """Seconds of one local step, its layers in forward order, and its batch."""

    batch: int
    forward_s: float
    backward_s: float
    update_s: float
    layers: tuple[LayerTime, ...]

    @property
    def step_s(self) -> float:
        """Forward, backward and update together: t_p."""
        return self.forward_s + self.backward_s + self.update_s

    @property
    def parameters(self) -> int:
        """Parameters of all layers."""
        return sum(layer.parameters for layer in self.layers)


def layer_work(layer: Layer, batch: int) -> LayerWork:
    """FLOP and bytes of `layer` for `batch` samples, counted as PALEO counts them."""
    if layer.kind == "conv":
        forward, backward = _conv_forward(layer, batch), _conv_backward(layer, batch)
    elif layer.kind == "full":
        forward = _full(layer, batch)
        factor = 1 if layer.first else 2
        backward = Work(factor * forward.flop, factor * forward.nbytes)
    elif layer.kind == "pool":
        moved = prod(layer.inputs) + prod(layer.outputs)
        flop = 2 * prod(layer.kernel) * prod(layer.outputs) * batch
        forward = backward = Work(flop, moved * batch * FLOAT_BYTES)
    else:
        forward = backward = Work()
    return LayerWork(layer.name, layer.parameters, forward, backward)


def step_time(
    layers: tuple[Layer, ...],
    device: Device,
    batch: int,
    *,
    peak_share: float = 1.0,
    pipelined: bool = False,
    compute: str = "paleo",
) -> StepTime:
    """The time of one local step on `batch` samples.

    peak_share: PALEO's platform percent of peak, in (0, 1], on arithmetic and memory alike.
    compute: `paleo`, or `flops`, the DaSGD paper's B*FLOP/FLOPS: arithmetic alone, backward
    twice the forward, no update. Raises UsageError for nonsense values.
    """
    whole("--batch", batch)
    number("--peak-share", peak_share, high=1.0, open_low=True)
    among("--compute", compute, COMPUTE)
    peak = device.peak_GFLOPS * 1e9
    memory = device.bandwidth_GBps * GIGABYTE
    if compute == "flops":
        times = [_arithmetic_time(layer, batch, peak * peak_share) for layer in layers]
        update_s = 0.0
    else:
        works = [layer_work(layer, batch) for layer in layers]
        times = [_time(work, peak * peak_share, memory * peak_share, pipelined) for work in works]
        count = parameters(layers)
        update_s = _together(count * UPDATE_FLOP / peak, count * UPDATE_BYTES / memory, pipelined)
    forward_s = sum(time.forward_s for time in times)
    backward_s = sum(time.backward_s for time in times)
    return StepTime(batch, forward_s, backward_s, update_s, tuple(times))


def memory_bytes(layers: tuple[Layer, ...], batch: int) -> float:
    """A lower bound on a step's memory: parameters, gradients and momentum, and the outputs of
    all convolutions, pools and full layers kept for the backward pass. fp32, no workspace."""
    kept = sum(prod(layer.outputs) for layer in layers if layer.kind != "norm")
    return FLOAT_BYTES * (3 * parameters(layers) + batch * kept)


def _together(compute_s: float, memory_s: float, pipelined: bool) -> float:
    return max(compute_s, memory_s) if pipelined else compute_s + memory_s


def _time(work: LayerWork, peak: float, memory: float, pipelined: bool) -> LayerTime:
    seconds = [(part.flop / peak, part.nbytes / memory) for part in (work.forward, work.backward)]
    (forward_c, forward_m), (backward_c, backward_m) = seconds
    return LayerTime(
        work.name,
        work.parameters,
        forward_c,
        forward_m,
        backward_c,
        backward_m,
        _together(forward_c, forward_m, pipelined),
        _together(backward_c, backward_m, pipelined),
    )


def _arithmetic_time(layer: Layer, batch: int, peak: float) -> LayerTime:
    forward_s = 2 * layer.macs * batch / peak
    backward_s = 2 * forward_s
    return LayerTime(
        layer.name, layer.parameters, forward_s, 0.0, backward_s, 0.0, forward_s, backward_s
    )


def _full(layer: Layer, batch: int) -> Work:
    inputs, outputs = prod(layer.inputs), layer.outputs[0]
    moved = batch * inputs + inputs * outputs + batch * outputs
    return Work(2 * batch * inputs * outputs, moved * FLOAT_BYTES)


def _weights(layer: Layer) -> int:
    return prod(layer.kernel) * layer.inputs[0] * layer.outputs[0] // layer.groups


def _area(extent: tuple[int, ...], padding: tuple[int, ...]) -> int:
    return prod(size + 2 * pad for size, pad in zip(extent, padding, strict=True))


def _conv_forward(layer: Layer, batch: int) -> Work:
    channels, *extent = layer.inputs
    moved = batch * channels * _area(tuple(extent), layer.padding)
    moved += _weights(layer) + batch * prod(layer.outputs)
    return Work(2 * batch * layer.macs, moved * FLOAT_BYTES)


def _conv_backward(layer: Layer, batch: int) -> Work:
    weights = _weight_gradient(layer, batch)
    if layer.first:
        return weights
    data = _data_gradient(layer, batch)
    return Work(weights.flop + data.flop, weights.nbytes + data.nbytes)


def _dilated(layer: Layer) -> tuple[int, ...]:
    """The extent of the output gradient with stride-1 holes between its elements, one larger
    where the paddings before and behind it would differ by one."""
    extents = []
    for size, out, kernel in zip(layer.inputs[1:], layer.outputs[1:], layer.kernel, strict=True):
        extent = (out - 1) * layer.stride + 1
        extents.append(extent + (size + kernel - 1 - extent) % 2)
    return tuple(extents)


def _data_gradient(layer: Layer, batch: int) -> Work:
    """A dense convolution over the dilated output gradient, padded to give the input's size."""
    channels, *extent = layer.inputs
    dilated = _dilated(layer)
    padding = tuple(
        (size + kernel - 1 - wide) // 2
        for size, kernel, wide in zip(extent, layer.kernel, dilated, strict=True)
    )
    flop = 2 * batch * prod(extent) * _weights(layer)
    if prod(dilated) > prod(layer.outputs[1:]):
        flop += 2 * batch * prod(layer.outputs)  # moving each element to its place
    moved = batch * layer.outputs[0] * _area(dilated, padding)
    moved += _weights(layer) + batch * channels * prod(extent)
    return Work(flop, moved * FLOAT_BYTES)


def _weight_gradient(layer: Layer, batch: int) -> Work:
    """The padded input convolved with the output gradient; its holes are not counted."""
    channels, *extent = layer.inputs
    padding = tuple(
        (kernel - 1 + wide - size) // 2
        for size, kernel, wide in zip(extent, layer.kernel, _dilated(layer), strict=True)
    )
    moved = batch * channels * _area(tuple(extent), padding)
    moved += batch * prod(layer.outputs) + _weights(layer)
    return Work(2 * batch * layer.macs, moved * FLOAT_BYTES)
