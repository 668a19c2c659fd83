"""`mpisgd simulate`: what the hand-written all-reduces cost on a network (docs/simulate.md)."""

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib.util import find_spec
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from allreduce.algorithms import ALGORITHMS
from allreduce.compress import ALLOWED, known
from allreduce.errors import AllreduceError
from allreduce.network import DUPLEX, PRESETS, PROGRESS, SHARING, Network, NetworkError
from allreduce.schedule import Schedule
from allreduce.simulate import simgrid
from allreduce.simulate.msccl import msccl
from mpisgd.predict import allreduces, calibration, coding, networks
from mpisgd.predict.allreduces import COLUMNS, CROSSED, Conditions
from mpisgd.store import arrival
from mpisgd.store.lock import save
from mpisgd.store.target import check_apart, check_not_read, check_target, names
from mpisgd.values import progress, quantities
from mpisgd.values.errors import UsageError, among
from mpisgd.values.options import Kind, one_of
from mpisgd.values.plugins import SYNTAX
from mpisgd.values.schedules import build
from mpisgd.values.tables import FORMATS, render
from mpisgd.values.units import parse_rate, parse_size, parse_sizes

MOST_AVERAGES = 100  # of a run, in turn, where nobody says how many
MOST_RANKS = 8192  # as with `train --virtual`: the transfers of a ring grow with the square
MOST_CROSSED = 256  # each is a thread in SimGrid
THOUSAND = 1000  # a bare K, M, G is decimal here: 102M is the 102e6 bytes of the DaSGD paper
CROSS = {"simgrid": "raw", "simgrid:LV08": "LV08"}  # SimGrid's models by what --cross names


class Override(NamedTuple):
    """An option that changes one field of the network."""

    field: str
    parse: Callable[[str, str], Any]  # (text, place) -> the field's value
    help: str


def _time(text: str, place: str) -> float:
    return quantities.duration(place, text)


def _count(text: str, place: str) -> int:
    return quantities.whole(place, text, low=0)


def _sum(text: str, place: str) -> float:
    return 1 / parse_rate(text, place)


def _limit(text: str, place: str) -> float:
    return math.inf if text == "inf" else parse_size(text, place, thousand=THOUSAND)


def _number(text: str, place: str) -> float:
    return quantities.number(place, text)


def _word(text: str, place: str) -> str:
    return text


OVERRIDES: dict[str, Override] = {
    "--latency": Override("latency_s", _time, "between nodes, as 25us"),
    "--bandwidth": Override("bandwidth_Bps", parse_rate, "of a rank to other nodes, as 20Gbps"),
    "--uplink": Override("uplink_Bps", parse_rate, "of a node, shared by its ranks, as 20Gbps"),
    "--ranks-per-node": Override("ranks_per_node", _count, "consecutive ranks on one node"),
    "--node-latency": Override("node_latency_s", _time, "inside a node, as 10us"),
    "--node-bandwidth": Override("node_bandwidth_Bps", parse_rate, "inside a node, as 16GB/s"),
    "--ranks-per-bus": Override("ranks_per_bus", _count, "ranks behind one PCIe switch; 0: none"),
    "--bus": Override("bus_Bps", parse_rate, "of a PCIe switch to what is beyond it, as 16GB/s"),
    "--sum-rate": Override("sum_s_per_B", _sum, "received bytes added a second, as 4GB/s"),
    "--encode-rate": Override("encode_s_per_B", _sum, "values' bytes encoded a second, as 4GB/s"),
    "--decode-rate": Override("decode_s_per_B", _sum, "and decoded, where --wire codes them"),
    "--overhead": Override("overhead_s", _time, "of a rank for a message, as 1us"),
    "--look-time": Override("look_s", _time, "of a computing rank for a look, as 2us"),
    "--duplex": Override("duplex", _word, f"of all links: {' or '.join(DUPLEX)}"),
    "--rendezvous-duplex": Override(
        "rendezvous_duplex", _word, f"of two ranks' long messages: {' or '.join(DUPLEX)}"
    ),
    "--sharing": Override("sharing", _word, f"of a link: {' or '.join(SHARING)}"),
    "--burst": Override("burst_B", _limit, "what an idle port lets pass at once, as 18K"),
    "--eager-limit": Override("eager_limit_B", _limit, "longer messages shake hands, as 64KiB"),
    "--noise": Override("noise", _number, "sigma of the lognormal factor on a message's time"),
    "--progress": Override("progress", _word, f"{' or '.join(PROGRESS)}"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `mpisgd simulate`."""
    add = parser.add_argument
    names = ", ".join(ALGORITHMS)
    add(
        "--algorithm",
        default="butterfly",
        help=f"all, or some of {names}, hierarchical:INNER, {SYNTAX}",
    )
    add("--ranks", help="as in 2,4,256 or 5:8 (8; with --arrival its run's)")
    add("--bytes", default="102M", metavar="SIZES", help="as in 102M, 4:64M, 64KiB (102M)")
    add("--network", default="titanx-20g", help=f"a .toml file, or one of {', '.join(PRESETS)}")
    group = parser.add_argument_group("the network's fields, where they should differ")
    for option, override in OVERRIDES.items():
        group.add_argument(option, metavar="VALUE", help=override.help)
    add("--chunks", default="1", metavar="N", help="messages a transfer is cut in (1)")
    add("--wire", metavar="FORMAT", help=f"of messages, of float32: {ALLOWED}")
    add("--skew", default="0", metavar="TIME", help="ranks start within this, as 20us (0)")
    add("--arrival", metavar="RUN.h5", help="ranks start as they came to that run's averages; "
        "seconds count from the last")  # fmt: skip
    add("--look-every", metavar="TIME", help="ranks compute, and look once in 50us, say")
    add("--repetitions", metavar="N", help="runs with seeds from --seed on (1; with --arrival its "
        "averages, at most 100)")  # fmt: skip
    add("--seed", default="0", metavar="N", help="of noise and skew (0)")
    add("--cross", metavar="SIMULATOR", help="also play them in SimGrid, and say how far that is "
        f"off: one of {', '.join(CROSS)}")  # fmt: skip
    add("--goal", metavar="FILE", help="also write the schedule as GOAL text for LogGOPSim")
    add("--msccl", metavar="FILE", help="also write the schedule as MSCCL XML, for GPUs")
    add("--overwrite", action="store_true", help="replace an existing --goal or --msccl")
    add("--format", default="table", help=f"one of {', '.join(FORMATS)} (table)")


def run(arguments: argparse.Namespace) -> int:
    """Print one row for every algorithm, number of ranks and size. Raises UsageError."""
    among("--format", arguments.format, FORMATS)
    written = _written(arguments)
    try:
        chosen, conditions = _network(arguments), _conditions(arguments)
        cases = list(_cases(arguments, chosen, conditions.arrivals))
        for option, path in written.items():
            if len(cases) > 1:
                raise UsageError(option, path, "give one algorithm, rank count and size")
        if arguments.msccl and conditions.wire not in (None, "float32"):
            allowed = "only float32 with --msccl, whose GPUs send values as they are"
            raise UsageError("--wire", arguments.wire, allowed)
        if arguments.msccl and conditions.chunks > 1:
            allowed = "only 1 with --msccl, whose library cuts messages by itself"
            raise UsageError("--chunks", arguments.chunks, allowed)
        model = _cross(arguments, cases)
        told = progress.over(cases, "simulate", "case")
        rows = [allreduces.row(conditions, chosen, schedule, nbytes) for schedule, nbytes in told]
        if model is not None:
            ends_s = allreduces.crossed(conditions, chosen, cases, model)
            for row, ends in zip(rows, ends_s, strict=True):
                off = (ends - row["median_s"]) / row["median_s"] if row["median_s"] else math.nan
                row |= dict(zip(CROSSED, (ends, off), strict=True))
        if arguments.goal:
            text = allreduces.goal_text(conditions, chosen, *cases[0])
            save(arguments.goal, text.encode("ascii"), "--goal")
        if arguments.msccl:
            save(arguments.msccl, msccl(cases[0][0]).encode("ascii"), "--msccl")
    except AllreduceError as mistake:
        raise UsageError(str(mistake)) from None
    print(render(COLUMNS if model is None else COLUMNS + CROSSED, rows, arguments.format))
    return 0


def _written(arguments: argparse.Namespace) -> dict[str, str]:
    """The files that are asked for, by option: each can be written, and is nothing else."""
    written = {option: path for option in ("--goal", "--msccl")
               if (path := getattr(arguments, option[2:])) is not None}  # fmt: skip
    for option, path in written.items():
        check_not_read(path, filter(None, (arguments.network, arguments.arrival)), option)
        check_target(path, arguments.overwrite, option=option)
    for (one, first), (other, path) in combinations(written.items(), 2):
        check_apart(other, path, names(first), names(path), f"{one}'s and {other}'s")
    return written


def _cross(arguments: argparse.Namespace, cases: list[tuple[Schedule, int]]) -> str | None:
    """The model of SimGrid that is asked for, and can be had."""
    if arguments.cross is None:
        return None
    model = CROSS[one_of(CROSS).read("--cross", arguments.cross)]
    if arguments.look_every is not None:
        raise UsageError("--cross", arguments.cross, "not with --look-every: ranks wait there")
    if max(schedule.size for schedule, _ in cases) > MOST_CROSSED:
        raise UsageError("--ranks", arguments.ranks, f"at most {MOST_CROSSED} with --cross")
    if find_spec("simgrid") is None:
        raise UsageError("--cross", arguments.cross, simgrid.MISSING)
    return model


def _network(arguments: argparse.Namespace) -> Network:
    changes = {}
    for option, override in OVERRIDES.items():
        text = getattr(arguments, option[2:].replace("-", "_"))
        if text is not None:
            changes[override.field] = override.parse(text, option)
    wire = _wire(arguments)
    base = coding.priced(networks.find(arguments.network), arguments.network, wire)
    try:
        chosen = base.with_(**changes)
    except NetworkError as mistake:
        raise UsageError("--network", arguments.network, mistake.reason) from None
    calibration.tell(arguments.network, unused={*changes, calibration.STEP})
    for line in coding.free(chosen, wire):
        print(f"mpisgd simulate: note: {line}", file=sys.stderr)
    return chosen if chosen == base else _starred(base, chosen)


def _starred(base: Network, chosen: Network) -> Network:
    """`chosen`, which is `base` with changes, under a name that shows it; they are told."""
    told = [
        f"{field.name} {getattr(chosen, field.name)}"
        for field in fields(Network)
        if getattr(chosen, field.name) != getattr(base, field.name)
    ]
    starred = chosen.with_(name=f"{base.name}*")
    note = f"{starred.name} is {base.name} with {', '.join(told)}"
    print(f"mpisgd simulate: note: {note}", file=sys.stderr)
    return starred


def _cases(
    arguments: argparse.Namespace, chosen: Network, arrivals: np.ndarray | None
) -> Iterator[tuple[Schedule, int]]:
    names = list(ALGORITHMS) if arguments.algorithm == "all" else arguments.algorithm.split(",")
    sizes = parse_sizes(arguments.bytes, "--bytes", thousand=THOUSAND)
    for name in dict.fromkeys(names):
        for ranks in _ranks(arguments, arrivals):
            order = None if arrivals is None else arrival.order(arrivals)
            try:
                schedule = build(
                    name.strip(), ranks, chosen.nodes(ranks), order=order, verified=False
                )
            except AllreduceError as mistake:
                raise UsageError("--algorithm", arguments.algorithm, str(mistake)) from None
            for size in sizes:
                yield schedule, size


def _ranks(arguments: argparse.Namespace, arrivals: np.ndarray | None) -> list[int]:
    if arrivals is None:
        return quantities.ranks("--ranks", arguments.ranks or "8", MOST_RANKS)
    there = arrivals.shape[1]
    if arguments.ranks not in (None, str(there)):
        raise UsageError("--ranks", arguments.ranks, f"{there}, those of --arrival")
    return [there]


def _conditions(arguments: argparse.Namespace) -> Conditions:
    seed = quantities.whole("--seed", arguments.seed, low=0)
    repetitions = quantities.whole("--repetitions", arguments.repetitions or 1, high=1e6)
    every, arrivals = arguments.look_every, None
    if arguments.arrival is not None:
        if arguments.skew != "0":
            raise UsageError("--skew", arguments.skew, "not with --arrival, which has its own")
        arrivals = arrival.skews(arguments.arrival)
        if arguments.repetitions is None:
            repetitions = min(len(arrivals), MOST_AVERAGES)
    return Conditions(
        quantities.whole("--chunks", arguments.chunks, high=256),
        range(seed, seed + repetitions),
        quantities.duration("--skew", arguments.skew),
        None if every is None else quantities.duration("--look-every", every, open_low=True),
        _wire(arguments),
        arrivals,
    )


def _wire(arguments: argparse.Namespace) -> str | None:
    text = arguments.wire
    return None if text is None else Kind(ALLOWED, known).read("--wire", text)
