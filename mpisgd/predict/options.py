"""The options that `predict` and `advise` share, and what they mean."""

import argparse
from typing import Any

from allreduce.compress import ALLOWED, known
from allreduce.network import PRESETS, Network, NetworkError
from mpisgd.algorithms import DECLARED
from mpisgd.predict import calibration, devices, networks
from mpisgd.predict.costs import ROUNDING
from mpisgd.predict.epoch import Conditions
from mpisgd.predict.paleo import COMPUTE
from mpisgd.predict.partial import TAKERS
from mpisgd.training.effective import MERGES
from mpisgd.values import quantities
from mpisgd.values.errors import UsageError
from mpisgd.values.options import Kind

QUORUM = DECLARED["quorum"]
# Fields of networks that the closed forms do not see.
NOT_SEEN = {"look_s", "burst_B", "eager_limit_B", calibration.STEP}


def add_cluster(
    parser: argparse.ArgumentParser, device: str | None, network: str | None
) -> list[argparse.Action]:
    """Options for the device, the network and the all-reduce, with these defaults."""
    group = parser.add_argument_group("device and network")
    actions: list[argparse.Action] = []

    def add(*names: str, **settings: Any) -> None:
        actions.append(group.add_argument(*names, **settings))

    spec = "a .toml file, key=value,..., or one of"
    add("--device", default=device, help=f"{spec} {', '.join(devices.DEVICES)}")
    add("--network", default=network, help=f"{spec} {', '.join(PRESETS)}")
    add("--topology", default="leader", help=f"one of {', '.join(networks.TOPOLOGIES)} (leader)")
    add("--bandwidth", metavar="GBPS", help="of the link between servers, decimal Gbit/s")
    add("--latency", metavar="TIME", help="of a message between servers, as in 2us")
    add("--sum-cost", metavar="TIME", help="to sum one received byte, as in 0.1ns")
    add("--server-size", metavar="N", help="devices a server")
    add("--server-bandwidth", metavar="GBYTES", help="inside a server, 10^9 bytes/s")
    add("--rounding", default="ceil", help=f"no power of two: {' or '.join(ROUNDING)} (ceil)")
    add("--peak-share", default="1", metavar="SHARE", help="of the device's peak, in (0, 1]")
    add("--pipelined", action="store_true", help="a layer's memory traffic hides its arithmetic")
    add("--compute", default="paleo", help=f"model of t_p: {' or '.join(COMPUTE)} (paleo)")
    add("--bytes", metavar="SIZE", help="of one all-reduce, as in 102M (default: 4 a parameter)")
    add("--wire", metavar="FORMAT", help=f"how averages travel (in full): {ALLOWED}")
    add("--bucket", default="25M", metavar="SIZE", help="of minibatch-overlap (25M)")
    return actions


def add_conditions(parser: argparse.ArgumentParser) -> None:
    """Options for what goes on while communication is in flight, and for merging."""
    group = parser.add_argument_group("conditions and merging")
    add = group.add_argument
    add("--progress-share", default="1", metavar="SHARE", help="of t_c that can overlap (1)")
    add("--slowdown", default="0", metavar="X", help="of computation beside communication (0)")
    add("--noise", default="0", metavar="X", help="deviation / mean of a rank's step time (0)")
    add("--quorum", metavar="Q", help=f"of {', '.join(TAKERS)}: {QUORUM.help} (as they have it)")
    add("--tau", default="auto", metavar="N", help="steps between averages (auto: d + 1)")
    add("--xi", default="0.25", metavar="X", help="share of the own parameters in a merge (0.25)")
    add("--merge", default="convex", help=f"one of {', '.join(MERGES)} (convex)")


def network(arguments: argparse.Namespace, text: str) -> Network:
    """The network `text` names, with the overriding options. Raises UsageError."""
    changes: dict[str, Any] = {}
    place = quantities.number
    if arguments.bandwidth is not None:
        rate = place("--bandwidth", arguments.bandwidth, open_low=True) * 1e9 / 8
        changes |= {"bandwidth_Bps": rate, "uplink_Bps": rate}
    if arguments.server_bandwidth is not None:
        inside = place("--server-bandwidth", arguments.server_bandwidth, open_low=True)
        changes["node_bandwidth_Bps"] = inside * 1e9
    if arguments.latency is not None:
        changes["latency_s"] = quantities.duration("--latency", arguments.latency)
    if arguments.sum_cost is not None:
        changes["sum_s_per_B"] = quantities.duration("--sum-cost", arguments.sum_cost)
    if arguments.server_size is not None:
        changes["ranks_per_node"] = quantities.whole("--server-size", arguments.server_size)
    found = networks.find(text)
    calibration.tell(text, unused=changes.keys() | NOT_SEEN)
    try:
        return found.with_(**changes)
    except NetworkError as error:
        raise UsageError("--network", text, error.reason) from None


def conditions(arguments: argparse.Namespace) -> Conditions:
    """The conditions that the options describe. Raises UsageError."""
    return Conditions(
        quantities.number("--progress-share", arguments.progress_share, high=1.0),
        quantities.number("--slowdown", arguments.slowdown),
        quantities.number("--noise", arguments.noise, high=100.0),
        None if arguments.quorum is None else QUORUM.kind.read("--quorum", arguments.quorum),
    )


def automatic(place: str, text: str, low: int) -> int | None:
    """None for `auto`, else a whole number. Raises UsageError."""
    return None if text == "auto" else quantities.whole(place, text, low=low)


def shared(arguments: argparse.Namespace) -> dict[str, Any]:
    """Arguments of a Study that both commands take from the same options."""
    nbytes, wire = arguments.bytes, arguments.wire
    return {
        "tau": automatic("--tau", arguments.tau, 1),
        "xi": quantities.number("--xi", arguments.xi, high=1.0),
        "merge": arguments.merge,
        "nbytes": None if nbytes is None else quantities.size("--bytes", nbytes),
        "wire": None if wire is None else Kind(ALLOWED, known).read("--wire", wire),
        "bucket_bytes": quantities.size("--bucket", arguments.bucket),
        "topology": arguments.topology,
        "rounding": arguments.rounding,
        "peak_share": quantities.number(
            "--peak-share", arguments.peak_share, high=1.0, open_low=True
        ),
        "pipelined": arguments.pipelined,
        "compute": arguments.compute,
        "conditions": conditions(arguments),
    }
