"""Ranks that compute, look and wait: the time laws of SGD, and what looking costs."""

import math
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest

from allreduce.algorithms import build, butterfly
from allreduce.errors import AllreduceError, Stalled
from allreduce.network import Network, network
from allreduce.schedule import Schedule, transfers
from allreduce.simulate import simulate
from allreduce.simulate.events import Cluster, Event
from allreduce.simulate.records import Collective

PERFECT = Network("perfect", latency_s=0.25, progress="perfect")
LOOKING = Network("looking", latency_s=0.25)
PAIR = build("butterfly", 2)


def drive(cluster, worker):
    """Run `worker(rank)`, a generator that yields after each activity it gives, on every rank."""
    running = [worker(rank) for rank in range(cluster.size)]
    for each in running:
        next(each)
    while (event := cluster.next()) is not None:
        next(running[event.rank], None)


def waking(cluster, rank, came=None):
    """For `send`: what ends the listening of that rank, and says when."""

    def put(time):
        cluster.wake(rank)
        if came is not None:
            came.append(time)

    return put


def train(cluster, schedule, nbytes, *, steps, tau, delay, step_s, looks=()):
    """Delayed averaging as a toy; (end of each rank, stalls of each merge) in seconds."""
    means: dict[int, Collective] = {}
    ends: dict[int, float] = {}
    stalls: dict[int, dict[int, float]] = defaultdict(dict)

    def worker(rank):
        def start(k):
            if k not in means:
                means[k] = cluster.collective(schedule, nbytes)
            cluster.start(rank, means[k])

        for k in range(1, steps + 1):
            cluster.compute(rank, step_s, looks)
            yield
            if k % tau == 0 and delay < tau:
                start(k)
            if k > delay and (k - delay) % tau == 0:
                before = cluster.now(rank)
                cluster.wait(rank, means[k - delay])
                yield
                stalls[k][rank] = cluster.now(rank) - before
            if k % tau == 0 and delay == tau:
                start(k)
        ends[rank] = cluster.now(rank)

    drive(cluster, worker)
    return ends, stalls


@pytest.mark.parametrize("net", [PERFECT, LOOKING])
def test_the_counts_of_the_paper_s_figure_4(net):
    # K = 6, tau = 3, d = 1, t_c = 2 rounds of 0.25 <= t_p = 1.
    p, c = 1.0, 0.5
    assert simulate(butterfly(4), 8, net).max() == c
    looks = np.linspace(0, p, 9)[1:]  # two are enough

    def total(tau, delay):
        ends, _ = train(
            Cluster(net, 4), butterfly(4), 8,
            steps=6, tau=tau, delay=delay, step_s=p, looks=looks,
        )  # fmt: skip
        return set(ends.values())

    assert total(1, 0) == {6 * p + 6 * c}
    assert total(3, 0) == {6 * p + 2 * c}
    assert total(3, 1) == {6 * p}


@pytest.mark.parametrize("tau", range(1, 9))
@pytest.mark.parametrize("step_s", [0.125, 0.5, 0.75])
def test_with_perfect_progress_a_merge_stalls_by_what_computing_did_not_hide(tau, step_s):
    t_c = simulate(butterfly(8), 8, PERFECT).max()
    assert t_c == 0.75
    for delay in range(min(tau, 5) + 1):
        steps = 3 * tau + delay
        ends, stalls = train(
            Cluster(PERFECT, 8), butterfly(8), 8,
            steps=steps, tau=tau, delay=delay, step_s=step_s,
        )  # fmt: skip
        stall = max(0.0, t_c - delay * step_s)
        assert len(stalls) == 3
        assert {s for each in stalls.values() for s in each.values()} == {stall}
        assert set(ends.values()) == {steps * step_s + 3 * stall}


def test_a_round_advances_only_at_looks():
    # Five rounds of 0.25 s; each look of a computing rank finishes at most one of them.
    rounds, step_s = 5, 1.0
    for looks, delay in ((1, 1), (1, 2), (2, 2), (1, 4), (4, 2), (0, 3)):
        offsets = [step_s * (i + 1) / looks for i in range(looks)]
        _, stalls = train(
            Cluster(LOOKING, 32), butterfly(32), 8,
            steps=4 + delay, tau=4, delay=delay, step_s=step_s, looks=offsets,
        )  # fmt: skip
        left = max(0, rounds - delay * looks)
        # The first round of what is left began at the last look, or has been over for long.
        expected = 0.25 * (left if looks else left - 1)
        assert set(stalls[4 + delay].values()) == {expected}


def test_a_late_look_is_worse_than_an_early_one_after_the_message_came():
    def finished(looks):
        cluster = Cluster(LOOKING, 2)
        mean = cluster.collective(PAIR, 8)
        for rank in range(2):
            cluster.start(rank, mean)
            cluster.compute(rank, 2.0, looks)
        while cluster.next():
            pass
        return mean.completion

    assert finished([0.25]) == [0.25, 0.25]  # a look sees what comes at its very time
    assert finished([0.2, 1.5]) == [1.5, 1.5]
    assert finished([0.2]) == [None, None]


def test_sums_made_at_a_look_lengthen_the_computation():
    net = LOOKING.with_(sum_s_per_B=0.125)
    for progress, end in (("looks", 11.0), ("perfect", 10.0)):
        cluster = Cluster(net.with_(progress=progress), 2)
        mean = cluster.collective(PAIR, 8)
        for rank in range(2):
            cluster.start(rank, mean)
            cluster.compute(rank, 10.0, [3.0, 6.0])
        assert [cluster.next(), cluster.next()] == [Event(end, 0), Event(end, 1)]
        assert mean.completion == ([4.0, 4.0] if progress == "looks" else [1.25, 1.25])


def test_a_look_goes_on_while_it_finds_something_to_do():
    # The second round's message comes during the sum of the first, and is seen right after it.
    chain = Schedule(3, 1, (transfers([1], [0]), transfers([2], [0])))
    net = Network("n", latency_s=1.0, sum_s_per_B=0.25)
    cluster = Cluster(net, 3)
    mean = cluster.collective(chain, 8)
    cluster.start(1, mean)
    cluster.start(0, mean)
    cluster.compute(0, 10.0, [2.0])
    cluster.compute(2, 2.5)
    assert cluster.next() == Event(2.5, 2)
    cluster.start(2, mean)  # there at 3.5; the first sum ends at 4
    assert cluster.next() == Event(14.0, 0)
    assert mean.completion[0] == 6.0


def test_looks_have_a_price_while_something_is_in_flight():
    net = LOOKING.with_(look_s=0.5)
    cluster = Cluster(net, 2)
    mean = cluster.collective(PAIR, 8)
    cluster.start(0, mean)  # rank 1 never starts it
    cluster.compute(0, 2.0, [0.5, 1.0, 1.5])
    cluster.compute(1, 2.0, [0.5, 1.0, 1.5])
    assert [cluster.next(), cluster.next()] == [Event(2.0, 1), Event(3.5, 0)]


def test_a_handshake_takes_two_more_looks():
    def finished(limit, progress="looks"):
        cluster = Cluster(LOOKING.with_(eager_limit_B=limit, progress=progress), 2)
        mean = cluster.collective(PAIR, 8)
        for rank in range(2):
            cluster.start(rank, mean)
            cluster.compute(rank, 9.0, [1.0, 2.0, 3.0, 4.0])
        while cluster.next():
            pass
        return mean.completion[0]

    assert finished(8.0) == 1.0
    assert finished(7.0) == 3.0
    assert finished(7.0, "perfect") == 0.75


def test_all_reduces_in_flight_share_links():
    net = Network("n", bandwidth_Bps=1.0)
    cluster = Cluster(net, 2)
    means = [cluster.collective(PAIR, 8) for _ in range(3)]
    for rank in range(2):
        for mean in means:
            cluster.start(rank, mean)
        cluster.wait(rank, means[2])
    assert cluster.next() == Event(24.0, 0)
    assert [mean.completion[0] for mean in means] == [8.0, 16.0, 24.0]


def test_a_waiting_rank_advances_everything_it_has_in_flight():
    cluster = Cluster(LOOKING, 4)
    first, second = (cluster.collective(butterfly(4), 8) for _ in range(2))
    for rank in range(4):
        cluster.start(rank, first)
        cluster.start(rank, second)
        cluster.wait(rank, second)
    assert [cluster.next() for _ in range(4)] == [Event(0.5, rank) for rank in range(4)]
    assert first.completion == [0.5] * 4


def two_started(sum_s_per_B):  # noqa: N803
    """A pair with two all-reduces of 8 bytes in flight, whose messages are there at 0.25 s."""
    cluster = Cluster(LOOKING.with_(sum_s_per_B=sum_s_per_B), 2)
    means = [cluster.collective(PAIR, 8) for _ in range(2)]
    for rank in range(2):
        for mean in means:
            cluster.start(rank, mean)
    return cluster, means


def test_who_has_what_it_waited_for_looks_no_more():
    cluster, (first, second) = two_started(sum_s_per_B=0.125)
    cluster.wait(0, first)
    assert cluster.next() == Event(1.25, 0)
    assert second.completion[0] is None
    cluster.wait(0, first)  # is done: no look either
    assert cluster.next() == Event(1.25, 0)
    assert second.completion[0] is None
    cluster.wait(0, second)
    assert cluster.next() == Event(2.25, 0)


def test_who_got_a_message_while_it_summed_looks_no_more():
    cluster, (first, second) = two_started(sum_s_per_B=0.125)
    cluster.compute(1, 0.5)
    cluster.listen(0)
    assert cluster.next() == Event(0.5, 1)
    cluster.send(1, 0, 8, waking(cluster, 0))  # there at 0.75
    assert cluster.next() == Event(1.25, 0)
    assert (first.completion[0], second.completion[0]) == (1.25, None)


def test_equal_times_come_in_order_of_rank():
    def events(order):
        cluster = Cluster(LOOKING, 4)
        mean = cluster.collective(butterfly(4), 8)
        for rank in order:
            cluster.start(rank, mean)
            cluster.wait(rank, mean)
        return [cluster.next() for _ in range(4)]

    assert events([0, 1, 2, 3]) == events([2, 0, 3, 1]) == [Event(0.5, r) for r in range(4)]


def test_equal_runs_are_equal():
    def run(seed):
        net = network("titanx-20g").with_(noise=0.3)
        ends, _ = train(
            Cluster(net, 16, seed), build("ring", 16), 4096,
            steps=12, tau=2, delay=1, step_s=1e-4, looks=[5e-5, 1e-4],
        )  # fmt: skip
        return ends

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_delayed_averaging_on_a_shared_network_costs_no_less_than_computing():
    net = network("titanx-20g")
    took = {}
    for tau, delay in ((1, 0), (4, 0), (4, 3)):
        ends, _ = train(
            Cluster(net, 16), build("halving-doubling", 16), 1 << 20,
            steps=12, tau=tau, delay=delay, step_s=2e-3, looks=np.linspace(0, 2e-3, 21)[1:],
        )  # fmt: skip
        took[tau, delay] = max(ends.values())
    assert 12 * 2e-3 < took[4, 3] < took[4, 0] < took[1, 0]


def test_waiting_ends_no_sooner_than_the_sum_it_is_busy_with():
    cluster = Cluster(LOOKING.with_(sum_s_per_B=1.0), 2)
    mean = cluster.collective(butterfly(2), 8)
    cluster.start(0, mean)
    cluster.start(1, mean)
    other = cluster.collective(PAIR, 0)
    cluster.start(0, other)
    cluster.listen(0, until=1.0)
    assert cluster.next() == Event(8.25, 0)
    assert other.completion[0] == 0.0


def test_who_waits_in_vain_is_named():
    cluster = Cluster(LOOKING, 2)
    mean = cluster.collective(PAIR, 8)
    cluster.start(1, mean)
    cluster.wait(1, mean)
    with pytest.raises(Stalled, match="rank 1 waits for butterfly"):
        cluster.next()


def test_what_makes_no_sense_is_refused():
    cluster = Cluster(LOOKING, 2)
    mean = cluster.collective(PAIR, 8)
    with pytest.raises(AllreduceError, match="never started"):
        cluster.wait(0, mean)
    cluster.start(0, mean)
    with pytest.raises(AllreduceError, match="already started"):
        cluster.start(0, mean)
    with pytest.raises(AllreduceError, match="at least 0"):
        cluster.compute(0, -1.0)
    with pytest.raises(AllreduceError, match="at least 0"):
        cluster.compute(0, math.nan)
    cluster.compute(0, 5.0, [2.0, 1.0])
    with pytest.raises(AllreduceError, match="still busy"):
        cluster.wait(0, mean)
    with pytest.raises(AllreduceError, match=r"looks at 1\.0 s"):
        cluster.next()
    with pytest.raises(AllreduceError, match="is for 2 ranks, not 3"):
        Cluster(LOOKING, 3).collective(PAIR, 8)
    with pytest.raises(AllreduceError, match="no message"):
        cluster.send(1, 1, 8, print)  # to itself
    with pytest.raises(AllreduceError, match="at least 1 rank"):
        Cluster(LOOKING, 0)


def test_more_looks_cost_less_stall_down_to_perfect_progress():
    net = network("lab").with_(look_s=0.0)
    schedule, nbytes = build("halving-doubling", 8), 1 << 18

    def stall(chosen, looks):
        step_s = simulate(schedule, nbytes, net).max() / 2
        _, stalls = train(
            Cluster(chosen, 8), schedule, nbytes,
            steps=7, tau=4, delay=3, step_s=step_s,
            looks=[step_s * (i + 1) / looks for i in range(looks)],
        )  # fmt: skip
        return max(stalls[7].values())

    stalls = [stall(net, looks) for looks in (1, 4, 64)]
    stalls.append(stall(net.with_(progress="perfect"), 1))
    assert all(rare >= often for rare, often in pairwise(stalls))
    assert stalls[0] > 0
    assert stalls[-1] == 0
