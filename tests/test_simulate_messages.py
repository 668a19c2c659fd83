"""Single messages between virtual ranks, and waiting for them or for some time."""

import pytest
from test_simulate_events import LOOKING, waking

from allreduce.network import Network
from allreduce.simulate.events import Cluster, Event


def test_messages_share_links():
    cluster = Cluster(Network("n", latency_s=1.0, bandwidth_Bps=4.0), 3)
    came = []
    for sender in (1, 2):
        cluster.send(sender, 0, 8, waking(cluster, 0, came))
    for time in (3.0, 5.0):
        cluster.listen(0)
        assert cluster.next() == Event(time, 0)
    assert came == [3.0, 5.0]
    assert cluster.next() is None


def test_a_long_message_is_only_sent_when_its_sender_looks():
    net = Network("n", latency_s=1.0, eager_limit_B=4.0, look_s=0.5)  # no plan in flight to poll
    cluster = Cluster(net, 2)
    cluster.send(1, 0, 8, waking(cluster, 0))
    cluster.compute(1, 10.0, [1.0, 7.0])
    cluster.listen(0)
    assert cluster.next() == Event(8.0, 0)  # asked 1, answered 2, seen 7, there 8
    assert cluster.next() == Event(10.0, 1)


@pytest.mark.parametrize(("progress", "there"), [("looks", 6.0), ("perfect", 3.0)])
def test_a_long_message_is_only_taken_when_its_receiver_looks(progress, there):
    net = Network("n", latency_s=1.0, eager_limit_B=4.0, progress=progress)
    cluster, came = Cluster(net, 2), []
    cluster.send(1, 0, 8, came.append)  # asks at 1
    cluster.compute(0, 8.0, [0.5, 4.0, 6.0])
    cluster.linger(1)
    assert cluster.next() == Event(8.0, 0)  # what comes costs it nothing
    assert came == [there]


def test_who_does_not_look_takes_no_long_message():
    net = Network("n", latency_s=1.0, eager_limit_B=4.0)
    cluster, came = Cluster(net, 2), []
    cluster.send(1, 0, 8, came.append)
    cluster.linger(1)
    cluster.compute(0, 8.0)
    assert cluster.next() == Event(8.0, 0)
    assert cluster.next() is None
    assert not came
    assert not cluster.quiet  # it is still on its way
    cluster.linger(0)
    assert cluster.next() is None
    assert came == [10.0]
    assert cluster.quiet


def test_who_sends_several_messages_posts_one_after_the_other():
    cluster, came = Cluster(Network("n", overhead_s=1.0), 4), []
    for to in (1, 2, 3):
        cluster.send(0, to, 8, came.append)
    assert cluster.now(0) == 3.0
    cluster.compute(0, 1.0)
    assert cluster.next() == Event(4.0, 0)
    assert came == [1.0, 2.0, 3.0]


def test_with_perfect_progress_messages_cost_a_rank_nothing_and_its_engine_an_overhead_each():
    cluster, came = Cluster(Network("n", overhead_s=1.0, progress="perfect"), 3), []
    for to in (1, 2, 1):
        cluster.send(0, to, 8, came.append)
    cluster.compute(0, 1.5)
    assert cluster.next() == Event(1.5, 0)
    assert cluster.next() is None
    assert came == [2.0, 3.0, 4.0]


def test_an_interrupted_computation_ends_and_nothing_else_does():
    cluster = Cluster(LOOKING.with_(eager_limit_B=8.0), 3)
    came = []
    cluster.send(1, 0, 8, lambda time: cluster.interrupt(0))
    cluster.send(2, 0, 9, came.append)  # asks at 0.25, before the look
    cluster.linger(2)
    cluster.compute(0, 8.0, [4.0])
    assert cluster.next() == Event(0.25, 0)
    cluster.listen(0, until=2.0)  # and answers at once
    cluster.interrupt(0)
    assert not cluster.wake(1)
    assert cluster.next() == Event(2.0, 0)
    assert cluster.next() is None
    assert came == [0.75]


@pytest.mark.parametrize(("progress", "there"), [("looks", 3.5), ("perfect", 4.0)])
def test_processes_of_one_rank_reach_one_another_at_once(progress, there):
    net = Network("n", latency_s=1.0, overhead_s=0.5, eager_limit_B=4.0, progress=progress)
    cluster, came = Cluster(net, 2, processes=[0, 0, 1]), []
    cluster.send(1, 2, 8, came.append)  # to another rank: an overhead, and a handshake
    cluster.send(1, 0, 8, came.append)  # within the rank, once the first is posted
    cluster.compute(0, 5.0)
    cluster.linger(1)
    cluster.linger(2)
    assert cluster.next() == Event(5.0, 0)
    assert came == [0.5, there]  # an engine has taken it by then


def test_listening_has_an_end():
    cluster = Cluster(LOOKING, 2)
    cluster.listen(0, until=4.0)
    assert cluster.next() == Event(4.0, 0)
    cluster.listen(0, until=9.0)
    cluster.send(1, 0, 8, waking(cluster, 0))
    assert cluster.next() == Event(4.25, 0)
    cluster.listen(0, until=1.0)  # is past
    assert cluster.next() == Event(4.25, 0)
    assert cluster.next() is None
