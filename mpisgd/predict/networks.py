"""Networks of servers as the closed forms see them: one link between servers, one inside each."""

from typing import NamedTuple

from allreduce.network import PRESETS, Network, NetworkError
from allreduce.network import network as named
from mpisgd.values.errors import UsageError, among, nearest

FASTEST_BPS = 1e15  # what a link without a limit counts as
TOPOLOGIES = ("flat", "leader", "shared-nic")  # what they mean: terms.TERMS


class Link(NamedTuple):
    """Bandwidth in bytes/s, latency in s, gamma in s/byte."""

    bandwidth: float
    latency_s: float
    sum_s_per_byte: float

    @property
    def gbps(self) -> float:
        """Bandwidth in 10^9 bits/s."""
        return self.bandwidth * 8 / 1e9

    @property
    def gbytes(self) -> float:
        """Bandwidth in 10^9 bytes/s."""
        return self.bandwidth / 1e9


def between(network: Network) -> Link:
    """The link between servers. Overheads count as latency."""
    rate = min(network.bandwidth_Bps, network.uplink_Bps, FASTEST_BPS)
    return Link(rate, network.latency_s + 2 * network.overhead_s, network.sum_s_per_B)


def inside(network: Network) -> Link:
    """The link inside a server, of `ranks_per_node` devices."""
    rate = min(network.node_bandwidth_Bps, FASTEST_BPS)
    return Link(rate, network.node_latency_s + 2 * network.overhead_s, network.sum_s_per_B)


def find(text: str, place: str = "--network") -> Network:
    """The network `text` names: a preset, a TOML file or `key=value,...`. Raises UsageError."""
    try:
        return named(text)
    except NetworkError as error:
        raise UsageError(place, text, f"{error.reason}{nearest(text, PRESETS)}") from None


def check(topology: str) -> None:
    """UsageError for one that there is not."""
    among("--topology", topology, TOPOLOGIES)
