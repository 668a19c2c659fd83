"""Links shared evenly, idle wires that have credit, long messages that take turns."""

import numpy as np
import pytest

from allreduce.algorithms import build
from allreduce.network import Network
from allreduce.simulate import simulate
from allreduce.simulate.events import Cluster
from allreduce.simulate.links import Fair

SECOND = ((0, 1.0),)  # a link of one byte a second


def ends(fair):
    """(time, message) of all completions."""
    found = []
    while (time := fair.next_end()) < np.inf:
        found += [(pytest.approx(time), subject) for subject in fair.finished(time)]
    return found


def test_one_message_has_the_link_for_itself():
    fair = Fair()
    fair.add("a", SECOND, 3.0, 1.0)
    assert ends(fair) == [(4.0, "a")]


def test_two_messages_share_and_the_longer_has_the_rest_alone():
    fair = Fair()
    fair.add("short", SECOND, 2.0, 0.0)
    fair.add("long", SECOND, 5.0, 0.0)
    assert ends(fair) == [(4.0, "short"), (7.0, "long")]


def test_a_newcomer_slows_what_is_under_way():
    fair = Fair()
    fair.add("a", SECOND, 4.0, 0.0)
    fair.add("b", SECOND, 4.0, 2.0)
    assert ends(fair) == [(6.0, "a"), (8.0, "b")]


def test_who_is_held_up_elsewhere_leaves_its_share_to_others():
    """Max-min: a and b share link 1, so c gets three quarters of link 0."""
    fair = Fair()
    fair.add("a", ((0, 1.0), (1, 2.0)), 1.0, 0.0)
    fair.add("b", ((1, 2.0),), 1.0, 0.0)
    fair.add("c", ((0, 1.0),), 3.0, 0.0)
    assert ends(fair) == [(4.0, "a"), (4.0, "b"), (4.0, "c")]


@pytest.mark.parametrize("seed", range(5))
def test_a_full_link_is_never_idle(seed):
    """However it is shared, it is done when all bytes are through."""
    generator = np.random.default_rng(seed)
    sizes = generator.uniform(1, 9, 20)
    fair = Fair()
    for number, size in enumerate(sizes):
        fair.add(number, SECOND, size, 0.0)
    assert ends(fair)[-1][0] == sizes.sum()


def test_an_idle_link_has_credit_once():
    fair = Fair(lambda link: 2.0)
    fair.add("a", SECOND, 5.0, 10.0)
    fair.add("b", SECOND, 5.0, 10.0)
    assert ends(fair) == [(16.0, "a"), (18.0, "b")]


RATE = 1e6
PLAIN = Network("plain", bandwidth_Bps=RATE)
BYTES = 40_000
HOP = BYTES / RATE


def hops(name, ranks, network, nbytes=BYTES):
    return simulate(build(name, ranks), nbytes, network).max() / (nbytes / RATE)


@pytest.mark.parametrize(("ranks", "fifo", "fair"), [(2, 2, 2), (4, 4, 5), (8, 6, 9)])
def test_the_way_down_a_tree_is_longer_on_shared_links(ranks, fifo, fair):
    """The root's sends to its children go at once: the first child has to wait for all of them."""
    assert hops("tree", ranks, PLAIN) == pytest.approx(fifo)
    assert hops("tree", ranks, PLAIN.with_(sharing="fair")) == pytest.approx(fair)


@pytest.mark.parametrize(
    ("name", "ranks"),
    [(name, 2**k) for name in ("butterfly", "halving-doubling", "ring") for k in (1, 2, 3)]
    + [("ring", 3), ("ring", 7)],
)
def test_sharing_changes_nothing_where_nothing_is_shared(name, ranks):
    fair = simulate(build(name, ranks), BYTES * ranks, PLAIN.with_(sharing="fair", latency_s=1e-3))
    fifo = simulate(build(name, ranks), BYTES * ranks, PLAIN.with_(latency_s=1e-3))
    assert fair == pytest.approx(fifo, rel=1e-9)


def test_a_handshake_keeps_the_sends_of_a_tree_in_order():
    """Its send is complete when it has left: rounds do not overlap."""
    network = PLAIN.with_(sharing="fair", eager_limit_B=BYTES / 2)
    assert hops("tree", 4, network) == pytest.approx(4)


def sent(cluster, ranks):
    """When messages from rank 0 to these ranks come, all sent at once."""
    came = []
    for rank in ranks:
        cluster.send(0, rank, BYTES, came.append)
    assert cluster.next() is None
    return came


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
def test_a_burst_shortens_the_first_message_after_a_pause(sharing):
    network = PLAIN.with_(sharing=sharing, burst_B=BYTES / 4)
    assert hops("tree", 2, network) == pytest.approx(1.5)  # each way its own wire
    cluster = Cluster(network, 2)
    assert sent(cluster, [1, 1, 1])[-1] == pytest.approx(2.75 * HOP)


def test_a_burst_of_half_the_pause_is_half_there():
    network = PLAIN.with_(burst_B=BYTES / 2)
    cluster = Cluster(network, 2)
    came = []
    cluster.send(0, 1, BYTES, came.append)  # leaves at 0.5 hops: no credit is left
    cluster.compute(0, 0.75 * HOP)
    cluster.next()
    assert came == [pytest.approx(0.5 * HOP)]
    assert sent(cluster, [1]) == [pytest.approx(1.5 * HOP)]  # a quarter hop of credit since


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
@pytest.mark.parametrize(("limit", "rounds"), [(np.inf, 1), (0.0, 2)])
def test_of_long_messages_one_way_goes_at_a_time(sharing, limit, rounds):
    network = PLAIN.with_(rendezvous_duplex="half", eager_limit_B=limit, sharing=sharing)
    assert hops("butterfly", 2, network) == pytest.approx(rounds)


@pytest.mark.parametrize(("sharing", "arrivals"), [("fifo", [1, 2]), ("fair", [2, 2])])
def test_messages_from_one_rank_share_its_port_alike(sharing, arrivals):
    cluster = Cluster(PLAIN.with_(sharing=sharing), 3)
    assert sent(cluster, [1, 2]) == pytest.approx(np.array(arrivals) * HOP)
