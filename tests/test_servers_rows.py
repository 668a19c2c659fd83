"""Sparse pushes and pulls: the updates of dense ones, in as many bytes as rows are touched."""

from itertools import pairwise

import numpy as np
import pytest
from server_runs import EVERY, Finished, prepare, served

from mpisgd import cli
from mpisgd.commands.replay import replay
from mpisgd.data import load
from mpisgd.experiment.experiment import Experiment
from mpisgd.servers.messages import HEADER_B
from mpisgd.servers.roles import Builder
from mpisgd.servers.rows import NUMBER_B, Layout, Rows
from mpisgd.store.reader import read
from mpisgd.values.errors import UsageError

SHAPES = {"first": (2, 2), "table": (5, 3), "last": (4,)}
SIZE = 23
BAG = {
    "model": "bag", "hidden": "4", "data": "documents", "dtype": "float32", "rate": 1.0,
    "batch": 3, "straggler": "exponential",
}  # fmt: skip
WAYS = [{"push": "sparse"}, {"pull": "sparse"}, {"push": "sparse", "pull": "sparse"}]
BOTH = WAYS[2]


def mask(rows):
    """Which of the flat parameters are in those rows, or in none."""
    table = np.zeros((5, 3), bool)
    table[rows] = True
    return np.concatenate([np.ones(4, bool), table.ravel(), np.ones(4, bool)])


@pytest.mark.parametrize("low", range(SIZE))
def test_a_shard_has_its_part_of_the_rows_wherever_it_is_cut(low):
    for high in range(low + 1, SIZE + 1):
        layout = Layout(SHAPES, "table", slice(low, high))
        for rows in ([], [0], [1, 3], [4], [0, 1, 2, 3, 4]):
            numbers = np.array(rows, np.int64)
            wanted = np.flatnonzero(mask(rows)[low:high])
            assert np.array_equal(layout.elements(numbers), wanted)
            here = layout.here(numbers)
            assert np.array_equal(layout.elements(here), wanted)
            nothing = np.flatnonzero(mask([])[low:high]).size
            for row in rows:
                touched = layout.elements(np.array([row])).size > nothing
                assert (row in here) == touched
            assert here.size <= layout.most_rows


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("way", [(True, False), (False, True), (True, True)], ids=str)
def test_a_request_says_what_it_was_given(dtype, way):
    shard = slice(6, 15)  # from inside row 0 to inside row 3
    layout = Layout(SHAPES, "table", shard)
    rows = Rows(lambda inputs: inputs, (layout,), np.dtype(dtype), *way)
    own, following = np.array([0, 2, 4]), np.array([1, 2])
    gradient = np.where(mask(own), np.arange(SIZE), 0)[shard].astype(dtype)
    payload = rows.request(0, gradient, own, following)
    assert payload.dtype == dtype
    assert payload.size <= rows.most(0)
    read = rows.read(0, payload)
    dense = np.zeros(9, dtype)
    dense[slice(None) if read.at is None else read.at] = read.gradient
    assert np.array_equal(dense, gradient)
    assert (read.at is None) != way[0]
    expected = np.flatnonzero(mask(following)[shard]) if way[1] else None
    assert np.array_equal(read.wanted, expected)
    numbers = 2 + 2 * way[0] + 2 * way[1]
    elements = 4 if way[0] else 9
    assert payload.nbytes == numbers * NUMBER_B + elements * gradient.itemsize
    assert not rows.read(0, rows.request(0, None, own, following)).gradient.size


def bag(ranks: int, **changes: object) -> Finished:
    return served(ranks, **(BAG | {"data_samples": 120} | changes))


@pytest.fixture(autouse=True, scope="module")
def few_words():
    """So many words that batches touch a few of them only."""
    patch = pytest.MonkeyPatch()
    patch.setattr("mpisgd.data.synthetic.WORDS", 900)
    yield
    patch.undo()


@pytest.mark.parametrize(("name", "options"), EVERY, ids=str)
def test_updates_are_those_of_dense_messages_to_the_bit(name, options):
    """Where messages take no time, so that all come in the same order."""
    common = {"algorithm": name, "steps": 8, "servers": 3, "ema": 0.9, "weight_decay": 0.01}
    whole = bag(8, **common, **options)
    for way in WAYS:
        if "prefetch" in options and "pull" in way:
            continue
        run = bag(8, **common, **options, **way)
        assert np.array_equal(run.parameters, whole.parameters)
        for column in ("update", "worker", "step", "version_read", "used", "samples"):
            assert np.array_equal(run.column(column), whole.column(column))


@pytest.mark.parametrize(
    "more",
    [
        {"reads": "consistent"}, {"cut": "layers", "servers": 2}, {"push": "layerwise"},
        {"colocated": True}, {"optimiser": "rmsprop", "clip": 0.1}, {"dtype": "float64"},
    ],
    ids=str,
)  # fmt: skip
def test_synchronous_bits_are_those_of_dense_messages_on_any_network(more):
    common = {"algorithm": "backup", "backups": 0, "steps": 6, "servers": 3, "network": "lab"}
    common |= {"step_time_s": 1e-3}
    whole, run = (bag(7, **(common | way | more)) for way in ({}, BOTH))
    assert np.array_equal(run.parameters, whole.parameters)
    assert run.time_s < whole.time_s


def test_what_travels_is_counted():
    """The header, two counts and numbers, rows and all that is no embedding."""
    run = bag(2, algorithm="async", steps=5, **BOTH)
    (worker,) = run.virtual_servers.workers
    (server,) = run.virtual_servers.servers
    shapes = worker.model.shapes
    rest = sum(np.prod(shape) for name, shape in shapes.items() if name != worker.model.embedding)
    touched = [worker.rows.of(worker.batch(step)[0]).size for step in range(1, 7)]
    pushed = [HEADER_B + 16 + 8 * (own + following) + 4 * (own * 4 + rest)
              for own, following in pairwise(touched)]  # fmt: skip
    answered = [HEADER_B + 4 * (following * 4 + rest) for following in touched[1:5]]
    whole = HEADER_B + server.parameters.nbytes
    assert run.column("pushed_B").tolist() == pushed
    assert run.column("answered_B").tolist() == [*answered, whole]
    dense = bag(2, algorithm="async", steps=5)
    assert set(dense.column("pushed_B")) == set(dense.column("answered_B")) == {whole}
    assert max(pushed + answered) < whole / 3


@pytest.mark.parametrize("more", [{}, {"prefetch": True, "push": "sparse"}], ids=str)
def test_a_batch_is_read_once_for_its_rows_and_its_gradient(more, monkeypatch):
    _, run = prepare(3, **(BAG | {"data_samples": 120} | (more or BOTH)), algorithm="async",
                     servers=2, steps=8)  # fmt: skip
    (worker,) = run.virtual_servers.workers
    read, inner = [], type(worker.dataset).batch

    def batch(dataset, indices):
        read.append(tuple(indices.tolist()))
        return inner(dataset, indices)

    monkeypatch.setattr(type(worker.dataset), "batch", batch)
    run.virtual_servers.run()
    assert len(read) >= 8
    assert len(set(read)) == len(read)


def test_a_run_replays_to_its_bits_though_it_had_few_rows():
    experiment, run = prepare(
        7, **(BAG | BOTH), data_samples=120, algorithm="async", servers=3, steps=10,
        network="lab", step_time_s=1e-3,
    )  # fmt: skip
    run.virtual_servers.run()
    assert np.array_equal(replay(experiment, run.pushes), run.parameters)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"algorithm": "async", "prefetch": True, "pull": "sparse"},
            "--prefetch: not with --pull sparse: .*next batch.* begins before they come",
        ),
        (
            {"algorithm": "backup", "requeue": True, "pull": "sparse"},
            "--requeue: not with --pull sparse: .*only the answer says which batch",
        ),
        ({"algorithm": "minibatch", "push": "sparse"}, "minibatch has none"),
    ],
)
def test_what_cannot_go_together_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        Experiment.read(options)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_model_without_an_embedding_is_refused(way):
    experiment = Experiment.read({"algorithm": "async", "model": "mlp"} | way)
    flag = next(iter(way))
    with pytest.raises(UsageError, match=f"--{flag} 'sparse': --model mlp has no embedding"):
        Builder(experiment.resolved(3, 1437), load("digits"))


@pytest.mark.parametrize("policy", ["async", "softsync --group 2 --prefetch"])
def test_a_run_that_was_saved_and_resumed_is_the_uninterrupted_one(policy, tmp_path, monkeypatch):
    for variable in cli.BLAS_VARIABLES:  # main sets them: put them back
        monkeypatch.setenv(variable, "1")
    pull = "" if "prefetch" in policy else "--pull sparse"
    words = (
        f"train --virtual 5 --algorithm {policy} --push sparse {pull} --model bag --hidden 4 "
        "--data documents --data-samples 90 --batch 3 --network lab --checkpoint-every 2 --lr 0.5"
    ).split()
    ends = []
    for name, lengths in (("whole", [8]), ("parts", [4, 8])):
        output = str(tmp_path / f"{name}.h5")
        for number, steps in enumerate(lengths):
            again = ["--resume", "auto"] if number else []
            assert cli.main([*words, "--steps", str(steps), "--output", output, *again]) == 0
        with read(output) as run:
            ends.append((run.summary["parameters_sha256"], run.updates["pushed_B"].tolist()))
    assert ends[0] == ends[1]
