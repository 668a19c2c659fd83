"""A schedule prepared for the event simulation: messages and steps as flat lists."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from allreduce.errors import AllreduceError
from allreduce.network import Network, link_count, paths
from allreduce.schedule import TRANSFER, Schedule, bounds

Sizes = int | tuple[int, ...]  # bytes of the vector, or of each transfer, in the schedule's order


@dataclass(frozen=True)
class Messages:
    """All messages of a schedule, in its order, empty ones left out. Equal-length arrays."""

    round: np.ndarray
    source: np.ndarray
    destination: np.ndarray
    nbytes: np.ndarray
    reduce: np.ndarray


@dataclass(frozen=True)
class Program:
    """`messages` by number, and the steps of every rank: those of `rank` are numbered
    `first[rank]` up to, not including, `first[rank + 1]`."""

    source: list[int]
    destination: list[int]
    nbytes: list[int]
    handshake: list[bool]
    latency: list[float]
    path: list[tuple[tuple[int, float], ...]]  # (link, seconds per byte) of each message
    source_step: list[int]
    destination_step: list[int]
    first: list[int]
    sends: list[list[int]]  # the messages that each step sends
    receives: list[int]  # how many messages each step receives
    sum_bytes: list[float]  # how many bytes each step adds when its messages are there
    encode_s: list[float]  # seconds of coding before each message leaves
    decode_s: list[float]  # and in each step when its messages are there
    begin_s: float = 0.0  # and before all else
    free: bool = False  # a single message that takes no time

    def arriving(self) -> list[list[int]]:
        """The messages that each step receives."""
        found: list[list[int]] = [[] for _ in self.sends]
        for message, step in enumerate(self.destination_step):
            found[step].append(message)
        return found


def edges_in_bytes(schedule: Schedule, nbytes: int, itemsize: int) -> np.ndarray:
    """Where segments begin and end, in bytes, as a Plan cuts `nbytes // itemsize` elements."""
    if nbytes < 0 or itemsize < 1 or nbytes % itemsize:
        raise AllreduceError(f"{nbytes} bytes do not make whole elements of {itemsize} bytes")
    return bounds(nbytes // itemsize, schedule.segments) * itemsize


def messages(schedule: Schedule, nbytes: Sizes, itemsize: int = 1, chunks: int = 1) -> Messages:
    """The messages a Plan would send, each transfer cut in `chunks`; `nbytes`: of the vector, or
    of each transfer in the schedule's order."""
    if chunks < 1:
        raise AllreduceError(f"chunks {chunks}: at least 1")
    records = np.concatenate([np.empty(0, TRANSFER), *schedule.rounds])
    if isinstance(nbytes, tuple):
        if len(nbytes) != len(records):
            raise AllreduceError(f"{len(nbytes)} sizes for {len(records)} transfers")
        lengths = np.array(nbytes, np.int64)
    else:
        edges = edges_in_bytes(schedule, nbytes, itemsize)
        lengths = edges[records["high"]] - edges[records["low"]]
    if not len(records):
        none = np.empty(0, np.int64)
        return Messages(none, none, none, none, none.astype(bool))
    number = np.repeat(np.arange(len(schedule.rounds)), [len(part) for part in schedule.rounds])
    items = lengths // itemsize
    parts = np.minimum(items, chunks)
    index = np.repeat(np.arange(len(records)), parts)
    chunk = np.arange(len(index)) - np.repeat(np.cumsum(parts) - parts, parts)
    each, longer = np.divmod(items[index], parts[index])
    return Messages(
        number[index],
        records["source"][index].astype(np.int64),
        records["destination"][index].astype(np.int64),
        (each + (chunk < longer)) * itemsize,
        records["reduce"][index],
    )


def prepare(
    schedule: Schedule,
    nbytes: Sizes,
    network: Network,
    itemsize: int = 1,
    chunks: int = 1,
    adds: float = 1.0,
    **coded: float,
) -> Program:
    """The program of `schedule` on `nbytes` bytes, on `network`; the rest: as of `simulate`."""
    sent = messages(schedule, nbytes, itemsize, chunks)
    rounds = len(schedule.rounds) + 1
    ends = np.concatenate(
        [sent.source * rounds + sent.round, sent.destination * rounds + sent.round]
    )
    steps, place = np.unique(ends, return_inverse=True)
    count = len(sent.source)
    by, to = place[:count], place[count:]
    order = np.argsort(by, kind="stable")
    cuts = np.searchsorted(by[order], np.arange(len(steps) + 1)).tolist()
    listed = order.tolist()
    long = sent.nbytes > network.eager_limit_B
    first = np.searchsorted(steps // rounds, np.arange(schedule.size + 1))
    encode, decode, begin_s = _coding(network, sent.nbytes, to, first, **coded)
    return Program(
        source=sent.source.tolist(),
        destination=sent.destination.tolist(),
        nbytes=sent.nbytes.tolist(),
        handshake=long.tolist(),
        **_ways(network, sent.source, sent.destination, long, schedule.size),
        source_step=by.tolist(),
        destination_step=to.tolist(),
        first=first.tolist(),
        sends=[listed[low:high] for low, high in pairwise(cuts)],
        receives=np.bincount(to, minlength=len(steps)).tolist(),
        sum_bytes=np.bincount(to, sent.nbytes * sent.reduce * adds, len(steps)).tolist(),
        encode_s=encode.tolist(),
        decode_s=decode.tolist(),
        begin_s=begin_s,
    )


def _coding(
    network: Network, nbytes: np.ndarray, to: np.ndarray, first: np.ndarray,
    encodes: float = 0.0, decodes: float = 0.0, codes: float = 0.0,
) -> tuple[np.ndarray, np.ndarray, float]:  # fmt: skip
    """Seconds before each message, in each step, and at the beginning. What a rank codes once it
    does at its end where messages are encoded, as all is rounded there; else before all else."""
    encode = network.encode_s_per_B * encodes * nbytes
    decode = network.decode_s_per_B * np.bincount(to, decodes * nbytes, int(first[-1]))
    once = network.encode_s_per_B * codes
    if encodes:
        decode[first[1:][first[1:] > first[:-1]] - 1] += once
    return encode, decode, 0.0 if encodes else once


def _ways(
    network: Network, source: np.ndarray, destination: np.ndarray, long: np.ndarray, size: int
) -> dict:
    """`latency` and `path` of each message; messages alike between one pair share one tuple."""
    turns = long & (network.rendezvous_duplex == "half")
    keys, which = np.unique((source * size + destination) * 2 + turns, return_inverse=True)
    pairs = keys // 2
    table = paths(network, pairs // size, pairs % size, size)
    tuples = [
        tuple((link, cost) for link, cost in zip(*row, strict=True) if link >= 0)
        for row in zip(table.links.tolist(), table.seconds_per_byte.tolist(), strict=True)
    ]
    for index in np.flatnonzero(keys % 2).tolist():
        low, high = sorted(divmod(int(pairs[index]), size))
        slowest = max((cost for _, cost in tuples[index]), default=0.0)
        if slowest:  # both ways of a pair take turns at a link of its own
            tuples[index] = ((link_count(size) + low * size + high, slowest), *tuples[index])
    return {
        "latency": table.latency[which].tolist(),
        "path": [tuples[index] for index in which.tolist()],
    }


def single(
    source: int, destination: int, nbytes: int, network: Network, places: Sequence[int], size: int
) -> Program:
    """One message between processes on the ranks `places`, that belongs to no schedule."""
    known = range(len(places))
    if source not in known or destination not in known or source == destination or nbytes < 0:
        raise AllreduceError(f"no message of {nbytes} bytes from {source} to {destination}")
    by, to = np.array([places[source]]), np.array([places[destination]])
    long = (nbytes > network.eager_limit_B) & (by != to)
    ways: dict = {"latency": [0.0], "path": [()]}  # within a rank
    if by != to:
        ways = _ways(network, by, to, long, size)
    free = not (long or ways["latency"][0] or ways["path"][0])
    return Program([source], [destination], [nbytes], long.tolist(), **ways, **_NO_STEPS, free=free)


_NO_STEPS: dict = {
    name: []
    for name in (
        "source_step",
        "destination_step",
        "first",
        "sends",
        "receives",
        "sum_bytes",
        "encode_s",
        "decode_s",
    )
}
