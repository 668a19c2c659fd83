"""Numbers of rounds that ranks tell known peers, in both worlds, and work that they interrupt."""

from collections.abc import Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from allreduce.waiting import wait_for

if TYPE_CHECKING:
    from mpisgd.worlds.virtual import ClockSite

NOTICE_B = 8  # bytes of a notice
ROUNDING = 1e-9  # of a computation's seconds, at most: who ends so close to it is there


class RealNotices:
    """A number to or from each peer, over persistent requests. `heard`: the last one of each of
    the `sources`, 0 before the first."""

    def __init__(
        self, comm: Any, sources: Sequence[int], targets: Sequence[int], tag: int, deadline: float
    ):
        self.heard = dict.fromkeys(sources, 0)
        self._rank, self._deadline = comm.Get_rank(), deadline
        self._in, self._out = ({rank: np.zeros(1, np.int64) for rank in ranks}
                               for ranks in (sources, targets))  # fmt: skip
        self._receives = {rank: comm.Recv_init(self._in[rank], rank, tag) for rank in sources}
        self._sends = {rank: comm.Send_init(self._out[rank], rank, tag) for rank in targets}
        self._leaving: set[int] = set()
        for request in self._receives.values():
            request.Start()

    def look(self) -> None:
        """Take what has come."""
        for rank, request in self._receives.items():
            while request.Test():
                self.heard[rank] = int(self._in[rank][0])
                request.Start()

    def tell(self, ranks: Sequence[int], number: int) -> None:
        """`number` to each of these targets. Stalled if one takes nothing."""
        for rank in ranks:
            if rank in self._leaving:
                told = f"rank {self._rank} waits for rank {rank} to take a notice"
                wait_for(self._sends[rank].Test, partial(str, told), self._deadline)
            self._out[rank][0] = number
            self._sends[rank].Start()
            self._leaving.add(rank)

    def close(self) -> None:
        """Give all requests back."""
        for request in (*self._receives.values(), *(self._sends[r] for r in self._leaving)):
            if not request.Test():
                request.Cancel()
                request.Wait()
        for request in (*self._receives.values(), *self._sends.values()):
            request.Free()


class VirtualNotices:
    """The same between virtual ranks: the n-th that each rank makes belong together."""

    def __init__(self, site: "ClockSite", sources: Sequence[int]):
        self.heard = dict.fromkeys(sources, 0)
        self.taken = 0  # notices that have come since it was last asked
        self._site, self._number = site, len(site.noticed)

    def look(self) -> None:
        """It has been seen when it came, or at the next look."""

    def tell(self, ranks: Sequence[int], number: int) -> None:
        """`number` to each of these targets, at the rank's present time."""
        site = self._site
        for rank in ranks:
            other = site.clock.sites[rank].noticed[self._number]
            site.clock.cluster.send(
                site.rank, rank, NOTICE_B, partial(other.take, site.rank, number)
            )

    def take(self, source: int, number: int, time: float) -> None:
        """One has come."""
        self.heard[source] = max(number, self.heard[source])
        self.taken += 1
        self._site.hear(time)


def taken(site: "ClockSite") -> Generator[None, None, None]:
    """The time that what has come takes its rank, as any message does; an engine's takes none."""
    network = site.clock.network
    count = sum(notices.taken for notices in site.noticed)
    for notices in site.noticed:
        notices.taken = 0
    if count and network.overhead_s and network.progress != "perfect":
        site.clock.cluster.compute(site.rank, count * network.overhead_s)
        yield


class Interrupted:
    """`seconds` of a virtual rank's work, that may end early at one of its `looks`, and go on; as
    long as it is `away`, at once.

    `done`: so much is; `at`: where it was interrupted, None if it was not.
    """

    def __init__(self, site: "ClockSite", seconds: float, looks: Sequence[float], away: float):
        self._site, self.seconds, self.looks, self._away = site, seconds, looks, away
        self.done, self._began = 0.0, 0.0
        self.at: float | None = None

    def go_on(self) -> None:
        """Work from where it is; yield then, and `stop`."""
        self._began, self.at = self._site.now(), None
        looks = (look - self.done for look in self.looks if look > self.done)
        self._site.clock.cluster.compute(self._site.rank, self.seconds - self.done, looks)

    def interrupt(self, time: float) -> None:
        """End at the first look from then on, at once if an engine beside the rank looks; what is
        done by then is not interrupted."""
        if self.at is not None:
            return
        cluster, rank = self._site.clock.cluster, self._site.rank
        looked = cluster.looked(rank)  # and summed what came, which is no work
        worked = self.done + max(0.0, time - self._began - looked)
        perfect = self._site.clock.network.progress == "perfect"
        later = (look for look in self.looks if look > self.done and look >= worked)
        at = worked if perfect or worked < self._away else next(later, self.seconds)
        if at < self.seconds * (1 - ROUNDING):
            self.at = at
            cluster.interrupt(rank, self._began + looked + (self.at - self.done))

    def stop(self) -> bool:
        """It has ended: whether early."""
        self.done = self.seconds if self.at is None else self.at
        return self.at is not None
