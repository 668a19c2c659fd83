"""Ways to read and write with servers: layer by layer, consistently, ahead of the answer."""

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from server_runs import EVERY, LAYERS, TINY, Finished, combined, prepare, served
from virtual_runs import virtual

from mpisgd.commands.replay import replay
from mpisgd.experiment.experiment import Experiment

SLOW = "lab"  # a network on which a shard of LAYERS takes a while, compared with a step of 1 ms
WAYS = [
    {"push": "layerwise"},
    {"reads": "consistent"},
    {"push": "layerwise", "reads": "consistent"},
]
PREFETCHED = [(name, options) for name, options in EVERY if "prefetch" in options]


def layered(ranks: int, **changes: object) -> Finished:
    """A run of four layers on a network that takes time."""
    return served(ranks, **(LAYERS | {"network": SLOW, "step_time_s": 1e-3} | changes))


def read_versions(run: Finished) -> list[set[float]]:
    """The versions of all shards at which each gradient was computed."""
    versions: dict[tuple[float, float], set[float]] = defaultdict(set)
    for row in run.rows:
        versions[row["worker"], row["step"]].add(row["version_read"])
    return list(versions.values())


@pytest.mark.parametrize(("name", "options", "way"), combined(EVERY, WAYS), ids=str)
def test_a_replay_has_the_same_bits(name, options, way):
    experiment, run = prepare(
        8, algorithm=name, steps=12, servers=3, straggler="exponential",
        **(LAYERS | {"network": SLOW, "step_time_s": 1e-3} | options | way),
    )  # fmt: skip
    run.virtual_servers.run()
    assert np.array_equal(replay(experiment, run.pushes), run.parameters)
    if "reads" in way:
        assert all(len(versions) == 1 for versions in read_versions(run))


@pytest.mark.parametrize("servers", [1, 2, 4])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_synchronous_bits_do_not_depend_on_the_way(servers, way):
    common = {"algorithm": "backup", "backups": 0, "servers": servers, "steps": 8}
    common["straggler"] = "exponential"
    whole = layered(4 + servers, **common)
    assert np.array_equal(layered(4 + servers, **common, **way).parameters, whole.parameters)


def test_layers_at_the_top_are_updated_while_lower_ones_are_computed():
    common = {"algorithm": "backup", "backups": 0, "servers": 3, "steps": 5, "step_time_s": 1.0}
    whole, pushed = (layered(7, push=push, **common) for push in ("whole", "layerwise"))
    for update in range(1, 6):
        top, bottom = (pushed.column("arrived_s", server=s, update=update).max() for s in (2, 0))
        assert top + 0.1 < bottom  # of the second that a step takes
        top, bottom = (whole.column("arrived_s", server=s, update=update).max() for s in (2, 0))
        assert top == pytest.approx(bottom, abs=0.01)


def test_pushing_layers_hides_the_time_of_all_letters_but_the_last():
    """Four equal layers; the letters of the upper three leave while the others are computed."""
    common = {"algorithm": "backup", "backups": 0, "servers": 4, "steps": 10, "hidden": "64,64,64"}
    common |= {"step_time_s": 4e-3}
    whole, pushed = (layered(6, push=push, **common).time_s for push in ("whole", "layerwise"))
    assert pushed < 0.9 * whole


def test_one_shard_leaves_when_all_of_it_is_there():
    common = {"algorithm": "async", "steps": 10, "straggler": "exponential"}
    whole, pushed = (layered(5, push=push, **common) for push in ("whole", "layerwise"))
    for name in ("update", "worker", "step", "version_read"):
        assert np.array_equal(pushed.column(name), whole.column(name))
    assert pushed.time_s == pytest.approx(whole.time_s)
    assert np.array_equal(pushed.parameters, whole.parameters)


def test_work_is_given_up_between_layers():
    """Shard 2 has its part of a gradient that shards 0 and 1 never get."""
    run = layered(
        9, algorithm="backup", backups=3, stale="abandon", push="layerwise", servers=3, steps=60,
        straggler="exponential", step_time_s=1.0,
    )  # fmt: skip
    samples = defaultdict(dict)
    for row in run.rows:
        samples[row["worker"], row["step"]][row["server"]] = row["samples"]
    parts = {tuple(found.get(server, 0) > 0 for server in range(3)) for found in samples.values()}
    assert {(True, True, True), (False, False, False), (False, False, True)} <= parts
    assert not any(low and not high for low, _, high in parts)


def test_independent_shards_are_read_at_different_versions():
    run = layered(
        8, algorithm="async", servers=3, steps=20, push="layerwise", straggler="exponential"
    )
    assert max(map(len, read_versions(run))) > 1


@pytest.mark.parametrize(("name", "options"), EVERY, ids=str)
def test_consistent_shards_are_one_server_cut_in_pieces(name, options):
    """Where letters take no time: the same gradients in the same updates, the same bits."""
    common = {"algorithm": name, "steps": 15, "straggler": "exponential", **options}
    one = served(7, **common)
    many = served(9, servers=3, reads="consistent", **common)
    assert np.array_equal(one.parameters, many.parameters)
    decided = ("update", "worker", "step", "version_read", "staleness", "used")
    for server in range(3):
        for column in decided:
            assert np.array_equal(many.column(column, server=server), one.column(column)), column


def test_a_server_that_follows_stops_with_the_first():
    """Whoever is asked to stop."""
    for asked in range(3):
        _, run = prepare(8, algorithm="async", steps=3000, servers=3, reads="consistent")
        run.virtual_servers.server_sites[asked].asked_to_stop = True
        run.virtual_servers.run()
        versions = {server.version for server in run.virtual_servers.servers}
        assert len(versions) == 1
        assert versions.pop() < 20


def test_one_prefetching_worker_is_sgd_with_gradients_one_update_old():
    experiment = Experiment.read(
        TINY | {"algorithm": "stale", "staleness": 1, "ramp": 0, "steps": 40}
    )
    emulated = virtual(experiment, 1)
    run = served(2, algorithm="async", prefetch=True, steps=40)
    assert np.array_equal(run.parameters, emulated.parameters[0])
    assert run.column("staleness", used=1).tolist() == [0] + 39 * [1]


def test_prefetch_in_synchronous_updates_makes_them_one_update_old():
    experiment = Experiment.read(
        TINY | {"algorithm": "stale", "staleness": 1, "ramp": 0, "steps": 20}
    )
    emulated = virtual(experiment, 4).parameters[0]
    run = served(5, algorithm="softsync", prefetch=True, steps=20, straggler="exponential")
    np.testing.assert_allclose(run.parameters, emulated, rtol=1e-12)
    assert set(run.column("staleness", used=1)[4:]) == {1}


@pytest.mark.parametrize("straggler", ["7:5x", "exponential"])
def test_prefetch_adds_a_round_of_all_workers_to_the_staleness(straggler):
    """2 N - 1 on average, at any speeds: a gradient is read two of its worker's turns before."""
    run = served(9, algorithm="async", prefetch=True, steps=200, straggler=straggler)
    assert run.column("staleness", used=1).mean() == pytest.approx(15, rel=0.02)


def test_prefetch_hides_the_time_of_letters():
    """A step takes as long as its gradient, where without it takes both letters too."""
    common = {"algorithm": "async", "steps": 20, "hidden": "64,64", "step_time_s": 4e-3}
    waited, hidden = (layered(2, prefetch=p, **common).time_s for p in (False, True))
    assert waited > 1.2 * 20 * 4e-3
    assert hidden == pytest.approx(20 * 4e-3, rel=0.05)


@pytest.mark.parametrize(("name", "options"), PREFETCHED, ids=str)
def test_rows_of_prefetched_steps_are_complete_and_in_order(name, options):
    run = served(6, algorithm=name, steps=12, straggler="exponential", **options)
    for rank in range(1, 6):
        steps = [(step, row) for where, step, row in run.steps if where == rank]
        assert [step for step, _ in steps] == list(range(1, len(steps) + 1))
        times = [(row["start_s"], row["start_s"] + row["step_s"]) for _, row in steps]
        for (_, end), (start, _) in pairwise(times):
            assert end == pytest.approx(start)
        for step, row in steps:
            told = run.column("used", worker=rank - 1, step=step)
            assert row["used"] == (told.max() if len(told) else 0)
