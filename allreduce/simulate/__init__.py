"""What an all-reduce costs on a network: seconds per rank, without running it.

A schedule is priced by the rules of `network` (links) and of `simulate_events` (ranks): a rank
enters a round when its own messages of the round before are done and their sums made; each
message it posts or receives takes it `overhead_s`; sums take `sum_s_per_B` for each byte added.

Two ways lead to the same seconds. `columns` plays a round at a time in NumPy, and answers only
if no message ever finds a link taken; `events` plays messages one by one in order of time.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from allreduce.errors import AllreduceError
from allreduce.network import Network
from allreduce.schedule import Schedule
from allreduce.simulate.columns import simulate_columns
from allreduce.simulate.events import Cluster
from allreduce.simulate.program import Sizes
from allreduce.simulate.records import Collective

METHODS = ("auto", "columns", "events")
IN_A_ROW = 4  # all-reduces of `steady`; the last counts


def simulate(
    schedule: Schedule,
    nbytes: Sizes,
    network: Network,
    *,
    start: Sequence[float] | np.ndarray | None = None,
    itemsize: int = 1,
    chunks: int = 1,
    adds: float = 1.0,
    seed: int = 0,
    look_every: float | None = None,
    method: str = "auto",
    **coded: float,
) -> np.ndarray:
    """When each rank is done (float64, seconds from time 0) with an all-reduce of `nbytes` bytes,
    or of so many in each transfer, in the schedule's order.

    `start`: when each rank starts (s; default all at 0). `itemsize`: bytes of an element, which is
    never cut; `chunks`: messages a transfer is cut in. `adds`: bytes that sums are made of for
    each that travels, `coded`: `encodes`, `decodes`, `codes`, all as `wire.carried` says. `seed`:
    of the network's noise.
    `look_every`: ranks compute all the while and look only that often (s); by default they wait,
    and look all the time. `method`: one of METHODS; `auto` takes columns where it can.

    AllreduceError for arguments that make no sense, or if `columns` is asked for and cannot answer.
    """
    begins = _starts(start, schedule.size)
    if method not in METHODS:
        raise AllreduceError(f"method {method!r}: choose from {', '.join(METHODS)}")
    if look_every is not None and not 0 < look_every < np.inf:
        raise AllreduceError(f"look_every {look_every} s: a number > 0")
    free = not (network.encode_s_per_B or network.decode_s_per_B)
    plain = chunks == 1 and look_every is None and method != "events" and (free or not coded)
    if plain and not isinstance(nbytes, tuple):
        factors = np.random.default_rng([seed, 0])
        ends = simulate_columns(schedule, nbytes, network, begins, itemsize, factors, adds)
        if ends is not None:
            return ends
    if method == "columns":
        raise AllreduceError(f"{schedule.name} shares links on {network.name}: use events")
    cluster = Cluster(network, schedule.size, seed)
    how = {"itemsize": itemsize, "chunks": chunks, "adds": adds, **coded}
    collective = cluster.collective(schedule, nbytes, **how)
    return _play(cluster, collective, begins, look_every)


def steady(
    schedule: Schedule, nbytes: int, network: Network, *, itemsize: int = 1, chunks: int = 1
) -> float:
    """Seconds of the all-reduce in a row of them, each begun by all ranks when the one before is
    done everywhere, as a benchmark does it: links have no time to be idle in between."""
    cluster, ends = Cluster(network, schedule.size), [0.0]
    for _ in range(IN_A_ROW):
        collective = cluster.collective(schedule, nbytes, itemsize=itemsize, chunks=chunks)
        for rank in range(schedule.size):
            cluster.compute(rank, max(0.0, ends[-1] - cluster.now(rank)))
        waiting = 2 * schedule.size  # ends of these computations, then of the waits
        while waiting and (event := cluster.next()) is not None:
            waiting -= 1
            if not collective.started[event.rank]:
                cluster.start(event.rank, collective)
                cluster.wait(event.rank, collective)
        ends.append(max(time for time in collective.completion if time is not None))
    return ends[-1] - ends[-2]


def _play(
    cluster: Cluster, collective: Collective, begins: np.ndarray, look_every: float | None
) -> np.ndarray:
    """Every rank starts at its time, and waits or computes, until all are done."""
    for rank, begin in enumerate(begins.tolist()):
        cluster.compute(rank, begin)
    while collective.unfinished:
        event = cluster.play()
        if event is None or collective.started[event.rank]:
            continue
        cluster.start(event.rank, collective)
        if look_every is None:
            cluster.wait(event.rank, collective)
        else:
            looks = (look_every * i for i in itertools.count(1))
            cluster.compute(event.rank, np.inf, looks)
    return np.array(collective.completion, np.float64)


def _starts(start: Sequence[float] | np.ndarray | None, size: int) -> np.ndarray:
    if start is None:
        return np.zeros(size)
    begins = np.array(start, np.float64)
    if begins.shape != (size,) or not (np.isfinite(begins) & (begins >= 0)).all():
        raise AllreduceError(f"start must be {size} numbers >= 0 (s), got {start}")
    return begins
