"""Letters on persistent requests, over a network in this process that is out to hurt."""

import numpy as np
import pytest

from allreduce.testing.loopback import World
from mpisgd.servers.messages import HEADER_B, Answer, Request
from mpisgd.worlds.channels import Channel, Notices

COUNT = 37


def ask(step: int) -> Request:
    return Request(step, 2, 3, 0.5, 0, 0, 0, 0, 1.5)


def answer(version: int) -> Answer:
    return Answer(version, 1, 0, 0, 0, 0, 0, 0, 0.0)


def pair(world: World, chunk: int, workers: int = 1) -> tuple[Channel, list[Channel]]:
    """A server's port, on rank 0, and those of its workers."""
    sides = {"now": lambda: 0.0, "deadline": 1e9, "chunk_octets": chunk}
    peers = [(rank, COUNT) for rank in range(1, workers + 1)]
    server = Channel(world.comm(0), peers, "f4", Request, sends=10, receives=300, **sides)
    others = [
        Channel(world.comm(rank), [(0, COUNT)], "f4", Answer, sends=300, receives=10, **sides)
        for rank in range(1, workers + 1)
    ]
    for channel in others:
        channel.expect()
    return server, others


def until(generator):
    """What the generator returns, whatever it takes."""
    while True:
        try:
            next(generator)
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize("eager", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("chunk", [HEADER_B, 100, 1 << 20])
def test_letters_come_whole_and_memory_is_given_back(eager, chunk):
    for seed in range(5):
        world = World(2, seed, eager=max(eager, 0.01))
        server, (worker,) = pair(world, chunk)
        server.send(0, answer(0), np.zeros(COUNT))
        for step in range(1, 8):
            assert until(worker.receive()).header == answer(step - 1)
            shard = None if step % 3 == 0 else np.full(COUNT, step)
            worker.send(0, ask(step), shard)
            message = until(server.receive())
            assert message.header == ask(step)
            assert (message.payload is None) == (shard is None)
            assert shard is None or np.array_equal(message.payload, shard)
            server.send(0, answer(step), np.full(COUNT, -step), answered=step < 7)
        message = until(worker.receive())
        assert np.array_equal(message.payload, np.full(COUNT, -7))
        server.close()
        worker.close()
        world.check_quiet()


@pytest.mark.parametrize("chunk", [HEADER_B, 100, 1 << 20])
def test_shorter_letters_come_as_they_are(chunk):
    """Of any length, one after the other, also none at all and nothing."""
    world = World(2, 3, eager=0.5)
    server, (worker,) = pair(world, chunk)
    sizes = [0, 1, 4, 5, 6, None, 36, COUNT, 2, COUNT, 0, None]
    server.send(0, answer(0), np.zeros(COUNT))
    for step, size in enumerate(sizes, 1):
        until(worker.receive())
        sent = None if size is None else np.full(size, step)
        worker.send(0, ask(step), sent)
        came = until(server.receive()).payload
        assert (came is None) == (sent is None)
        assert sent is None or np.array_equal(came, sent)
        server.send(0, answer(step), sent, answered=step < len(sizes))
        assert step < len(sizes) or until(worker.receive()).payload is None
    server.close()
    worker.close()
    world.check_quiet()


def test_a_sent_buffer_may_be_changed_at_once():
    world = World(2, eager=0.01)
    server, (worker,) = pair(world, 100)
    shard = np.arange(COUNT)
    server.send(0, answer(1), shard)
    shard[:] = 0
    assert np.array_equal(until(worker.receive()).payload, np.arange(COUNT))


def test_a_server_hears_everyone():
    world = World(6)
    server, workers = pair(world, 64, workers=5)
    for number in range(5):
        server.send(number, answer(0), np.zeros(COUNT))
    for channel in workers:
        until(channel.receive())
        channel.send(0, ask(1), np.zeros(COUNT))
    assert sorted(until(server.receive()).source for _ in range(5)) == list(range(5))
    assert server.moves == 5


def test_time_outs_and_silence_give_none():
    world = World(2)
    clock = iter(range(100))
    channel = Channel(
        world.comm(0), [(1, COUNT)], "f4", Request, lambda: next(clock), sends=0, receives=1,
        deadline=1e-9,
    )  # fmt: skip
    assert until(channel.receive(until=5)) is None
    assert 5 <= next(clock) < 10
    assert until(channel.receive()) is None


def test_a_bell_rings_once_for_each_time():
    world = World(2, eager=0.01)
    ring, hear = Notices(world.comm(0), [1], 5, True), Notices(world.comm(1), [0], 5, False)
    assert not hear.came(0)
    for _ in range(4):
        ring.rearm(0)
        while not hear.came(0):
            pass
        assert hear.came(0)
        hear.rearm(0)
    hear.close()
    ring.close()
    world.check_quiet()
