"""Stopping, failing and dying with virtual servers: who learns of it, who is survived."""

import pytest
from server_runs import EVERY, LAYERS, combined, prepare, served

from allreduce.errors import Stalled
from mpisgd.values.errors import NotFinite

WAYS = [
    {},
    {"servers": 3},
    {"servers": 3, "reads": "consistent"},
    {"servers": 3, "push": "layerwise"},
]


def test_stop_and_not_finite_reach_everyone():
    for servers in (1, 2):
        with pytest.raises(NotFinite, match=r"worker \d at step \d"):
            served(4 + servers, algorithm="async", steps=3000, rate=1e3, servers=servers)
        _, run = prepare(4 + servers, algorithm="async", steps=3000, servers=servers)
        run.virtual_servers.worker_sites[1].asked_to_stop = True
        run.virtual_servers.run()
        assert all(
            server.stopping and server.version < 20 for server in run.virtual_servers.servers
        )
        assert all(worker.stopping for worker in run.virtual_servers.workers)


@pytest.mark.parametrize("way", WAYS[1:], ids=str)
def test_what_one_shard_learns_all_learn(way):
    """Layers of shard 2 overflow first, and only they: with independent shards nobody else sees."""
    _, run = prepare(7, algorithm="async", steps=3000, **(LAYERS | way))

    def spoil(worker):
        gradient = worker.model.gradient

        def spoilt(parameters, inputs, targets, into, progress, ready=None):
            def told(low):
                if worker.step == 5 and low <= worker.shards[2].start < worker.shards[2].stop:
                    into.flat[worker.shards[2].start] = float("nan")
                if ready is not None:
                    ready(low)

            return gradient(parameters, inputs, targets, into, progress, told)

        worker.model.gradient = spoilt

    spoil(run.virtual_servers.workers[2])
    with pytest.raises(NotFinite, match="worker 2 at step 5"):
        run.virtual_servers.run()
    assert all(server.version < 60 for server in run.virtual_servers.servers)


@pytest.mark.parametrize(("name", "options", "way"), combined(EVERY, WAYS), ids=str)
def test_dead_workers_are_survived_as_far_as_the_policy_allows(name, options, way):
    """Up to b of them with backups, all but the group with softsync, all but one else."""
    servers = way.get("servers", 1)
    run = served(
        6 + servers, algorithm=name, steps=20, straggler="0:die@3,4:die@7", **options, **way
    )
    assert [server.lost for server in run.virtual_servers.servers] == servers * [{0, 4}]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(
    ("options", "update", "needed"),
    [
        ({"algorithm": "backup", "backups": 1}, 3, 5),
        ({"algorithm": "backup", "backups": 1, "stale": "abandon"}, 3, 5),
        ({"algorithm": "softsync", "group": 5}, None, 5),
    ],
    ids=str,
)
def test_too_many_dead_workers_are_named(options, update, needed, way):
    """Once, by a server that says who does not answer."""
    servers = way.get("servers", 1)
    with pytest.raises(Stalled) as stall:
        served(6 + servers, steps=20, straggler="0-1:die@3", **options, **way)
    line = rf"server 0 waits for worker 0, 1 in vain: update {update or '[0-9]+'} needs {needed} "
    assert stall.match(line + "gradients, 4 have come")


def test_nobody_left_is_named_too():
    for name in ("async", "timeout"):
        with pytest.raises(Stalled, match="waits for worker 0, 1, 2 in vain"):
            served(4, algorithm=name, steps=20, straggler="0-2:die@3")
