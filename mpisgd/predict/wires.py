"""What an average takes that travels in fewer bytes (`--wire`): closed forms beside `costs`.

Seconds of coding are in none of them: `coding` measures them, on the machine that codes.
"""

from math import prod

from allreduce.compress import compresses, priced
from allreduce.network import Network
from allreduce.schedule import Schedule, transfers
from allreduce.wire import Wire
from mpisgd.predict import costs, nets
from mpisgd.predict.networks import between

PAIR = Schedule(2, 1, (transfers([0, 1], [1, 0]),))  # any that sends something


def share(wire: str, net: str) -> float:
    """Bytes of a rank's average of the network's gradient that travel, over those of float32."""
    shapes, left = [], 0
    for layer in nets.layers(net):
        if layer.kind == "conv":
            inputs = layer.inputs[0] // layer.groups * prod(layer.kernel)
            shapes.append((layer.outputs[0], inputs))
        elif layer.kind == "full":
            shapes.append((layer.outputs[0], prod(layer.inputs)))
        left += layer.parameters
    left -= sum(map(prod, shapes))  # biases and normalisation
    count = left + sum(map(prod, shapes))
    nbytes = priced(Wire(wire, shapes=(*shapes, (left,))), PAIR, count, 4)[1].nbytes
    return nbytes / (4 * count) / (PAIR.size if wire.startswith("topk") else 1)


def allreduce_s(
    wire: str,
    shared: float,
    algorithm: str,
    ranks: int,
    nbytes: float,
    network: Network,
    rounding: str,
    topology: str,
) -> float:
    """Seconds of an average of `nbytes` of float32, of which the share `shared` travels.

    topk: a gather of all ranks' over the link between servers, whatever `algorithm` and `topology`;
    powersgd: two all-reduces of half of the bytes each. Sums of the others are of float32.
    """
    if wire.startswith("topk"):
        link = between(network)
        messages = costs.log2_ceil(ranks)
        return messages * link.latency_s + (ranks - 1) * nbytes * shared / link.bandwidth
    if compresses(wire):
        half = nbytes * shared / 2
        return 2 * costs.allreduce_s(algorithm, ranks, half, network, rounding, topology)
    sums = network.with_(sum_s_per_B=network.sum_s_per_B / shared)
    return costs.allreduce_s(algorithm, ranks, nbytes * shared, sums, rounding, topology)
