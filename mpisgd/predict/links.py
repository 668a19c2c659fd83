"""What links and ranks cost, measured point to point: the numbers of a network model.

Latency and bandwidth come from half round trips between rank 0 and the first rank of another host,
and the first of its own host; overhead is the least that the call that starts a send takes, as one
that is interrupted tells of other programs; latency is the rest, so that latency + 2 overheads are
a small message's measured time; a sum is NumPy's; a look is a test of a message that does not come.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np

from allreduce.arrays import HOST, Device, Host
from allreduce.measure import gather, median_interval
from allreduce.network import Network
from allreduce.plan import wait_until
from allreduce.point_to_point import Trips, eager_limit, fan_out, look_seconds, ping_pong
from mpisgd.mpi.announced import BURST

SMALL, LARGE = 4, 4 << 20  # bytes of the messages that give latency and bandwidth
QUICK_BYTES, QUICK = 1 << 20, 9  # large messages, and repetitions, where a run waits for it
SUM_BYTES = 1 << 20
BURST_BYTES = 1 << 16  # of the messages that show what an idle wire lets pass at once
LEAST_BURST = 1500.0  # bytes, a frame: less is not told from noise
SHARED_BYTES = 1 << 20  # of two messages that one port sends at once
MEASURED_BYTES = (SMALL, BURST_BYTES, LARGE, SHARED_BYTES)  # of all that a calibration sends
BETWEEN = 1.25  # of the time alone: later is shared, sooner is one after the other
INSIDE = ("latency_s", "bandwidth_Bps")


class Measured(NamedTuple):
    """A median with its 95 % interval."""

    value: float
    low: float
    high: float
    repetitions: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Measured":
        return cls(statistics.median(samples), *median_interval(samples), len(samples))


def fastest(seconds: Sequence[float], share: float) -> list[float]:
    """The shortest: on a busy machine they repeat themselves where medians of all do not."""
    return sorted(seconds)[: max(1, round(share * len(seconds)))]


def messages(
    comm: Any, hosts: list[str], repetitions: int, deadline: float, large: int = LARGE,
    share: float = 1.0,
) -> dict[str, Measured]:  # fmt: skip
    """What messages from rank 0 cost, to another host and inside its own; on rank 0. `share`: of
    all trips, the fastest."""
    found: dict[str, Measured] = {}
    near = next((r for r, host in enumerate(hosts) if r and host == hosts[0]), None)
    away = next((r for r, host in enumerate(hosts) if host != hosts[0]), None)
    pairs = [("", away), ("node_", near)] if away is not None else [("", near)]
    for prefix, other in pairs:
        if other is not None and comm.Get_rank() in (0, other):
            found |= _pair(comm, other, prefix, repetitions, deadline, large, share)
        gather(comm, [0.0], deadline)  # the others wait for the pair
    if away is not None and (known := os.environ.get(BURST, "")).isdecimal():
        found["burst_B"] = Measured(float(known), float(known), float(known), 1)  # of a lab's wires
    if {"burst_B", "bandwidth_Bps"} <= found.keys():  # these bytes of a long message took no time
        value, low, high, count = found["bandwidth_Bps"]
        paid = 1 - found["burst_B"].value / large
        found["bandwidth_Bps"] = Measured(paid * value, paid * low, paid * high, count)
    return found


def _pair(
    comm: Any, other: int, prefix: str, repetitions: int, deadline: float, nbytes: int, share: float
) -> dict[str, Measured]:
    first = comm.Get_rank() == 0
    peer = other if first else 0

    def trips(octets: int) -> Trips:
        found = ping_pong(comm, peer, first, octets, repetitions, deadline)
        return found._replace(half_s=fastest(found.half_s, share))

    small, large = trips(SMALL), trips(nbytes)
    limit = float(eager_limit(comm, peer, first, deadline))
    half = statistics.median(small.half_s)
    least = overhead(small.call_s, half)
    latency = [max(0.0, seconds - 2 * least.value) for seconds in small.half_s]
    speeds = [(nbytes - SMALL) / max(seconds - half, 1e-9) for seconds in large.half_s]
    found = {
        f"{prefix}latency_s": Measured.of(latency),
        f"{prefix}bandwidth_Bps": Measured.of(speeds),
    }
    if not prefix:
        found |= {"overhead_s": least, "eager_limit_B": Measured(limit, limit, limit, 1)}
        middle = trips(BURST_BYTES)
        speed = found["bandwidth_Bps"].value
        saved = Measured.of([BURST_BYTES - max(0.0, s - half) * speed for s in middle.half_s])
        if saved.low > LEAST_BURST:
            found["burst_B"] = saved
    return found


def overhead(calls: Sequence[float], half: float) -> Measured:
    """The shortest call: the rest of a longer one is the machine's other work. No more than half of
    the way, so that a latency is left."""
    usual = Measured.of([min(seconds, half / 2) for seconds in calls])
    least = min(*calls, half / 2)
    return Measured(least, least, usual.high, len(calls))


def habits(
    comm: Any, hosts: list[str], found: dict[str, Measured], repetitions: int, deadline: float
) -> dict[str, str]:
    """How messages between hosts get in each other's way; on rank 0, which alone has `found`."""
    words: dict[str, str] = {}
    rank, away = comm.Get_rank(), [r for r, host in enumerate(hosts) if host != hosts[0]]
    others = list({hosts[r]: r for r in reversed(away)}.values())[::-1][:2]
    if len(others) == 2 and rank in (0, *others):
        ends_of_both = fan_out(comm, 0, others, SHARED_BYTES, repetitions, deadline)
        if rank == 0:
            alone = SHARED_BYTES / found["bandwidth_Bps"].value
            first = statistics.median(min(ends) for ends in ends_of_both)
            words["sharing"] = "fair" if first > BETWEEN * alone else "fifo"
    gather(comm, [0.0], deadline)  # the others wait
    return words


def alone(
    comm: Any, dtype: np.dtype, repetitions: int, memory: Host = HOST, share: float = 1.0
) -> dict[str, Measured]:
    """What a rank does by itself: adding what has come, there, and looking in vain. `share` as of
    `messages`."""
    count = SUM_BYTES // dtype.itemsize
    target, other = memory.zeros(count, dtype), memory.zeros(count, dtype)

    def add() -> None:
        memory.add(target, other)
        ended(memory)

    add()
    sums = [seconds_of(add) / SUM_BYTES for _ in range(repetitions)]
    return {
        "sum_s_per_B": Measured.of(fastest(sums, share)),
        "look_s": Measured.of(fastest(look_seconds(comm, repetitions), share)),
    }


def copies(memory: Device, repetitions: int) -> dict[str, Measured]:
    """What staging costs beside messages: copies between the device and pinned memory."""
    count, dtype = LARGE // 4, np.dtype(np.float32)
    array, pinned = memory.zeros(count, dtype), memory.pinned(count, dtype)

    def seconds(copy: Callable[..., None], there: Any, here: Any) -> list[float]:
        def once() -> None:
            copy(there, here)
            ended(memory)

        once()
        return [seconds_of(once) for _ in range(repetitions)]

    out = seconds(memory.to_host, pinned, array)
    back = seconds(memory.to_device, array, pinned)
    small = seconds(memory.to_host, pinned[:1], array[:1])
    return {
        "copy_out_Bps": Measured.of([LARGE / each for each in out]),
        "copy_in_Bps": Measured.of([LARGE / each for each in back]),
        "copy_latency_s": Measured.of(small),
    }


def ended(memory: Host) -> None:
    """Until all that was queued on it is done."""
    over = memory.fence()
    if over is not None:
        wait_until(over)


def network_of(name: str, found: dict[str, Measured], hosts: list[str]) -> Network:
    """The model with the medians; ranks of a host share its way out."""
    values: dict[str, Any] = {key: measured.value for key, measured in found.items()}
    per_node = max(hosts.count(host) for host in hosts)
    if len(set(hosts)) == 1:  # all that was measured is inside the host
        values |= {f"node_{key}": values[key] for key in INSIDE if key in values}
    if per_node > 1 and len(set(hosts)) > 1:
        values["uplink_Bps"] = values["bandwidth_Bps"]
    return Network(name, ranks_per_node=per_node, **values)


def calibrated(
    comm: Any, hosts: list[str], repetitions: int, deadline: float, share: float
) -> Network:
    """The network of these ranks, which all call it; on rank 0: elsewhere it knows less. `share` as
    of `messages`."""
    found = messages(comm, hosts, repetitions, deadline, share=share)
    words = habits(comm, hosts, found, repetitions, deadline)
    found |= alone(comm, np.dtype(np.float32), repetitions, share=share)
    return network_of("calibrated", found, hosts).with_(**words)


def quick(comm: Any, hosts: list[str], deadline: float) -> Network:
    """The network of these ranks, from a few messages; the same on all ranks, which all call it."""
    found = messages(comm, hosts, QUICK, deadline, QUICK_BYTES)
    found |= alone(comm, np.dtype(np.float32), QUICK)
    mine = network_of("a network measured at the start", found, hosts)
    numbers = [field.name for field in fields(Network) if isinstance(field.default, float)]
    first = gather(comm, [getattr(mine, name) for name in numbers], deadline)[0].tolist()
    return mine.with_(**dict(zip(numbers, first, strict=True)))


def seconds_of(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
