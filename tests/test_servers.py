"""The laws of parameter servers, in virtual time."""

import numpy as np
import pytest
from server_runs import EVERY, TINY, Finished, prepare, served
from virtual_runs import virtual

from mpisgd.algorithms import OPTIONS
from mpisgd.algorithms.policies import POLICIES
from mpisgd.commands.replay import replay
from mpisgd.experiment.experiment import Experiment
from mpisgd.servers.roles import shards
from mpisgd.values.errors import UsageError


def serial(**changes: object) -> np.ndarray:
    """The parameters after the same steps of one averaging rank, which is serial SGD."""
    experiment = Experiment.read(TINY | {"algorithm": "minibatch", "steps": 40} | changes)
    return virtual(experiment, 1).parameters[0]


@pytest.mark.parametrize("rule", [{}, {"optimiser": "rmsprop"}, {"rate_schedule": "linear-tail"}])
def test_async_with_one_worker_is_serial_sgd(rule):
    assert np.array_equal(served(2, algorithm="async", steps=40, **rule).parameters, serial(**rule))


def test_a_shard_for_each_parameter_changes_nothing():
    features = serial().size
    many = served(1 + features, algorithm="async", steps=40, servers=features)
    assert np.array_equal(many.parameters, serial())


@pytest.mark.parametrize("workers", [1, 2, 3, 6])
def test_no_backups_is_the_mini_batch(workers):
    """To rounding: the sums are in another order. And to the bit however they are read and sent."""
    experiment = Experiment.read(TINY | {"algorithm": "minibatch", "steps": 40})
    minibatch = virtual(experiment, workers).parameters[0]
    found = []
    for changes in (
        {},
        {"servers": 2},
        {"straggler": "exponential"},
        {"servers": 3, "reads": "consistent", "straggler": "exponential"},
        {"servers": 3, "push": "layerwise"},
    ):
        ranks = workers + int(changes.get("servers", 1))
        synchronous = served(ranks, algorithm="backup", backups=0, steps=40, **changes)
        found.append(synchronous.parameters)
        assert (synchronous.column("staleness") == 0).all()
        assert (synchronous.column("used") == 1).all()
    np.testing.assert_allclose(found[0], minibatch, rtol=1e-12)
    assert all(np.array_equal(parameters, found[0]) for parameters in found)


def test_batches_of_different_sizes_count_by_their_samples():
    odd = {"data_samples": 50, "steps": 9}  # the last step of an epoch has 2 samples for 6 ranks
    minibatch = virtual(Experiment.read(TINY | {"algorithm": "minibatch"} | odd), 6).parameters[0]
    synchronous = served(7, algorithm="backup", backups=0, **odd)
    np.testing.assert_allclose(synchronous.parameters, minibatch, rtol=1e-12)


def test_softsync_of_one_is_async_and_of_all_is_synchronous():
    common = {"steps": 20, "straggler": "exponential"}
    every = served(7, algorithm="async", **common).parameters
    assert np.array_equal(served(7, algorithm="softsync", group=1, **common).parameters, every)
    synchronous = served(7, algorithm="backup", backups=0, **common).parameters
    assert np.array_equal(
        served(7, algorithm="softsync", group=6, **common).parameters, synchronous
    )
    assert not np.array_equal(every, synchronous)


@pytest.mark.parametrize(("name", "options"), EVERY, ids=str)
@pytest.mark.parametrize("servers", [1, 3])
def test_a_replay_has_the_same_bits(name, options, servers):
    experiment, run = prepare(
        6 + servers, algorithm=name, steps=15, servers=servers, straggler="exponential",
        requeue="prefetch" not in options, **options,
    )  # fmt: skip
    run.virtual_servers.run()
    assert np.array_equal(replay(experiment, run.pushes), run.parameters)


def test_clipped_gradients_replay_too():
    experiment, run = prepare(6, algorithm="async", steps=15, clip=0.5, straggler="exponential")
    run.virtual_servers.run()
    assert np.array_equal(replay(experiment, run.pushes), run.parameters)
    longest = max(np.linalg.norm(worker.gradient.flat) for worker in run.virtual_servers.workers)
    assert longest == pytest.approx(0.5)


def test_a_changed_record_replays_to_other_bits():
    experiment, run = prepare(7, algorithm="async", steps=15, straggler="exponential")
    run.virtual_servers.run()
    pushes = run.pushes
    pushes["update"][[4, 5]] = pushes["update"][[5, 4]]
    assert not np.array_equal(replay(experiment, pushes), run.parameters)


def test_a_record_without_a_column_that_it_needs_is_refused():
    experiment, run = prepare(4, algorithm="async", steps=6)
    run.virtual_servers.run()
    pushes = {name: values for name, values in run.pushes.items() if name != "version_read"}
    with pytest.raises(UsageError, match="/updates/version_read: is needed, and was not recorded"):
        replay(experiment, pushes)


@pytest.mark.parametrize(("name", "options"), EVERY, ids=str)
def test_accounts_add_up(name, options):
    run = served(8, algorithm=name, steps=30, straggler="pareto:1.2", servers=2, **options)
    workers = len(run.virtual_servers.workers)
    for server in run.virtual_servers.servers:
        used = [
            (row["worker"], row["step"])
            for row in run.rows
            if row["server"] == server.index and row["used"]
        ]
        assert len(set(used)) == len(used) == server.used >= server.goal
        sizes = np.unique(run.column("update", server=server.index, used=1), return_counts=True)
        assert sizes[0].tolist() == list(range(1, server.version + 1))
        if name == "timeout":
            assert sizes[1].max() <= workers
        else:
            assert set(sizes[1]) == {server.policy.group}
        versions = run.column("version_read", server=server.index)
        staleness = run.column("staleness", server=server.index)
        assert (versions >= 0).all()
        if not server.policy.stale:
            assert (run.column("staleness", server=server.index, used=1) == 0).all()
        assert (staleness >= 0).all()
        assert (run.column("waited_s", server=server.index) >= 0).all()
    _check_drops(run, name)
    told = sum(columns["used"] for _, _, columns in run.steps)
    assert told == len({(r["worker"], r["step"]) for r in run.rows if r["used"]})


def _check_drops(run: Finished, name: str) -> None:
    """A worker can be dropped once an update, so at most b of them are."""
    if name != "backup":
        return
    for server in run.virtual_servers.servers:
        rows = [r for r in run.rows if r["server"] == server.index and not r["used"]]
        ended = max(r["arrived_s"] for r in run.rows if r["server"] == server.index and r["used"])
        drops = sum(r["arrived_s"] <= ended for r in rows)
        assert drops <= 2 * server.version


def test_a_requeued_batch_is_used_once_an_epoch():
    """Six epochs of 10 steps: every worker's batches, each once, in order."""
    run = served(
        8, algorithm="backup", backups=1, steps=60, straggler="exponential", requeue=True,
        data_samples=280,
    )  # fmt: skip
    for worker in run.virtual_servers.workers:
        assert worker.batch_index == 1 + len(run.column("step", worker=worker.rank, used=1))
    without = served(8, algorithm="backup", backups=1, steps=60, straggler="exponential")
    dropped = [w.batch_index - 1 - len(without.column("step", worker=w.rank, used=1))
               for w in without.virtual_servers.workers]  # fmt: skip
    assert max(dropped) > 0


def test_equally_many_samples_make_equally_many_steps():
    for name in POLICIES:
        run = served(9, algorithm=name, steps=24, straggler="exponential")
        server = run.virtual_servers.servers[0]
        assert server.step == run.virtual_servers.evaluator.last["step"] == 24
        assert 0 <= server.used - 24 * server.policy.step < server.policy.group


def test_shards_are_cut_between_layers_where_that_is_near():
    assert shards([100, 10, 90], 2) == [slice(0, 100), slice(100, 200)]
    assert shards([1000, 1, 1], 2) == [slice(0, 501), slice(501, 1002)]
    for count in (1, 2, 5, 9):
        pieces = shards([3, 50, 2, 7, 11], count)
        assert [p.start for p in pieces[1:]] == [p.stop for p in pieces[:-1]]
        assert (pieces[0].start, pieces[-1].stop) == (0, 73)
        assert all(p.stop > p.start for p in pieces)


@pytest.mark.parametrize(
    ("ranks", "changes", "message"),
    [
        (4, {"algorithm": "backup", "backups": 3}, "--backups 3: fewer than the workers, 3"),
        (4, {"algorithm": "softsync", "group": 4}, "--group 4: at most the workers, 3"),
        (4, {"algorithm": "async", "servers": 4}, "--servers 4: leave a rank for a worker"),
        (3, {"algorithm": "async", "servers": 4, "colocated": True}, "--servers 4: at most one"),
        (99, {"algorithm": "async", "servers": 90}, "--servers 90: at most one a parameter"),
        (4, {"algorithm": "async", "group": 2}, "--group 2: async has none; softsync do"),
        (4, {"algorithm": "minibatch", "servers": 2}, "--servers 2: minibatch has none"),
        (4, {"algorithm": "backup", "prefetch": True}, "--prefetch: backup has none; async,"),
        (
            4,
            {"algorithm": "minibatch", "push": "layerwise"},
            "--push 'layerwise': minibatch has none",
        ),
        (4, {"algorithm": "async", "push": "layerwise", "clip": 1}, "--clip 1.0: --push layerwise"),
        (
            4,
            {"algorithm": "async", "prefetch": True, "push": "layerwise"},
            "--push 'layerwise': with --prefetch only whole",
        ),
        (
            4,
            {"algorithm": "async", "prefetch": True, "requeue": True},
            "--prefetch: not with --req",
        ),
        (
            4,
            {"algorithm": "async", "reads": "dirty"},
            "--reads 'dirty': one of independent, consist",
        ),
        (4, {"algorithm": "async", "straggler": "3:5x"}, "--straggler"),
        (4, {"algorithm": "backup", "timeout": 1}, "--timeout 1.0: backup has none; timeout do"),
    ],
)
def test_mistakes_are_one_line(ranks, changes, message):
    with pytest.raises(UsageError) as mistake:
        prepare(ranks, **changes)
    assert message in str(mistake.value)
    assert "\n" not in str(mistake.value)


def test_every_policy_has_its_options():
    assert set(POLICIES) <= set(OPTIONS)
    assert all("servers" in OPTIONS[name] for name in POLICIES)
