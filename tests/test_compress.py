"""Averages of part of a vector: nothing is lost for good, all ranks end alike."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from test_laws import DIGITS, NETWORK
from test_plan import NAMES
from test_wire import fly
from virtual_runs import QUADRATIC, virtual

from allreduce.algorithms import allgather, build
from allreduce.compress import compressor, known, memory, number, priced
from allreduce.errors import Mismatch
from allreduce.evaluate import evaluate
from allreduce.plan import Plan
from allreduce.testing.loopback import World
from allreduce.wire import Wire
from mpisgd.training.worker import Worker
from mpisgd.values.errors import NotFinite

SHAPES = ((6, 20), (4, 9), (5,))
COUNT, RAW = 164, 3  # elements of these, and the last, that travel as they are
PARTS = ("topk:0.1", "powersgd:2")
EVERY = pytest.mark.parametrize("name", PARTS)


def wired(name: str) -> Wire:
    return Wire(name, COUNT - RAW, COUNT, SHAPES)


def drawn(ranks: int, seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).standard_normal((ranks, COUNT)).astype("f"))


def averaged(
    name: str, vectors: list[np.ndarray], kept: list[np.ndarray], algorithm: str = "ring"
) -> np.ndarray:
    """The mean that all ranks hold; `kept` as they remember it."""
    mine = [vector.copy() for vector in vectors]
    evaluate(build(algorithm, len(mine)), mine, mean=True, wire=wired(name), errors=kept)
    assert {vector.tobytes() for vector in mine} == {mine[0].tobytes()}
    return mine[0]


def begun(name: str, ranks: int) -> list[np.ndarray]:
    return [memory(wired(name), COUNT, "f") for _ in range(ranks)]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 13, 32])
def test_a_gather_brings_each_segment_to_all_in_the_fewest_rounds_and_bytes(size):
    schedule = allgather(size)
    vectors = [np.where(np.arange(size) == rank, rank + 1, 0) for rank in range(size)]
    evaluate(schedule, vectors)
    assert all((vector == np.arange(1, size + 1)).all() for vector in vectors)
    assert len(schedule.rounds) == (size - 1).bit_length()
    sent = np.zeros(size, int)
    for transfers in schedule.rounds:
        np.add.at(sent, transfers["source"], transfers["high"] - transfers["low"])
    assert (sent == size - 1).all()


@EVERY
@pytest.mark.parametrize("size", [2, 3, 8])
def test_what_was_sent_and_what_is_left_is_what_there_was(name, size):
    kept, total, there = begun(name, size), np.zeros(COUNT), np.zeros(COUNT)
    for step in range(20):
        vectors = drawn(size, step)
        mean = averaged(name, vectors, kept)
        total, there = total + mean, there + np.mean(vectors, axis=0)
    left = np.mean([each[:COUNT] for each in kept], axis=0)
    assert np.abs(total + left - there).max() < 1e-5
    assert np.abs(left).max() > 0.5
    assert not left[-RAW:].any()
    assert np.abs(mean - np.mean(vectors, axis=0))[-RAW:].max() < 1e-6


def test_all_of_the_values_are_the_mean_and_so_is_a_rank_that_saves_nothing():
    vectors = drawn(5)
    for name in ("topk:1.0", "powersgd:6"):
        kept = begun(name, 5)
        assert np.allclose(averaged(name, vectors, kept), np.mean(vectors, axis=0), atol=1e-6)
        assert not np.any([each[:COUNT] for each in kept])


def test_matrices_whose_mean_is_of_that_rank_come_whole():
    rng = np.random.default_rng(2)
    vectors, common = drawn(3), [rng.standard_normal((rows, 2)) for rows in (6, 4)]
    for vector in vectors:
        vector[:120] = (common[0] @ rng.standard_normal((2, 20))).ravel()
        vector[120:156] = (common[1] @ rng.standard_normal((2, 9))).ravel()
    mean = averaged("powersgd:2", vectors, begun("powersgd:2", 3))
    assert np.allclose(mean, np.mean(vectors, axis=0), atol=1e-5)


def test_the_largest_values_of_each_rank_are_sent():
    vectors = [np.zeros(COUNT, "f") for _ in range(2)]
    vectors[0][:40] = np.linspace(1, 2, 40)
    vectors[1][20:60] = -np.linspace(3, 4, 40)
    mean, wanted = averaged("topk:0.1", vectors, begun("topk:0.1", 2)), np.zeros(COUNT)
    wanted[23:40] += vectors[0][23:40] / 2
    wanted[43:60] += vectors[1][43:60] / 2
    assert np.array_equal(mean, wanted.astype("f"))


@EVERY
def test_all_that_is_left_out_comes_in_time(name):
    """Each rank descends towards a point of its own; all come to the mean of these."""
    points, x, kept = drawn(4), np.zeros(COUNT, "f"), begun(name, 4)
    for k in range(300):
        rate = np.float32(0.1 * (1 - k / 300))
        x -= rate * averaged(name, [x - point for point in points], kept)
    assert np.abs(x - np.mean(points, axis=0)).max() < 0.03


def test_a_matrix_that_was_nothing_is_found_again():
    kept = begun("powersgd:2", 2)
    for vectors in ([np.zeros(COUNT, "f")] * 2, drawn(2)):
        mean = averaged("powersgd:2", vectors, kept)
    assert np.linalg.matrix_rank(mean[:120].reshape(6, 20)) == 2


class Together:
    """The same plan on all ranks, and what it has to lead to."""

    def __init__(self, world: World, name: str, algorithm: str, tag: int, chunks: int):
        self.name, self.algorithm = name, algorithm
        self.mine = [np.zeros(COUNT, "f") for _ in range(world.size)]
        self.kept, self.wanted_kept = begun(name, world.size), begun(name, world.size)
        schedule = build(algorithm, world.size)
        self.plans = [
            Plan(world.comm(r), schedule, v, mean=True, tag=tag, chunks=chunks, wire=wired(name),
                 error=self.kept[r])
            for r, v in enumerate(self.mine)
        ]  # fmt: skip

    def begin(self, seed: int) -> None:
        for mine, drawing in zip(self.mine, drawn(len(self.mine), seed), strict=True):
            mine[:] = drawing
        self.wanted = averaged(self.name, self.mine, self.wanted_kept, self.algorithm)
        for plan in self.plans:
            plan.start()

    def check(self) -> None:
        assert {each.tobytes() for each in self.mine} == {self.wanted.tobytes()}
        assert [e.tobytes() for e in self.kept] == [k.tobytes() for k in self.wanted_kept]


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_plans_in_flight_together_and_started_again_have_the_bits_of_evaluate(size):
    world = World(size, seed=size, eager=(0.0, 0.5, 1.0)[size % 3])
    choices = itertools.product(PARTS, ("ring", "tree", "double-tree"), (1, 3))
    groups = [Together(world, *c[:2], tag, c[2]) for tag, c in enumerate(choices)]
    fly(world, groups, range(2))


def test_ranks_that_leave_out_unlike_shares_are_told():
    world = World(2)
    plans = [
        Plan(world.comm(rank), build("ring", 2), np.ones(9, "f"), wire=Wire(name))
        for rank, name in enumerate(["topk:0.1", "topk:0.2"])
    ]
    for plan in plans:
        plan.start()
    with pytest.raises(Mismatch, match="wire"):
        world.drive(plans)
    for plan in plans:
        plan.close()
    names = ("float32", "int8", "topk:0.1", "topk:0.2", "powersgd:1", "powersgd:2")
    assert len({number(Wire(name)) for name in names}) == len(names)


@EVERY
@pytest.mark.parametrize("algorithm", NAMES)
@pytest.mark.parametrize("itemsize", [4, 8])
def test_what_travels_is_what_is_priced(name, algorithm, itemsize):
    schedule, dtype = build(algorithm, 5), np.dtype(f"f{itemsize}")
    target, kept = np.zeros(COUNT, dtype), memory(wired(name), COUNT, dtype)
    coder = compressor(wired(name), schedule, 0, target, kept, True)
    priced_as, carried = priced(wired(name), schedule, COUNT, itemsize)
    assert carried.nbytes == sum(stage.vector.nbytes for stage in coder.stages)
    assert len(priced_as.rounds) == sum(len(stage.schedule.rounds) for stage in coder.stages)


def test_bytes_are_as_stated():
    pairs = 17  # 0.1 of 161, and not less
    nbytes = 4 * (pairs * 8 + RAW * 4)
    assert priced(wired("topk:0.1"), build("ring", 4), COUNT, 4)[1].nbytes == nbytes
    assert priced(wired("topk:1.0"), build("ring", 1), COUNT, 4)[1].nbytes == 4 * COUNT
    values = 2 * (6 + 20) + 2 * (4 + 9) + 5 + RAW
    assert priced(wired("powersgd:2"), build("ring", 4), COUNT, 4)[1].nbytes == 4 * values
    square = priced(Wire("powersgd:4"), build("ring", 4), 10_007, 4)[1].nbytes
    assert square == 4 * (4 * (100 + 100) + 7)


@pytest.mark.parametrize(
    "text",
    ["topk", "topk:", "topk:0", "topk:1.1", "topk:nan", "topk:x", "powersgd", "powersgd:0",
     "powersgd:1.5", "powersgd:-1", "powersgd:²", "float32:1", "int8:", "", ":", None],
)  # fmt: skip
def test_nonsense_has_no_spelling(text):
    with pytest.raises(ValueError, match=r".+"):
        known(text)


def test_spellings_of_one_number_are_one():
    assert {known(each) for each in ("topk:0.01", "topk:1e-2", "topk:.010")} == {"topk:0.01"}
    assert known("powersgd:04") == "powersgd:4"
    assert known("int8") == "int8"


# In training.


def run(name: str | None = None, ranks: int = 3, **options: Any) -> np.ndarray:
    experiment = replace(NETWORK, wire=name, momentum=0.0)
    return virtual(experiment, ranks, dataset=DIGITS, **options).parameters


AVERAGES: list[dict[str, Any]] = [
    {},
    {"algorithm": "minibatch-overlap", "bucket_bytes": 1},
    {"algorithm": "local", "tau": 3},
    {"algorithm": "slowmo", "tau": 3},
    {"algorithm": "diloco", "tau": 3},
    {"algorithm": "post-local", "tau": 3, "switch": 8},
    {"algorithm": "stale", "staleness": 1, "ramp": 0},
]


@pytest.mark.parametrize("options", AVERAGES, ids=lambda o: o.get("algorithm", "minibatch"))
def test_of_all_values_training_is_what_it_was_and_of_few_it_is_near(options):
    plain = run(**options)
    assert np.allclose(run("topk:1.0", **options), plain, rtol=0, atol=1e-12)
    for name in ("topk:0.2", "powersgd:2"):
        assert 0 < np.abs(run(name, **options) - plain).max() < 0.5


@pytest.mark.parametrize(("tau", "most"), [(1, 0.01), (5, 0.1)])
def test_of_few_values_a_quadratic_comes_to_the_same_place(tau, most):
    """By gradients, and by models, which travel as what they moved; of the way that it goes."""
    options: dict[str, Any] = {"steps": 300, "rate": 0.02, "batch": 240, "momentum": 0.5}
    experiment = replace(QUADRATIC, rate_schedule="linear-tail", **options)
    if tau > 1:
        experiment = replace(experiment, algorithm="local", tau=tau)
    begin = virtual(experiment, 4, steps=1, rate=0.0).mean
    whole = virtual(experiment, 4).mean
    few = virtual(experiment, 4, wire="topk:0.3").mean
    assert np.abs(few - whole).max() < most * np.abs(begin - whole).max()


@EVERY
def test_signals_come_whole_beside_gradients_of_which_most_is_left_out(name):
    def large(worker: Worker) -> Any:
        average = worker.mean(worker.gradient, in_place=True)
        for k in worker.steps():
            worker.gradient.flat[:] = 1e4
            if worker.rank == 2 and k == 4:
                worker._note(False)
            average.start()
            yield from average.wait()
            yield from worker.end_step()

    with pytest.raises(NotFinite, match="on rank 2 at step 4"):
        run(name, generator=large)


def test_an_algorithm_whose_ranks_keep_something_of_their_own_is_stopped():
    def keeping(worker: Worker) -> Any:
        average = worker.mean(worker.parameters)
        for _ in worker.steps():
            yield from worker.compute_gradient()
            worker.update(worker.gradient.flat)
            average.start()
            worker.merge(lambda own, mean, started, xi: None, (yield from average.wait()), None, 1)
            yield from worker.end_step()

    with pytest.raises(AssertionError, match="go on from it"):
        run("topk:0.5", generator=keeping)


def test_a_hundredth_takes_less_time_on_a_network_of_bytes(tmp_path):
    network = tmp_path / "bytes.toml"
    network.write_text(
        "latency_s = 0\noverhead_s = 0\nbandwidth_Bps = 1e6\nsum_s_per_B = 0\nlook_s = 0\n"
    )
    waits = {}
    for name in (None, "topk:0.1", "powersgd:1"):
        options: dict[str, Any] = {"network": str(network), "dtype": "float32"}
        experiment = replace(NETWORK, wire=name, allreduce="ring", **options)
        done = virtual(experiment, 4, dataset=DIGITS)
        rows, count = done.rows[0].steps, done.workers[0].parameters.size
        waits[name] = sum(row["wait_s"] for row in rows.values()) / len(rows)
    pairs = np.ceil(0.1 * count)
    assert waits["topk:0.1"] == pytest.approx(3e-6 * (8 * pairs + 12), rel=1e-6)
    assert waits["powersgd:1"] < waits[None] / 3
