"""The simulation against closed forms, an independent reference, and itself."""

import subprocess
import sys
import time
from math import log2

import numpy as np
import pytest

from allreduce.algorithms import ALGORITHMS, build, butterfly, tree
from allreduce.errors import AllreduceError
from allreduce.network import Network, network
from allreduce.schedule import Schedule, bounds, transfers
from allreduce.simulate import simulate
from allreduce.simulate.program import messages

ALPHA, BETA, GAMMA = 3e-5, 8e-10, 2e-10
PLAIN = Network("plain", latency_s=ALPHA, bandwidth_Bps=1 / BETA, sum_s_per_B=GAMMA)
BYTES = 1 << 20

CLOSED = {  # facts of the literature: (ranks, bytes) -> seconds
    "tree": lambda p, n: log2(p) * (2 * ALPHA + 2 * n * BETA + n * GAMMA),
    "butterfly": lambda p, n: log2(p) * (ALPHA + n * BETA + n * GAMMA),
    "halving-doubling": lambda p, n: 2 * log2(p) * ALPHA + n * (p - 1) / p * (2 * BETA + GAMMA),
    "ring": lambda p, n: 2 * (p - 1) * ALPHA + n * (p - 1) / p * (2 * BETA + GAMMA),
}


@pytest.mark.parametrize("method", ["columns", "events"])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 32, 64])
@pytest.mark.parametrize("name", CLOSED)
def test_without_contention_it_is_the_closed_form(name, ranks, method):
    ends = simulate(build(name, ranks), BYTES, PLAIN, method=method)
    assert ends.max() == pytest.approx(CLOSED[name](ranks, BYTES), rel=1e-9)


@pytest.mark.parametrize("method", ["columns", "events"])
@pytest.mark.parametrize("name", CLOSED)
def test_narrow_messages_cost_what_travels_and_sums_what_is_added(name, method):
    """Half the bytes, each added as two, are all of them on links twice as fast."""
    schedule = build(name, 8)
    narrow = simulate(schedule, BYTES // 2, PLAIN, itemsize=2, adds=2.0, method=method)
    fast = PLAIN.with_(bandwidth_Bps=2 / BETA)
    assert narrow == pytest.approx(simulate(schedule, BYTES, fast, itemsize=4), rel=1e-9)


@pytest.mark.parametrize("ranks", [3, 6, 13])
def test_other_numbers_of_ranks_fold_two_more_messages(ranks):
    core = 1 << (ranks.bit_length() - 1)
    extra = 2 * (ALPHA + BYTES * BETA) + BYTES * GAMMA
    took = simulate(butterfly(ranks), BYTES, PLAIN).max()
    formula = CLOSED["butterfly"](core, BYTES) + extra
    # Who has nothing to fold sends ahead: its message may be there one latency early.
    assert formula - ALPHA * (1 + 1e-9) <= took <= formula * (1 + 1e-9)


def test_a_tree_is_lighter_on_the_root_s_children():
    ends = simulate(tree(4), BYTES, PLAIN)
    one = ALPHA + BYTES * BETA
    summed = 2 * (one + BYTES * GAMMA)
    # The root is done when its last message has left, its children one latency later or more.
    assert ends == pytest.approx([summed + 2 * BYTES * BETA, *_tree_ends(summed, one)], rel=1e-9)


def _tree_ends(summed, one):
    return summed + BYTES * BETA + one, summed + one + BYTES * BETA, summed + 2 * one


def reference(schedule: Schedule, nbytes: int, net: Network, start) -> np.ndarray:
    """The same rules on a flat network without handshakes, by iteration to a fixed point.

    Written from the contract alone: guess when every message leaves, queue each port by these
    times, derive when ranks enter their rounds, and repeat until nothing changes.
    """
    edges = bounds(nbytes, schedule.segments)
    listed = [
        (number, int(t["source"]), int(t["destination"]), int(edges[t["high"]] - edges[t["low"]]),
         bool(t["reduce"]))
        for number, part in enumerate(schedule.rounds)
        for t in part
        if edges[t["high"]] > edges[t["low"]]
    ]  # fmt: skip
    leaves = [0.0] * len(listed)
    while True:
        lengths = [m[3] / net.bandwidth_Bps for m in listed]
        sources, destinations = [m[1] for m in listed], [m[2] for m in listed]
        outs = _queue(leaves, sources, sources, lengths)
        ins = _queue([begin for begin, _ in outs], sources, destinations, lengths)
        at, new = list(start), [0.0] * len(listed)
        for number in range(len(schedule.rounds)):
            mine = [i for i, m in enumerate(listed) if m[0] == number]
            posted = dict.fromkeys(range(schedule.size), 0)
            done, after = list(at), [0.0] * schedule.size
            for i in mine:
                _, source, destination, length, reduce = listed[i]
                posted[source] += 1
                new[i] = at[source] + posted[source] * net.overhead_s
                done[source] = max(done[source], outs[i][1])
                arrival = max(ins[i][1], outs[i][1]) + net.latency_s
                done[destination] = max(done[destination], arrival)
                after[destination] += net.overhead_s + net.sum_s_per_B * length * reduce
            at = [d + a for d, a in zip(done, after, strict=True)]
        if new == leaves:
            return np.array(at)
        leaves = new


def _queue(times, sources, ports, lengths):
    """(begin, end) of each message: ports serve in order of time, at one time in order of rank."""
    free: dict[int, float] = {}
    result = [(0.0, 0.0)] * len(times)
    for i in sorted(range(len(times)), key=lambda i: (times[i], sources[i])):
        begin = max(times[i], free.get(ports[i], 0.0))
        free[ports[i]] = begin + lengths[i]
        result[i] = (begin, begin + lengths[i])
    return result


# Powers of two: sums of times are exact, so what happens at one time does so in both.
EXACT = Network("exact", latency_s=2.0**-15, bandwidth_Bps=2.0**30, sum_s_per_B=2.0**-32)


@pytest.mark.parametrize("overhead", [0.0, 2.0**-17])
@pytest.mark.parametrize("skew", [0, 1000])
@pytest.mark.parametrize("ranks", [2, 5, 8])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_is_what_an_independent_reference_finds(name, ranks, skew, overhead):
    net = EXACT.with_(overhead_s=overhead)
    schedule = build(name, ranks, [rank // 4 for rank in range(ranks)])
    start = np.random.default_rng(ranks).integers(skew + 1, size=ranks) * 2.0**-20
    expected = reference(schedule, 1_000_003, net, start)
    for method in ("auto", "events"):
        ends = simulate(schedule, 1_000_003, net, start=start, method=method)
        assert ends == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    "net",
    [
        PLAIN,
        PLAIN.with_(noise=0.3),
        PLAIN.with_(eager_limit_B=5000.0, overhead_s=1e-6),
        PLAIN.with_(eager_limit_B=5000.0, overhead_s=1e-6, latency_s=1e-7),
        PLAIN.with_(progress="perfect"),
        network("h100-ndr"),
        network("lab"),
        network("ideal").with_(latency_s=1e-6),
    ],
    ids=lambda net: f"{net.name}-{net.noise}-{net.latency_s}-{net.eager_limit_B:g}-{net.progress}",
)
@pytest.mark.parametrize("name", ["tree", "butterfly", "halving-doubling", "ring", "hierarchical"])
def test_columns_are_the_events(name, net):
    answered = 0
    for ranks in (4, 16, 32):
        schedule = build(name, ranks, net.nodes(ranks))
        for skew in (0.0, 2e-6, 1e-4):
            start = skew * np.random.default_rng(ranks).random(ranks)
            events = simulate(schedule, BYTES, net, start=start, seed=3, method="events")
            try:
                columns = simulate(schedule, BYTES, net, start=start, seed=3, method="columns")
            except AllreduceError:
                continue
            answered += 1
            assert columns == pytest.approx(events, rel=1e-9)
    assert answered >= 3 or net.noise


def test_columns_refuse_what_they_cannot_price():
    servers = network("titanx-20g")
    with pytest.raises(AllreduceError, match="shares links"):
        simulate(butterfly(16), BYTES, servers, method="columns")
    with pytest.raises(AllreduceError, match="shares links"):
        simulate(butterfly(2), BYTES, PLAIN.with_(duplex="half"), method="columns")


# Links


@pytest.mark.parametrize("slow", ["bandwidth_Bps", "uplink_Bps", "bus_Bps"])
@pytest.mark.parametrize("method", ["columns", "events"])
def test_a_message_alone_takes_the_time_of_its_slowest_link(slow, method):
    links = {"bandwidth_Bps": 4e9, "uplink_Bps": 8e9, "bus_Bps": 16e9, slow: 1e9}
    net = Network("n", latency_s=ALPHA, ranks_per_node=2, ranks_per_bus=1).with_(**links)
    away = Schedule(4, 1, (transfers([0], [2]),))
    ends = simulate(away, 10**6, net, method=method)
    assert ends[2] == pytest.approx(ALPHA + 1e-3, rel=1e-9)
    assert ends[0] == pytest.approx(1e6 / links["bandwidth_Bps"], rel=1e-9)


def test_those_who_send_to_one_rank_wait_for_its_port():
    everyone = Schedule(5, 1, (transfers([1, 2, 3, 4], 0),))
    ends = simulate(everyone, BYTES, PLAIN)
    assert ends[0] == pytest.approx(ALPHA + 4 * BYTES * (BETA + GAMMA), rel=1e-9)


def test_half_duplex_exchanges_take_turns():
    ends = simulate(butterfly(2), BYTES, PLAIN.with_(duplex="half"))
    assert ends.max() == pytest.approx(ALPHA + BYTES * (2 * BETA + GAMMA), rel=1e-9)


def test_the_paper_s_cluster_as_the_model_reads_it():
    # 8 GPUs a server on PCIe 3, 20 Gbps between servers, S = 102e6 (ms).
    bare = network("titanx-20g").with_(
        latency_s=0.0, node_latency_s=0.0, sum_s_per_B=0.0, eager_limit_B=np.inf
    )
    for ranks, milliseconds in ((2, 6.375), (8, 19.125), (32, 19.125 + 8 * 81.6)):
        ends = simulate(butterfly(ranks), 102_000_000, bare)  # flat: 8 ranks share each uplink
        assert ends.max() * 1e3 == pytest.approx(milliseconds, rel=1e-9)
    leaders = simulate(build("hierarchical", 32, bare.nodes(32)), 102_000_000, bare)
    assert leaders.max() * 1e3 == pytest.approx(2 * 19.125 + 81.6, rel=1e-9)


def test_a_bus_is_shared_by_those_behind_it():
    # Two switches of two GPUs: both cross their bus at once.
    net = Network("box", node_bandwidth_Bps=1e9, ranks_per_node=4, ranks_per_bus=2, bus_Bps=1e9)
    crossing = Schedule(4, 1, (transfers([0, 1], [2, 3]),))
    within = Schedule(4, 1, (transfers([0, 2], [1, 3]),))
    assert simulate(crossing, 10**6, net).max() == pytest.approx(2e-3)
    assert simulate(within, 10**6, net).max() == pytest.approx(1e-3)


def test_links_are_priced_in_order_of_time_not_of_rounds():
    # Rank 1 is late for round 0; rank 2, in round 1, must not queue behind a message unborn.
    schedule = Schedule(3, 1, (transfers([1], [0]), transfers([2], [0])))
    start = [0.0, 1.0, 0.0]
    ends = simulate(schedule, 10**6, Network("n", bandwidth_Bps=1e6), start=start)
    assert ends == pytest.approx([2.0, 2.0, 1.0])


def test_no_link_carries_more_than_it_can():
    servers = network("titanx-20g").with_(sum_s_per_B=0.0)
    for name in ("butterfly", "halving-doubling", "ring"):
        sent = messages(build(name, 32), BYTES)
        away = sent.source // 8 != sent.destination // 8
        load = np.bincount(sent.source[away] // 8, sent.nbytes[away]).max() / servers.uplink_Bps
        took = simulate(build(name, 32), BYTES, servers).max()
        assert took >= load


# Ranks


def test_overhead_is_paid_at_both_ends():
    net = PLAIN.with_(overhead_s=1e-6)
    one = 2e-6 + ALPHA + BYTES * (BETA + GAMMA)
    assert simulate(butterfly(8), BYTES, net).max() == pytest.approx(3 * one, rel=1e-9)
    chunked = simulate(butterfly(2), BYTES, net, chunks=4)
    # Sends are hidden behind the first chunk on the link, receives are not.
    assert chunked.max() == pytest.approx(one + 3e-6, rel=1e-9)


def test_long_messages_shake_hands_for_two_more_latencies():
    net = PLAIN.with_(eager_limit_B=float(BYTES - 1))
    for method in ("columns", "events"):
        ends = simulate(butterfly(4), BYTES, net, method=method)
        assert ends.max() == pytest.approx(CLOSED["butterfly"](4, BYTES) + 4 * ALPHA, rel=1e-9)
    equal = simulate(butterfly(4), BYTES - 1, net)
    assert equal == pytest.approx(CLOSED["butterfly"](4, BYTES - 1))


def test_a_handshake_waits_for_the_receive_to_be_posted():
    one_way = Schedule(2, 1, (transfers([0], [1]),))
    net = PLAIN.with_(eager_limit_B=0.0, sum_s_per_B=0.0)
    late = simulate(one_way, BYTES, net, start=[0.0, 1.0])
    assert late == pytest.approx([1 + ALPHA + BYTES * BETA, 1 + 2 * ALPHA + BYTES * BETA])
    eager = simulate(one_way, BYTES, net.with_(eager_limit_B=np.inf), start=[0.0, 1.0])
    assert eager == pytest.approx([BYTES * BETA, 1.0])


@pytest.mark.parametrize("method", ["columns", "events"])
def test_a_request_is_not_seen_by_who_is_still_posting(method):
    net = Network("n", latency_s=0.25, overhead_s=1.0, eager_limit_B=0.0)
    # Asked at 1 and 1.5, there at 1.25 and 1.75; rank 1 posts from 0.5 to 1.5, then answers.
    ends = simulate(butterfly(2), 8, net, start=[0.0, 0.5], method=method)
    assert ends == pytest.approx([1.75 + 0.25 + 0.25 + 1, 1.75 + 0.25 + 1])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_one_rank_and_nothing_to_send_take_no_time(name):
    start = [0.5, 0.25, 0.0, 0.125]
    for method in ("columns", "events"):
        assert simulate(build(name, 1), BYTES, PLAIN, start=[2.0], method=method) == [2.0]
        ends = simulate(build(name, 4), 0, PLAIN, start=start, method=method)
        assert ends.tolist() == start


def test_elements_are_not_cut():
    # Three floats on four segments: 4 + 4 + 4 + 0 bytes, where bytes would be 3 each.
    ring = build("ring", 4)
    assert set(messages(ring, 12, itemsize=4).nbytes.tolist()) == {4}
    assert set(messages(ring, 12).nbytes.tolist()) == {3}
    parts = messages(build("butterfly", 2), 28, itemsize=4, chunks=3)
    assert parts.nbytes.tolist() == [12, 8, 8] * 2
    with pytest.raises(AllreduceError, match="whole elements"):
        simulate(ring, 10, PLAIN, itemsize=4)


def test_a_late_rank_delays_everyone_by_what_it_is_late():
    together = simulate(butterfly(8), BYTES, PLAIN)
    late = simulate(butterfly(8), BYTES, PLAIN, start=[1.0] + [0.0] * 7)
    assert late.max() == pytest.approx(1.0 + together.max())


def test_who_looks_rarely_waits_for_the_next_look():
    # Three rounds of 1 s, seen at 2, 4 and 6 s; waiting ranks are done after 3 s.
    net = Network("slow", latency_s=1.0)
    assert simulate(butterfly(8), 8, net).max() == 3.0
    assert simulate(butterfly(8), 8, net, look_every=2.0).max() == 6.0
    assert simulate(butterfly(8), 8, net.with_(progress="perfect"), look_every=2.0).max() == 3.0


def test_noise_is_reproducible_and_has_mean_one():
    noisy = PLAIN.with_(noise=0.2)
    first = simulate(butterfly(16), BYTES, noisy, seed=1)
    assert (first == simulate(butterfly(16), BYTES, noisy, seed=1)).all()
    assert (first != simulate(butterfly(16), BYTES, noisy, seed=2)).any()
    one_way = Schedule(2, 1, (transfers([0], [1]),))
    net = Network("n", latency_s=1.0, noise=0.5)
    times = [simulate(one_way, 1, net, seed=seed)[1] for seed in range(500)]
    assert np.mean(times) == pytest.approx(1.0, abs=5 * 0.53 / 500**0.5)
    assert np.std(np.log(times)) == pytest.approx(0.5, rel=0.1)


def test_noise_makes_many_ranks_slower_than_few():
    noisy = PLAIN.with_(noise=0.3)
    excess = [
        np.mean([simulate(butterfly(p), BYTES, noisy, seed=s).max() for s in range(10)])
        / CLOSED["butterfly"](p, BYTES)
        for p in (2, 64)
    ]
    assert 1 < excess[0] < excess[1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": [0.0]},
        {"start": [-1.0, 0.0]},
        {"start": [np.nan, 0.0]},
        {"chunks": 0},
        {"method": "magic"},
        {"look_every": 0.0},
    ],
)
def test_arguments_that_make_no_sense(wrong):
    with pytest.raises(AllreduceError, match=next(iter(wrong))):
        simulate(butterfly(2), 8, PLAIN, **wrong)


# Scale: processor time, since the machine may be shared


@pytest.mark.parametrize("name", ["tree", "butterfly", "halving-doubling", "ring", "hierarchical"])
def test_256_ranks_take_less_than_a_second(name):
    schedule = build(name, 256)
    began = time.process_time()
    simulate(schedule, BYTES, PLAIN, method="columns")
    assert time.process_time() - began < 1


def test_1024_ranks_in_a_ring_take_less_than_ten_seconds_and_a_gigabyte():
    """In a process of its own, by its own peak: ru_maxrss is inherited from who started it."""
    ends = simulate(build("ring", 1024), BYTES, PLAIN, method="columns")
    assert ends.max() == pytest.approx(CLOSED["ring"](1024, BYTES), rel=1e-9)
    code = (
        "import resource; from pathlib import Path; from allreduce import build, simulate;"
        "from allreduce.network import network;"
        "simulate(build('ring', 1024), 1 << 20, network('ethernet-10g'), method='columns');"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_utime);"
        "print(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    seconds, kibibytes = map(float, done.stdout.split())
    assert seconds < 10
    assert kibibytes < 1_000_000


def test_256_ranks_that_share_links_take_less_than_fifteen_seconds():
    began = time.process_time()
    simulate(butterfly(256), BYTES, network("titanx-20g"))
    assert time.process_time() - began < 15
