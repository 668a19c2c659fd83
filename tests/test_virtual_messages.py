"""Messages of servers and workers in virtual time: what they cost, and when nobody goes on."""

import math

import numpy as np
import pytest
from server_runs import TINY

from allreduce.errors import Stalled
from allreduce.network import PRESETS, Network
from allreduce.schedule import Schedule, transfers
from allreduce.simulate import simulate
from mpisgd.experiment.building import load, resolve_for
from mpisgd.experiment.experiment import Experiment
from mpisgd.experiment.stragglers import step_timer
from mpisgd.servers.messages import Answer, Request
from mpisgd.servers.roles import Builder
from mpisgd.worlds.virtual_servers import VirtualServers
from mpisgd.worlds.virtual_sites import HEADER_B

LATENCY, RATE, BYTES = 0.25, 1e6, 500_000
PLAIN = Network(latency_s=LATENCY, bandwidth_Bps=RATE)
NETWORKS = [
    *PRESETS.values(),
    PLAIN.with_(name="overhead", overhead_s=0.1),
    PLAIN.with_(name="handshake", overhead_s=0.1, eager_limit_B=1000),
    PLAIN.with_(name="half duplex", duplex="half", overhead_s=0.1),
    PLAIN.with_(name="turns", rendezvous_duplex="half", eager_limit_B=1000, overhead_s=0.1),
    PLAIN.with_(name="fair", sharing="fair", overhead_s=0.1),
    PLAIN.with_(name="fair handshake", sharing="fair", eager_limit_B=1000),
    PLAIN.with_(name="burst", burst_B=1e5),
    PLAIN.with_(name="perfect", progress="perfect", overhead_s=0.1, eager_limit_B=1000),
    PRESETS["titanx-20g"].with_(name="two a node", ranks_per_node=2, overhead_s=1e-6),
]
EVERY_NETWORK = pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name)


def world(network, workers, *, servers=1, colocated=False, seed=0):
    """Virtual servers and workers that do nothing."""
    ranks = workers + (0 if colocated else servers)
    values = TINY | {"algorithm": "async", "servers": servers, "colocated": colocated, "steps": 1}
    dataset = load(Experiment.read(values))
    experiment = resolve_for(Experiment.read(values | {"seed": seed}), dataset, ranks)
    builder = Builder(experiment, dataset)
    made = VirtualServers(network, builder, step_timer(None, 1.0, 0), builder.evaluator())
    made.runs = [iter(()) for _ in made.runs]
    return made


def payload(nbytes):
    """What makes a message of so many bytes."""
    return np.zeros(nbytes - HEADER_B, np.uint8)


def answer(site, worker, nbytes=BYTES):
    site.send(worker, Answer(*[0] * len(Answer._fields)), payload(nbytes))


def push(site, server, nbytes=BYTES):
    site.send(server, Request(*[0] * len(Request._fields)), payload(nbytes))


def saying(site, came, send=lambda site: None):
    """A process that sends, then says when it has received a message."""
    send(site)
    yield from site.receive()
    came.append(site.now())


def sending(site, send):
    """A process that sends, and has ended."""
    send(site)
    yield from ()


def one_round(source, destination, size):
    return Schedule(size, 1, (transfers(source, destination, reduce=False),))


@EVERY_NETWORK
@pytest.mark.parametrize("nbytes", [HEADER_B, 1000, 65_537, BYTES])
def test_a_message_costs_what_it_costs_in_an_all_reduce(network, nbytes):
    there, back = [], []
    made = world(network, 1)
    (server,), (worker,) = made.server_sites, made.worker_sites
    made.runs = [sending(server, lambda site: answer(site, 0, nbytes)), saying(worker, there)]
    made.run()
    assert there == [pytest.approx(simulate(one_round(0, 1, 2), nbytes, network)[1], rel=1e-12)]
    made = world(network, 1)
    (server,), (worker,) = made.server_sites, made.worker_sites
    made.runs = [saying(server, back), sending(worker, lambda site: push(site, 0, nbytes))]
    made.run()
    assert back == [pytest.approx(simulate(one_round(1, 0, 2), nbytes, network)[0], rel=1e-12)]


@EVERY_NETWORK
def test_both_ways_at_once_cost_what_they_cost_in_an_all_reduce(network):
    """Where the two ways take turns, as well."""
    made, came = world(network, 1), []
    (server,), (worker,) = made.server_sites, made.worker_sites
    made.runs = [
        saying(server, came, lambda site: answer(site, 0)),
        saying(worker, came, lambda site: push(site, 0)),
    ]
    made.run()
    ends = simulate(one_round([0, 1], [1, 0], 2), BYTES, network)
    assert max(came) == pytest.approx(ends.max(), rel=1e-12)


@EVERY_NETWORK
def test_answers_to_many_workers_cost_what_they_cost_in_an_all_reduce(network):
    """They leave one after the other, or share the server's port and those of its node."""
    made, came, count = world(network, 9), [], 9
    (server,) = made.server_sites

    def send(site):
        for worker in range(count):
            answer(site, worker)

    made.runs = [sending(server, send), *(saying(site, came) for site in made.worker_sites)]
    made.run()
    workers = np.arange(1, count + 1)
    ends = simulate(one_round(0, workers, count + 1), BYTES, network)
    assert sorted(came) == pytest.approx(sorted(ends[1:]), rel=1e-12)


@EVERY_NETWORK
def test_pushes_of_many_workers_cost_what_they_cost_in_an_all_reduce(network):
    """Without overhead, of which a server takes one after each, and a round all after the last."""
    network, count, came = network.with_(overhead_s=0.0), 9, []
    made = world(network, count)
    (server,) = made.server_sites

    def serve():
        for _ in range(count):
            yield from server.receive()
            came.append(server.now())

    made.runs = [serve(), *(sending(s, lambda site: push(site, 0)) for s in made.worker_sites)]
    made.run()
    workers = np.arange(1, count + 1)
    ends = simulate(one_round(workers, 0, count + 1), BYTES, network)
    assert came[-1] == pytest.approx(ends[0], rel=1e-12)


def test_an_overhead_is_paid_for_each_message_at_both_ends():
    made, came = world(Network(overhead_s=1e-3), 4), []
    (server,) = made.server_sites

    def send(site):
        for worker in range(4):
            answer(site, worker)

    made.runs = [sending(server, send), *(saying(site, came) for site in made.worker_sites)]
    made.run()
    assert came == pytest.approx([2e-3, 3e-3, 4e-3, 5e-3])


def test_messages_that_wait_are_taken_one_after_the_other():
    made, came = world(Network(overhead_s=1.0), 3), []
    (server,) = made.server_sites

    def serve():
        yield from server.busy(0)
        for _ in range(3):
            yield from server.receive()
            came.append(server.now())

    made.runs = [serve(), *(sending(s, lambda site: push(site, 0)) for s in made.worker_sites)]
    made.run()
    assert came == [2.0, 3.0, 4.0]


def test_a_handshake_takes_two_more_latencies_and_no_overhead():
    assert arrivals(Network(latency_s=1.0, overhead_s=0.1, eager_limit_B=0)) == [pytest.approx(3.2)]
    assert arrivals(PLAIN.with_(eager_limit_B=BYTES)) == arrivals(PLAIN)


def arrivals(network, messages=1, seed=0):
    """Seconds when pushes have been taken that are sent one after the other, each when the last
    has been."""
    made, came = world(network, 1, seed=seed), []
    (server,), (worker,) = made.server_sites, made.worker_sites

    def send():
        for _ in range(messages):
            push(worker, 0)
            yield from worker.receive()

    def take():
        for _ in range(messages):
            message = yield from server.receive()
            came.append(server.now())
            worker.put(message)  # which costs nothing

    made.runs = [take(), send()]
    made.run()
    return came


def test_noise_has_a_mean_of_one_and_the_same_seed_the_same_noise():
    count, quiet = 4000, LATENCY + BYTES / RATE
    noisy = PLAIN.with_(noise=0.4)
    one = np.diff(arrivals(noisy, count), prepend=0.0) / quiet
    assert one.min() > 0
    # The mean of 4,000 factors of deviation sqrt(exp(0.16) - 1) = 0.417: five deviations of it.
    assert one.mean() == pytest.approx(1, abs=5 * 0.417 / math.sqrt(count))
    assert np.log(one).std() == pytest.approx(0.4, rel=0.1)
    assert arrivals(noisy, 9) == arrivals(noisy, 9)
    assert arrivals(noisy, 9) != arrivals(noisy, 9, seed=1)


@pytest.mark.parametrize("servers", [1, 2])
def test_within_a_rank_nothing_takes_time(servers):
    network = PLAIN.with_(overhead_s=0.1, eager_limit_B=1000)
    made, came = world(network, 2, servers=servers, colocated=True), {}

    def send(site):
        for worker in (1, 0):  # the first, to another rank, takes 0.1 s to post
            answer(site, worker)

    def take(site):
        yield from site.receive()
        came[site.number] = site.now()

    idle = [sending(site, lambda site: None) for site in made.server_sites[1:]]
    made.runs = [sending(made.server_sites[0], send), *idle, *map(take, made.worker_sites)]
    made.run()
    assert came == pytest.approx({0: 0.1, 1: 0.1 + 3 * LATENCY + BYTES / RATE + 0.1})


def computing(looks):
    """A gradient of 1 s that looks then."""

    def work(progress, ready):
        for look in looks:
            progress(look)

    return work


@pytest.mark.parametrize(("progress", "there"), [("looks", 0.625), ("perfect", 0.375)])
def test_a_computing_worker_takes_a_long_message_at_its_looks(progress, there):
    network = Network(latency_s=0.125, eager_limit_B=1000, progress=progress)
    made, taken = world(network, 1), []
    (server,), (worker,) = made.server_sites, made.worker_sites

    def take():
        yield from worker.compute(computing([0.1, 0.5, 0.9]), 1)
        message = yield from worker.receive()
        taken.append((worker.now(), message.arrived_s))

    made.runs = [sending(server, lambda site: answer(site, 0)), take()]
    made.run()
    # Asked at 0.125: answered then or at 0.5, and 0.25 s later it is there.
    assert taken == [(1.0, pytest.approx(there + 0.125 if progress == "looks" else there))]


def test_looks_have_their_price_while_a_push_is_not_answered():
    made, ends = world(Network(latency_s=5.0, look_s=0.125), 1), []
    (server,), (worker,) = made.server_sites, made.worker_sites

    def serve():
        answer(server, 0)
        yield from server.receive()
        answer(server, 0)

    def take():
        yield from worker.receive()
        for _ in range(2):
            yield from worker.compute(computing([0.25, 0.5]), 1)
            ends.append(worker.now())
            push(worker, 0)

    made.runs = [serve(), take()]
    made.run()
    assert ends == [6.0, 7.25]
    assert (worker._counters.polls, worker._counters.poll_s) == (2, 0.25)
    assert worker._counters.compute_s == 2.0


def test_a_server_that_adds_answers_nobody():
    made, came = world(Network(latency_s=0.25, eager_limit_B=1000, sum_s_per_B=1e-6), 1), []
    (server,), (worker,) = made.server_sites, made.worker_sites

    def serve():
        yield from server.busy(1_000_000)
        message = yield from server.receive()
        came.append(message.arrived_s)

    made.runs = [serve(), sending(worker, lambda site: push(site, 0))]
    made.run()
    assert came == [1.5]


def test_a_notice_ends_a_computation_and_nothing_else():
    made, ends = world(Network(latency_s=0.25, overhead_s=0.125), 1), []
    (server,), (worker,) = made.server_sites, made.worker_sites

    def serve():
        server.notify(0)  # there at 0.375
        yield from server.busy(0)
        server.notify(0)  # and at 0.5
        yield from server.receive(until=9.0)
        answer(server, 0)

    def take():
        worker.watch({0})
        yield from worker.compute(computing([]), 1)
        ends.append((worker.now(), worker.abandoned))
        message = yield from worker.receive()
        ends.append((worker.now(), message.arrived_s))

    made.runs = [serve(), take()]
    made.run()
    assert ends == [(0.5, True), (9.5, 9.375)]


def test_who_waits_for_a_time_that_is_past_does_not_wait():
    made, told = world(PLAIN, 1), []
    (server,), (worker,) = made.server_sites, made.worker_sites

    def look():
        told.append((yield from server.receive(until=2.0)))
        told.append((yield from server.receive(until=1.0)))
        message = yield from server.receive(until=3.0)
        told.append(message.arrived_s)
        server.put(message)
        told.append((yield from server.receive(until=1.0)).arrived_s)
        told.append(server.now())

    made.runs = [look(), later(worker, 2.0)]
    made.run()
    assert told == [None, None, 2.75, 2.75, 2.75]


def later(worker, seconds):
    """A worker that pushes after so many steps of 1 s."""
    for _ in range(int(seconds)):
        yield from worker.compute(computing([]), 1)
    push(worker, 0)


def test_who_waits_in_vain_is_told_once_and_then_all_is_over():
    made, told = world(PLAIN, 1), []
    (server,) = made.server_sites

    def stubborn():
        while True:
            told.append((yield from server.receive(None)))

    made.runs = [stubborn(), iter(())]
    with pytest.raises(Stalled, match="1 virtual processes wait for what nobody sends"):
        made.run()
    assert told == [None]


def test_what_is_on_its_way_from_the_dead_and_to_them_arrives():
    """So a rest comes, even beside a long message."""
    network = Network(latency_s=0.25, eager_limit_B=1000)
    made, rested = world(network, 2), []
    (server,), (dying, other) = made.server_sites, made.worker_sites
    made.step_timer = lambda worker, step: math.inf
    made.rest = lambda: rested.append(made.cluster.time) or made._going.clear()

    def die():
        push(dying, 0)
        yield from dying.compute(computing([]), 1)

    def serve():
        answer(server, 0)
        yield from server.rest(None)

    made.runs = [serve(), die(), saying(other, [])]
    made.run()
    assert dying.is_dead
    assert rested == [0.75]
    assert len(dying.inbox) == len(server.inbox) == 1
