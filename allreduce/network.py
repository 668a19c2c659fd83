"""What a message costs on its way: links, who shares them, and presets.

A rank has two ports, one into its node and one to other nodes. A message takes the links of its
path one after the other, *first come, first served in order of time*, whole messages at a time:

- same node: port in the node, [bus out, bus in, if it changes the bus], port in the node;
- other node: port, [bus out], node uplink out, node uplink in, [bus in], port.

It reaches the next link as soon as it is served by one (cut-through), keeps each busy for
bytes/bandwidth, and has arrived one latency after the slowest link let its last byte go. Alone:
T(n) = latency + n/bandwidth. Its send is complete when the first link of its path is done with it.

With `sharing` fair, messages do not queue: all that are on a link share its bandwidth evenly, as
TCP streams do, and a send that needs no handshake is complete once it is posted (buffered).
"""

import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from allreduce import files
from allreduce.errors import AllreduceError

LINKS_PER_PATH = 6
DUPLEX = ("full", "half")
SHARING = ("fifo", "fair")
PROGRESS = ("looks", "perfect")

# Beyond these no network lies, and sums of times stay finite.
SLOWEST_BPS = 1e-9
LONGEST_S = 1e9
LARGEST_B = 1e18
MOST_NOISE = 10.0

_PORT, _NODE_PORT, _BUS, _UPLINK = range(4)
_KINDS = 4


class NetworkError(AllreduceError):
    """A network that makes no sense: `place`, which one, and `reason`: the key, its value, what is
    allowed."""

    def __init__(self, place: str, reason: str):
        super().__init__(place, reason)
        self.place, self.reason = place, reason

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


@dataclass(frozen=True)
class Network:
    """A cluster, with `ranks_per_node` consecutive ranks on each node. NetworkError if nonsense.

    Bandwidths are in bytes/s (infinite: never a limit, never shared), one direction each, latencies
    in seconds. `duplex` half: both directions of every link share its bandwidth. Messages longer
    than `eager_limit_B` shake hands first: a request to send, an answer once the receive is
    posted, then the data; two more latencies. `progress` looks: handshakes are answered, and
    rounds advance, only when the rank looks; perfect: at once, and sums cost no computing time.
    `rendezvous_duplex` half: of the messages with a handshake between two ranks, only one way goes
    at a time (MPICH over TCP). `burst_B`: what a port to other nodes lets pass at once after it
    has been idle for as long as these bytes take (a token bucket).
    """

    name: str = "network"
    latency_s: float = 0.0  # alpha: between nodes
    bandwidth_Bps: float = math.inf  # noqa: N815 - 1/beta: a rank's port to other nodes
    sum_s_per_B: float = 0.0  # noqa: N815 - gamma: adding one received byte
    overhead_s: float = 0.0  # a rank's time for each message it sends, and for each it receives
    look_s: float = 0.0  # a computing rank's time for a look, if an all-reduce is in flight
    ranks_per_node: int = 1
    uplink_Bps: float = math.inf  # noqa: N815 - what all ranks of a node share to other nodes
    node_latency_s: float = 0.0  # inside a node
    node_bandwidth_Bps: float = math.inf  # noqa: N815 - a rank's port into its node
    ranks_per_bus: int = 0  # ranks behind one PCIe switch; 0: no such level
    bus_Bps: float = math.inf  # noqa: N815 - what they share when they leave the switch
    duplex: str = "full"
    sharing: str = "fifo"
    burst_B: float = 0.0  # noqa: N815
    rendezvous_duplex: str = "full"
    eager_limit_B: float = math.inf  # noqa: N815
    noise: float = 0.0  # sigma of the lognormal factor, of mean 1, on a message's time
    progress: str = "looks"
    encode_s_per_B: float = 0.0  # noqa: N815 - coding a value's byte for a wire, by who sends it
    decode_s_per_B: float = 0.0  # noqa: N815 - and by who receives it

    def __post_init__(self) -> None:
        for key in ("bandwidth_Bps", "uplink_Bps", "node_bandwidth_Bps", "bus_Bps"):
            self._number(
                key, f"a number > 0, at least {SLOWEST_BPS:g}, or inf", lambda v: v >= SLOWEST_BPS
            )
        self._number("eager_limit_B", "a number >= 0, or inf", lambda value: value >= 0)
        self._number(
            "burst_B", f"a number >= 0, at most {LARGEST_B:g}", lambda v: 0 <= v <= LARGEST_B
        )
        for key in (
            "latency_s", "sum_s_per_B", "encode_s_per_B", "decode_s_per_B", "overhead_s", "look_s",
            "node_latency_s",
        ):  # fmt: skip
            self._number(
                key, f"a number >= 0, at most {LONGEST_S:g}", lambda v: 0 <= v <= LONGEST_S
            )
        self._number(
            "noise", f"a number >= 0, at most {MOST_NOISE:g}", lambda v: 0 <= v <= MOST_NOISE
        )
        for key, low in (("ranks_per_node", 1), ("ranks_per_bus", 0)):
            value = getattr(self, key)
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise self._wrong(key, f"a whole number >= {low}")
        if self.ranks_per_bus and self.ranks_per_node % self.ranks_per_bus:
            raise self._wrong("ranks_per_bus", f"a divisor of ranks_per_node {self.ranks_per_node}")
        for key, allowed in (
            ("duplex", DUPLEX),
            ("rendezvous_duplex", DUPLEX),
            ("sharing", SHARING),
            ("progress", PROGRESS),
        ):
            if getattr(self, key) not in allowed:
                raise self._wrong(key, f"one of {', '.join(allowed)}")
        if not isinstance(self.name, str):
            raise self._wrong("name", "text")

    def with_(self, **changes: Any) -> "Network":
        """This network with some fields changed. NetworkError for an unknown one."""
        _check_keys(f"network {self.name}", changes)
        return replace(self, **changes)

    def nodes(self, size: int) -> list[int]:
        """The node of each of `size` ranks, as `algorithms.build` takes it."""
        return [rank // self.ranks_per_node for rank in range(size)]

    def toml(self) -> str:
        """The text of a file that `network` reads back as an equal network."""
        lines = []
        for key, value in asdict(self).items():
            quoted = value if not isinstance(value, str) else _quoted(value)
            lines.append(f"{key} = {quoted}\n")
        return "".join(lines)

    def _number(self, key: str, allowed: str, fits: Any) -> None:
        value = getattr(self, key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not fits(value):
            raise self._wrong(key, allowed)
        try:
            object.__setattr__(self, key, float(value))
        except OverflowError:  # a whole number beyond all floats
            raise self._wrong(key, allowed) from None

    def _wrong(self, key: str, allowed: str) -> NetworkError:
        return NetworkError(f"network {self.name}", f"{key} {getattr(self, key)!r}: {allowed}")


@dataclass(frozen=True)
class Paths:
    """The paths of n messages. `links`: (n, LINKS_PER_PATH) numbers of links in the order they are
    taken, -1 where there is none; `seconds_per_byte` of each, 0 where none; `latency` (n) in s.
    Links are numbered below `link_count(size)`."""

    latency: np.ndarray
    links: np.ndarray
    seconds_per_byte: np.ndarray


def paths(network: Network, source: np.ndarray, destination: np.ndarray, size: int) -> Paths:
    """The paths from `source` to `destination` (ranks below `size`, equal shapes)."""
    source, destination = np.asarray(source, np.int64), np.asarray(destination, np.int64)
    node = network.ranks_per_node
    inside = source // node == destination // node
    away = ~inside
    bus = max(network.ranks_per_bus, 1)
    changes = (source // bus != destination // bus) & (network.ranks_per_bus > 0)
    columns = []
    for direction, rank in ((0, source), (1, destination)):
        # A port serves its own side, so its number depends on where the message goes.
        port = np.where(inside, _NODE_PORT, _PORT)
        cost = np.where(inside, 1 / network.node_bandwidth_Bps, 1 / network.bandwidth_Bps)
        part: list[tuple[Any, np.ndarray, np.ndarray]] = [
            (port, rank, cost),
            (_BUS, rank // bus, np.where(changes, 1 / network.bus_Bps, 0.0)),
            (_UPLINK, rank // node, np.where(away, 1 / network.uplink_Bps, 0.0)),
        ]
        way = direction if network.duplex == "full" else 0
        ordered = part if direction == 0 else part[::-1]
        columns += [((kind * 2 + way) * size + group, cost) for kind, group, cost in ordered]
    cost = np.stack([cost for _, cost in columns], axis=1)
    links = np.where(cost > 0, np.stack([link for link, _ in columns], axis=1), -1)
    return Paths(np.where(inside, network.node_latency_s, network.latency_s), links, cost)


def link_count(size: int) -> int:
    """One more than the highest number that `paths` gives a link."""
    return 2 * _KINDS * size


def bursts(network: Network, size: int) -> Callable[[int], float]:
    """The `burst_B` of each link: only ports to other nodes have it."""
    ports = range(2 * _PORT * size, 2 * (_PORT + 1) * size)
    return lambda link: network.burst_B if link in ports else 0.0


# Sources: the DaSGD paper gives GPUs, 8 GPUs a server on PCIe 3 and Ethernet rates; PALEO gives
# 16 GB/s for PCIe 3 x16. What they leave out is assumed: a latency of 25 us is usual for TCP on
# Ethernet, 10 us for a copy between GPUs on PCIe; a sum reads two numbers and writes one, so it
# costs 3 bytes of memory traffic a byte (TITAN X 336.5 GB/s, K80 240 GB/s a chip, H100 3.35 TB/s;
# 12 GB/s for one core of a server); MPI's usual eager limit is 64 KiB.
# h100-ndr: NVLink 4, 450 GB/s a direction, and one 400 Gbps Infiniband port a GPU (NVIDIA data
# sheets), 3 us and 2 us with GPUDirect.
# eth*, ib*: servers of 8 devices that share one port, without the cost of sums. Ethernet and
# Infiniband by their nominal rates (Infiniband of 70 Gbps: PALEO's public code), PCIe 3 x16 as in
# PALEO, NVLink 3 and 4 at 300 and 450 GB/s a direction (NVIDIA data sheets). The first have no
# latency, as in PALEO and the DaSGD paper; the others carry a typical one.
# lab: hosts that are network namespaces, 200 Mbit/s each; TCP carries 1448 bytes in frames of
# 1514. Measure it with `calibrate` where it matters.
def _servers(name: str, gbps: float, inside_gbytes: float, latency_s: float = 0.0) -> Network:
    rate = gbps * 1e9 / 8
    return Network(
        name,
        latency_s=latency_s,
        bandwidth_Bps=rate,
        ranks_per_node=8,
        uplink_Bps=rate,
        node_latency_s=latency_s,
        node_bandwidth_Bps=inside_gbytes * 1e9,
    )


PRESETS: dict[str, Network] = {
    "ideal": Network("ideal"),
    "ethernet-10g": Network(
        "ethernet-10g",
        latency_s=25e-6,
        bandwidth_Bps=10e9 / 8,
        sum_s_per_B=3 / 12e9,
        overhead_s=1e-6,
        look_s=2e-6,
        eager_limit_B=65536,
    ),
    "titanx-20g": Network(
        "titanx-20g",
        latency_s=25e-6,
        bandwidth_Bps=20e9 / 8,
        sum_s_per_B=3 / 336.5e9,
        ranks_per_node=8,
        uplink_Bps=20e9 / 8,
        node_latency_s=10e-6,
        node_bandwidth_Bps=16e9,
        eager_limit_B=65536,
    ),
    "k80-10g": Network(
        "k80-10g",
        latency_s=25e-6,
        bandwidth_Bps=10e9 / 8,
        sum_s_per_B=3 / 240e9,
        ranks_per_node=8,
        uplink_Bps=10e9 / 8,
        node_latency_s=10e-6,
        node_bandwidth_Bps=16e9,
        eager_limit_B=65536,
    ),
    "h100-ndr": Network(
        "h100-ndr",
        latency_s=3e-6,
        bandwidth_Bps=400e9 / 8,
        sum_s_per_B=3 / 3.35e12,
        ranks_per_node=8,
        node_latency_s=2e-6,
        node_bandwidth_Bps=450e9,
        eager_limit_B=65536,
    ),
    "lab": Network(
        "lab",
        latency_s=60e-6,
        bandwidth_Bps=200e6 / 8 * 1448 / 1514,
        sum_s_per_B=3 / 12e9,
        overhead_s=2e-6,
        look_s=2e-6,
        eager_limit_B=65536,
    ),
    "eth1-pcie3": _servers("eth1-pcie3", 1, 16),
    "eth10-pcie3": _servers("eth10-pcie3", 10, 16),
    "eth20-pcie3": _servers("eth20-pcie3", 20, 16),
    "ib70-pcie3": _servers("ib70-pcie3", 70, 16),
    "ib-edr-pcie3": _servers("ib-edr-pcie3", 100, 16, 2e-6),
    "ib-hdr-nvlink3": _servers("ib-hdr-nvlink3", 200, 300, 2e-6),
    "ib-ndr-nvlink4": _servers("ib-ndr-nvlink4", 400, 450, 2e-6),
}


def network(text: str) -> Network:
    """A preset, the network in a TOML file (a path that ends in .toml), or `key=value,...`.

    File and pairs hold fields of Network, all optional, and may start from a preset (`preset =
    "lab"`); a file may carry a table [calibration], which is for others to read.
    NetworkError, in one line, if there is no such preset or file, or it has unknown keys.
    """
    if text in PRESETS:
        return PRESETS[text]
    if text.endswith(".toml"):
        place = f"network file {text!r}"
        try:
            values = files.toml(text)
        except files.Unreadable as error:
            raise NetworkError(place, str(error)) from None
        values = {"name": Path(text).stem, **values}
        values.pop("calibration", None)
    elif "=" in text:
        place = f"network {text!r}"
        pairs = (part.partition("=") for part in text.split(","))
        values = {key.strip(): _value(value.strip()) for key, _, value in pairs}
    elif os.path.exists(text):
        raise NetworkError(f"network file {text!r}", "must be a file that ends in .toml")
    else:
        known = ", ".join(PRESETS)
        allowed = f"choose from {known}, or a .toml file, or key=value,..."
        raise NetworkError(f"no network named {text!r}", allowed)
    base = values.pop("preset", "ideal")
    if base not in PRESETS:
        raise NetworkError(place, f"preset {base!r}: choose from {', '.join(PRESETS)}")
    _check_keys(place, values, "preset")
    return replace(PRESETS[base], **values)


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _check_keys(place: str, values: Mapping[str, Any], *more: str) -> None:
    known = [*more, *(field.name for field in fields(Network))]
    for key in values:
        if key not in known:
            raise NetworkError(place, f"unknown key {key!r}: keys are {', '.join(known)}")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'
