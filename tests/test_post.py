"""Letters of servers and workers in virtual time: when they come, and when nobody goes on."""

import math

import numpy as np
import pytest

from allreduce.errors import Stalled
from allreduce.network import Network
from mpisgd.worlds.post import Post

LATENCY, RATE, BYTES = 0.25, 1e6, 500_000
PLAIN = Network(latency_s=LATENCY, bandwidth_Bps=RATE)


def arrivals(network, messages=1, seed=0):
    """Seconds when letters come that are sent one after the other, each when the last has come."""
    post = Post(network, 2, seed)
    sender, taker = post.desk(0), post.desk(1)
    came: list[float] = []

    def send():
        for _ in range(messages):
            post.carry(0, taker, BYTES, lambda: taker.put("letter"))
            yield from sender.receive()

    def take():
        for _ in range(messages):
            yield from taker.receive()
            came.append(post.now)
            sender.put("next")

    sender.generator, taker.generator = send(), take()
    post.run()
    return came


def test_a_letter_takes_its_latency_and_its_bytes():
    assert arrivals(PLAIN) == pytest.approx([LATENCY + BYTES / RATE])
    assert arrivals(PLAIN.with_(bandwidth_Bps=math.inf)) == pytest.approx([LATENCY])
    assert arrivals(Network()) == [0.0]


def test_a_long_letter_shakes_hands_first():
    """To and fro once more, then the data: two more latencies."""
    assert arrivals(PLAIN.with_(eager_limit_B=BYTES)) == arrivals(PLAIN)
    long = PLAIN.with_(eager_limit_B=BYTES - 1)
    assert arrivals(long) == pytest.approx([3 * LATENCY + BYTES / RATE])


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


def test_who_waits_for_a_time_that_is_past_does_not_wait():
    post = Post(PLAIN, 1)
    desk = post.desk(0)
    told = []

    def look():
        yield from desk.sleep(2.0)
        told.append((yield from desk.receive(until=1.0)))
        desk.put("letter")
        told.append((yield from desk.receive(until=1.0)))
        told.append((yield from desk.receive(until=3.0)))

    desk.generator = look()
    post.run()
    assert told == [None, "letter", None]
    assert post.now == 3.0


def test_who_waits_in_vain_is_told_once_and_then_all_is_over():
    post = Post(PLAIN, 1)
    desk = post.desk(0)
    told = []

    def stubborn():
        while True:
            told.append((yield from desk.receive()))

    desk.generator = stubborn()
    with pytest.raises(Stalled, match="1 virtual processes wait for what nobody sends"):
        post.run()
    assert told == [None]
