"""Closed forms for the time of an all-reduce: counts of messages, bytes and sums.

An all-reduce of n bytes costs `messages * latency + volume * n / bandwidth + sums * n * gamma`,
gamma being the seconds to sum one byte. L(p) = ceil(log2 p).

Sources: one-to-all, tree and butterfly as in PALEO (Qi, Sparks, Talwalkar 2017); the DaSGD
paper's text calls the butterfly about twice the tree, PALEO has it the other way round, and so
has this module. Halving-doubling and ring: Thakur, Rabenseifner, Gropp 2005. `linear` is the
DaSGD paper's in-line formula m*S/B, which contradicts its own Table II text; it is here to be
compared with. `bound` is what no algorithm can beat.
"""

from math import ceil
from typing import NamedTuple

from allreduce.network import Network
from mpisgd.predict.networks import Link, between, check, inside
from mpisgd.values.errors import among
from mpisgd.values.quantities import LARGEST_BYTES, number, whole
from mpisgd.values.registry import resolve

COSTS = {
    "tree": "mpisgd.predict.costs:tree",
    "butterfly": "mpisgd.predict.costs:butterfly",
    "halving-doubling": "mpisgd.predict.costs:halving_doubling",
    "ring": "mpisgd.predict.costs:ring",
    "one-to-all": "mpisgd.predict.costs:one_to_all",
    "linear": "mpisgd.predict.costs:linear",
    "bound": "mpisgd.predict.costs:bound",
}

ROUNDING = ("ceil", "fold")
FOLDED = ("butterfly", "halving-doubling")


class Counts(NamedTuple):
    """What the slowest rank does, one after another, in units of the message."""

    messages: float
    volume: float
    sums: float


def log2_ceil(ranks: int) -> int:
    """L(p) = ceil(log2 p), exact for every integer p >= 1."""
    return (ranks - 1).bit_length()


def tree(ranks: int) -> Counts:
    """Binomial reduce, then broadcast: 2 L(p) messages."""
    steps = log2_ceil(ranks)
    return Counts(2 * steps, 2 * steps, steps)


def butterfly(ranks: int) -> Counts:
    """Recursive doubling: L(p) exchanges of the whole message."""
    steps = log2_ceil(ranks)
    return Counts(steps, steps, steps)


def halving_doubling(ranks: int) -> Counts:
    """Reduce-scatter by halving, all-gather by doubling: 2 L(p) messages, 2(p-1)/p volume."""
    share = (ranks - 1) / ranks
    return Counts(2 * log2_ceil(ranks), 2 * share, share)


def ring(ranks: int) -> Counts:
    """Reduce-scatter and all-gather round a ring: 2(p-1) messages, 2(p-1)/p volume."""
    share = (ranks - 1) / ranks
    return Counts(2 * (ranks - 1), 2 * share, share)


def one_to_all(ranks: int) -> Counts:
    """Every rank to one master and back: 2(p-1) whole messages over the master's link."""
    return Counts(2 * (ranks - 1), 2 * (ranks - 1), ranks - 1)


def linear(ranks: int) -> Counts:
    """The DaSGD paper's in-line m*S/B; nothing for one rank, which has no one to talk to."""
    steps = ranks if ranks > 1 else 0
    return Counts(steps, steps, 0)


def bound(ranks: int) -> Counts:
    """The lower bound on bytes, 2(p-1)/p, at no latency and with free sums."""
    return Counts(0, 2 * (ranks - 1) / ranks, 0)


def counts(algorithm: str, ranks: int, rounding: str = "ceil") -> Counts:
    """Counts of one level. `rounding` decides what ranks that are no power of two cost.

    `ceil` is PALEO's L(p), optimistic for butterfly and halving-doubling; `fold` gives these
    two the algorithm on the largest power of two below, plus two whole messages and one sum.
    Raises UsageError for an unknown algorithm or rounding, or fewer than one rank.
    """
    form = resolve(COSTS, algorithm, "--allreduce")
    among("--rounding", rounding, ROUNDING)
    whole("ranks", ranks)
    power = 1 << (ranks.bit_length() - 1)
    if rounding == "fold" and algorithm in FOLDED and power != ranks:
        inner = form(power)
        return Counts(inner.messages + 2, inner.volume + 2, inner.sums + 1)
    return form(ranks)


def levels(ranks: int, network: Network, topology: str = "leader") -> list[tuple[int, Link]]:
    """(ranks, link) of each all-reduce that one all-reduce of `ranks` consists of; topology: one of
    networks.TOPOLOGIES. Raises UsageError for another."""
    check(topology)
    outer, size = between(network), network.ranks_per_node
    if topology == "flat":
        return [(ranks, outer)]
    if topology == "shared-nic":
        outer = outer._replace(bandwidth=outer.bandwidth / size)
    return [(min(ranks, size), inside(network)), (ceil(ranks / size), outer)]


def allreduce_s(
    algorithm: str,
    ranks: int,
    nbytes: float,
    network: Network,
    rounding: str = "ceil",
    topology: str = "leader",
) -> float:
    """Seconds of one all-reduce of `nbytes` over `ranks`; 0 for one rank.

    Raises UsageError for unknown names and for numbers that are negative or not finite.
    """
    number("bytes", nbytes, high=LARGEST_BYTES)
    total = 0.0
    for members, link in levels(whole("ranks", ranks), network, topology):
        count = counts(algorithm, members, rounding)
        total += count.messages * link.latency_s
        total += count.volume * nbytes / link.bandwidth
        total += count.sums * nbytes * link.sum_s_per_byte
    return total
