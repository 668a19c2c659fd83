"""Parameters that come layer by layer: what is stale, and by how much, over the depth of a net."""

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from server_runs import LAYERS, prepare, served

from mpisgd.commands.replay import replay
from mpisgd.experiment.experiment import Experiment
from mpisgd.servers.roles import shards_of_layers
from mpisgd.values.errors import UsageError

DEEP = LAYERS | {"hidden": "16,16,16,16,16", "cut": "layers", "servers": 6, "algorithm": "async"}
PULLED = DEEP | {"push": "layerwise", "pull": "layerwise"}
WORKERS = 10
SETTLED = 5  # steps of a worker, after which all have their rhythm


def settled(run, server):
    """Columns of /updates: the used gradients of a shard, from each worker's sixth step on."""
    pushes = run.pushes
    chosen = (pushes["server"] == server) & (pushes["used"] == 1) & (pushes["step"] > SETTLED)
    return {name: column[chosen] for name, column in pushes.items()}


def staleness(run):
    """The mean of each shard, from the first layers to the last."""
    return np.array([settled(run, server)["staleness"].mean() for server in range(6)])


@cache
def uneven():
    """Ten workers of unequal steps, which read and push layer by layer."""
    return served(6 + WORKERS, **PULLED, steps=60, straggler="lognormal:0.3")


def read_and_pushed(widths):
    """Shares of a step at which each layer is read and its gradient is there, by multiply-adds."""
    products = [a * b for a, b in pairwise(widths)]
    total = 3 * sum(products) - products[0]
    read = np.cumsum([0, *products[:-1]]) / total
    behind = [p + 2 * sum(products[:i]) - products[0] for i, p in enumerate(products)]
    pushed = 1 - np.array(behind) / total
    return read, pushed


def test_whole_reads_are_as_stale_in_all_layers():
    """Where letters and layers take no time: the sum law, workers - 1."""
    for push in ("whole", "layerwise"):
        run = served(6 + WORKERS, **DEEP, push=push, steps=40, straggler="exponential")
        np.testing.assert_allclose(staleness(run), WORKERS - 1, rtol=0.05)


def test_staleness_falls_with_depth_as_the_time_between_read_and_push():
    """Bottom: workers - 1, for it is read when the gradient before leaves. Above: in proportion."""
    run = uneven()
    features = run.virtual_servers.workers[0].model.widths
    read, pushed = read_and_pushed(features)
    found = staleness(run)
    assert found[0] == pytest.approx(WORKERS - 1, rel=0.02)
    np.testing.assert_allclose(found, (WORKERS - 1) * (pushed - read), rtol=0.1)
    assert (np.diff(found) < 0).all()


def test_what_is_read_at_the_start_is_a_third_as_stale_at_the_top():
    """Read before the forward pass, pushed right behind it: the share of the step before that."""
    run = served(6 + WORKERS, **PULLED | {"pull": "start"}, steps=60, straggler="lognormal:0.3")
    _, pushed = read_and_pushed(run.virtual_servers.workers[0].model.widths)
    found = staleness(run)
    np.testing.assert_allclose(found, (WORKERS - 1) * pushed, rtol=0.05)
    assert 0.3 < found[-1] / found[0] < 0.5


def test_what_is_not_stale_was_missed():
    """Between two gradients of one worker all others push once: before its read, or behind it."""
    for server in range(6):
        rows = settled(uneven(), server)
        own = [np.sort(rows["update"][rows["worker"] == worker]) for worker in range(WORKERS)]
        others = np.mean([np.diff(updates).mean() - 1 for updates in own])
        assert others == pytest.approx(WORKERS - 1, rel=0.02)


def test_one_worker_alone_is_never_stale():
    run = served(7, **PULLED, steps=12)
    whole = served(7, **DEEP, steps=12)
    assert not run.column("staleness").any()
    assert np.array_equal(run.parameters, whole.parameters)


@pytest.mark.parametrize("network", [{}, {"network": "lab"}])
@pytest.mark.parametrize(("push", "pull"), [("whole", "start"), ("layerwise", "layerwise")])
def test_synchronous_bits_do_not_depend_on_when_layers_are_read(push, pull, network):
    common = DEEP | {"algorithm": "backup", "backups": 0, "steps": 6, "straggler": "exponential"}
    common |= network | {"step_time_s": 1e-3}
    whole = served(9, **common)
    assert np.array_equal(served(9, **common, push=push, pull=pull).parameters,
                          whole.parameters)  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [{}, {"algorithm": "softsync", "group": 3}, {"algorithm": "backup", "backups": 2},
     {"algorithm": "timeout", "timeout_s": 4e-4}, {"requeue": True},
     {"servers": 3}, {"pull": "start"}],
    ids=str,
)  # fmt: skip
def test_a_replay_has_the_same_bits(options):
    changes = PULLED | {"network": "lab"} | {"step_time_s": 1e-3} | options
    experiment, run = prepare(12, **changes, steps=12, straggler="exponential")
    run.virtual_servers.run()
    assert np.array_equal(replay(experiment, run.pushes), run.parameters)
    assert run.virtual_servers.servers[0].used >= run.virtual_servers.servers[0].goal


def test_one_server_is_read_as_ever():
    common = LAYERS | {"algorithm": "async", "steps": 10, "straggler": "exponential"}
    whole = served(5, **common)
    for pull in ("start", "layerwise"):
        pulled = served(5, **common, pull=pull)
        assert whole.rows == pulled.rows
        assert np.array_equal(pulled.parameters, whole.parameters)


@pytest.mark.parametrize("pull", ["start", "layerwise"])
def test_waiting_for_layers_is_waiting(pull):
    """On a network each of a step's times is counted once."""
    run = served(9, **PULLED | {"pull": pull}, network="lab", step_time_s=1e-3, steps=10)
    for _, step, row in run.steps:
        parts = row["compute_s"] + row["wait_s"] + row["poll_s"]
        assert parts == pytest.approx(row["step_s"], rel=1e-9), step
        if step > 1:
            assert row["compute_s"] < 1.5e-3
            assert row["wait_s"] > 0.5e-3


def test_shards_of_layers_are_cut_nowhere_else():
    shapes = {"a.weight": (4, 6), "a.bias": (6,), "b.weight": (6, 6), "c.x": (2,), "c.y": (3,)}
    assert shards_of_layers(shapes, 3) == [slice(0, 30), slice(30, 66), slice(66, 71)]
    assert shards_of_layers(shapes, 2) == [slice(0, 30), slice(30, 71)]
    assert shards_of_layers(shapes, 1) == [slice(0, 71)]
    with pytest.raises(UsageError, match="at most one a layer: 3"):
        shards_of_layers(shapes, 4)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"prefetch": True}, "--prefetch"), ({"reads": "consistent"}, "--reads 'consistent'"),
     ({"algorithm": "backup", "stale": "abandon"}, "--stale 'abandon'"),
     ({"algorithm": "minibatch"}, "--pull 'layerwise': minibatch has none")],
)  # fmt: skip
def test_what_layerwise_pulls_cannot_go_with(options, said):
    with pytest.raises(UsageError, match=said) as refusal:
        Experiment.read({"algorithm": "async", "pull": "layerwise"} | options)
    assert "\n" not in str(refusal.value)


def test_a_model_that_wants_all_parameters_at_once_is_refused():
    with pytest.raises(UsageError, match=r"--pull 'layerwise'.*--model quadratic"):
        prepare(4, algorithm="async", pull="layerwise", servers=2)
