"""When an average that its rank moves on was noticed to have arrived."""

import itertools

import numpy as np
import pytest

from allreduce.algorithms import build
from allreduce.plan import Plan
from allreduce.testing.loopback import World
from mpisgd.worlds.pending import PolledAllreduce

STARTS = 5


@pytest.mark.parametrize("seed", range(8))
def test_each_flight_ends_after_it_began_whichever_look_finds_its_end(seed):
    """The peer moves between the looks of whoever waits, so that any of them may be the last."""
    network, schedule = World(2, seed), build("tree", 2)
    peer = Plan(network.comm(1), schedule, np.ones(3), mean=True)
    plan = Plan(network.comm(0), schedule, values := np.zeros(3), mean=True)
    ticks = map(float, itertools.count())
    in_flight: list[PolledAllreduce] = []

    def look() -> None:
        in_flight[:] = [one for one in in_flight if not one.landed()]
        for _ in range(64):
            peer.test()

    mine = PolledAllreduce(plan, in_flight.append, look, lambda: next(ticks))
    mine.wait()  # what was never started is not waited for, and has no end
    flights = []
    for _ in range(STARTS):
        values[:] = 0
        mine.start()
        plan.start()
        peer.start()
        mine.wait()
        peer.wait()
        flights.append((mine.began_s, mine.ended_s))
    assert flights == [(2.0 * n, 2.0 * n + 1) for n in range(STARTS)]  # two readings of the clock
