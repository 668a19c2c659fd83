"""The fast path of the simulation: a round at a time, as NumPy columns over its messages."""

import numpy as np

from allreduce.network import Network, Paths, link_count, paths
from allreduce.schedule import Schedule
from allreduce.simulate.program import edges_in_bytes

# Links whose messages touch within rounding are not shared.
TOLERANCE = 1e-12


def simulate_columns(
    schedule: Schedule,
    nbytes: int,
    network: Network,
    start: np.ndarray,
    itemsize: int,
    factors: np.random.Generator,
    adds: float = 1.0,
) -> np.ndarray | None:
    """Seconds per rank, or None where a message would find a link taken.

    Exact where it answers: no message ever waits for another, so their order does not matter.
    """
    edges = edges_in_bytes(schedule, nbytes, itemsize)
    if network.sharing == "fair" or network.burst_B:
        return None  # sends are complete, or links free, at other times
    columns = _Columns(network, schedule.size, start, factors, adds)
    for transfers in schedule.rounds:
        length = edges[transfers["high"]] - edges[transfers["low"]]
        sent = length > 0
        if not sent.all():
            transfers, length = transfers[sent], length[sent]
        if len(length) and not columns.play(transfers, length):
            return None
    return columns.entered


class _Columns:
    """When each rank entered its current round, and until when each link is taken."""

    def __init__(
        self,
        network: Network,
        size: int,
        start: np.ndarray,
        factors: np.random.Generator,
        adds: float,
    ):
        self.network, self.size, self.factors, self.adds = network, size, factors, adds
        self.entered = start.copy()
        self.taken = np.zeros(link_count(size))
        self._pairs: tuple[np.ndarray, ...] = ()
        self._ways: tuple[Paths, np.ndarray, bool] | None = None

    def play(self, transfers: np.ndarray, length: np.ndarray) -> bool:
        """One round; False if one of its links is shared."""
        network, entered = self.network, self.entered
        source, destination = transfers["source"], transfers["destination"]
        ways, first, alone = self._find(source, destination)
        turns = network.rendezvous_duplex == "half" and (length > network.eager_limit_B).any()
        if not alone or turns:
            return False
        factor = lognormal(self.factors, network.noise, len(length))
        departs = self._departures(source, destination, length, ways.latency * factor)
        holds = length[:, None] * ways.seconds_per_byte * factor[:, None]
        ends = departs[:, None] + holds
        present = ways.links >= 0
        used = ways.links[present]
        begins = np.broadcast_to(departs[:, None], present.shape)[present]
        if (self.taken[used] > begins * (1 + TOLERANCE)).any():
            return False
        self.taken[used] = ends[present]
        done = entered.copy()
        left = np.take_along_axis(ends, first[:, None], axis=1)[:, 0]
        done[source] = np.maximum(done[source], left)
        arrived = np.maximum(done[destination], ends.max(axis=1) + ways.latency * factor)
        sums = network.sum_s_per_B * (length * transfers["reduce"] * self.adds)
        done[destination] = arrived + (network.overhead_s + sums)
        self.entered = done
        return True

    def _find(self, source: np.ndarray, destination: np.ndarray) -> tuple[Paths, np.ndarray, bool]:
        """Paths, the first link of each, and whether each port and link has one message only."""
        if self._ways is not None and all(map(np.array_equal, self._pairs, (source, destination))):
            return self._ways  # the rounds of a ring are all alike
        ways = paths(self.network, source, destination, self.size)
        columns = np.flatnonzero((ways.links >= 0).any(axis=0))
        if not columns.size:
            columns = np.array([0])
        ways = Paths(ways.latency, ways.links[:, columns], ways.seconds_per_byte[:, columns])
        present = ways.links >= 0
        alone = all(
            np.bincount(ids, minlength=1).max() <= 1
            for ids in (source, destination, ways.links[present])
        )
        self._pairs, self._ways = (source, destination), (ways, present.argmax(axis=1), alone)
        return self._ways

    def _departures(
        self, source: np.ndarray, destination: np.ndarray, length: np.ndarray, latency: np.ndarray
    ) -> np.ndarray:
        """When each message is handed to its first link."""
        entered, overhead = self.entered, self.network.overhead_s
        departs = entered[source] + overhead
        long = length > self.network.eager_limit_B
        if not long.any():
            return departs
        asked = departs + latency
        posted = entered[destination]
        # A request that comes while the receiver posts its own sends is seen after these.
        sends = np.bincount(source, minlength=self.size)[destination]
        answered = np.where(asked <= posted, posted, np.maximum(asked, posted + overhead * sends))
        return np.where(long, answered + latency, departs)


def lognormal(generator: np.random.Generator, sigma: float, count: int) -> np.ndarray:
    """`count` factors of mean 1; ones, and nothing drawn, if sigma is 0."""
    if not sigma:
        return np.ones(count)
    return np.exp(sigma * generator.standard_normal(count) - sigma * sigma / 2)
