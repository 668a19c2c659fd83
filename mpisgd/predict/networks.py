"""Networks of servers: the link between servers, the link inside one, and how they compose.

Bandwidths between servers are decimal: 1 Gbps = 1.25e8 bytes/s. Sources: Ethernet and
Infiniband by their nominal rates (Infiniband of 70 Gbps: PALEO's public code); PCIe 3.0 x16 at
16 GB/s (PALEO); NVLink 3 and 4 at 300 and 450 GB/s in each direction (NVIDIA data sheets). The
first rows have no latency, as in PALEO and the DaSGD paper; the others carry a typical one.
"""

from dataclasses import dataclass

from allreduce import files
from allreduce import network as links
from allreduce.errors import AllreduceError
from allreduce.network import PRESETS
from mpisgd.predict.records import find as find_record
from mpisgd.values.errors import UsageError
from mpisgd.values.quantities import number, whole

FASTEST_BPS = 1e15  # what a link without a limit counts as
TOPOLOGIES = ("flat", "leader", "shared-nic")


@dataclass(frozen=True)
class Network:
    """A cluster's network. Raises UsageError for nonsense values.

    topology: `flat` (only the link between servers), `leader` (an all-reduce in each server,
    then one between servers), `shared-nic` (as leader, but all devices of a server share its
    link at once, so that the term between servers takes server_size times as long).
    """

    name: str
    bandwidth_Gbps: float  # noqa: N815
    latency_s: float = 0.0
    sum_s_per_byte: float = 0.0  # seconds to sum one received byte
    server_size: int = 8  # devices a server
    server_bandwidth_GBps: float = 16.0  # noqa: N815 (10^9 bytes a second, inside a server)
    server_latency_s: float = 0.0
    topology: str = "leader"

    def __post_init__(self) -> None:
        place = f"network {self.name}: "
        for key in ("bandwidth_Gbps", "server_bandwidth_GBps"):
            object.__setattr__(self, key, number(place + key, getattr(self, key), open_low=True))
        for key in ("latency_s", "sum_s_per_byte", "server_latency_s"):
            object.__setattr__(self, key, number(place + key, getattr(self, key)))
        object.__setattr__(self, "server_size", whole(place + "server_size", self.server_size))
        if self.topology not in TOPOLOGIES:
            raise UsageError(
                place + "topology", self.topology, f"choose from {', '.join(TOPOLOGIES)}"
            )


def _row(name: str, gbps: float, server: float, latency_s: float = 0.0) -> Network:
    return Network(name, gbps, latency_s, server_bandwidth_GBps=server, server_latency_s=latency_s)


NETWORKS = {
    "eth1-pcie3": _row("eth1-pcie3", 1, 16),
    "eth10-pcie3": _row("eth10-pcie3", 10, 16),
    "eth20-pcie3": _row("eth20-pcie3", 20, 16),
    "ib70-pcie3": _row("ib70-pcie3", 70, 16),
    "ib-edr-pcie3": _row("ib-edr-pcie3", 100, 16, 2e-6),
    "ib-hdr-nvlink3": _row("ib-hdr-nvlink3", 200, 300, 2e-6),
    "ib-ndr-nvlink4": _row("ib-ndr-nvlink4", 400, 450, 2e-6),
}


def find(text: str, place: str = "--network") -> Network:
    """The network `text` names: a preset, a TOML file or `name=...,bandwidth_Gbps=...,...`.

    Networks of the simulator serve too: its presets, and the files that `mpisgd calibrate` writes.
    """
    if text in NETWORKS or not (text in PRESETS or _of_the_simulator(text)):
        return find_record(Network, NETWORKS, text, place)
    try:
        return _from_links(links.network(text))
    except AllreduceError as error:
        raise UsageError(place, text, str(error)) from None


def _of_the_simulator(path: str) -> bool:
    """Whether a TOML file describes links in the simulator's words."""
    if not path.endswith(".toml"):
        return False
    try:
        keys = files.toml(path).keys()
    except files.Unreadable:
        return False
    return bool({"preset", "bandwidth_Bps"} & keys)


def _from_links(network: links.Network) -> Network:
    """The closed forms' view: one link between servers, one inside. Infinite means fast."""
    return Network(
        network.name,
        min(network.bandwidth_Bps, network.uplink_Bps, FASTEST_BPS) * 8 / 1e9,
        network.latency_s + 2 * network.overhead_s,
        network.sum_s_per_B,
        network.ranks_per_node,
        min(network.node_bandwidth_Bps, FASTEST_BPS) / 1e9,
        network.node_latency_s + 2 * network.overhead_s,
    )
