"""Mini-batch SGD with overlapped buckets: the bits of `minibatch`, in less time.

Laws: buckets tile the gradient; the cut changes no bit where an all-reduce adds each element in
the same order wherever it lies; what is not finite stops all ranks at its step; the seconds are
those of the model, never more than those of `minibatch` where messages cost nothing but bytes.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_runs import Finished, far, prepare, virtual

from allreduce.algorithms import build
from allreduce.network import Network
from allreduce.simulate import simulate
from mpisgd.algorithms.overlap import BUCKET
from mpisgd.data import load
from mpisgd.drivers import virtual as virtual_world
from mpisgd.experiment.building import algorithm_run, build_model, resolve_for
from mpisgd.experiment.experiment import Experiment
from mpisgd.predict.epoch import Bucket, overlap_cost
from mpisgd.training.buckets import MOST, borders
from mpisgd.training.mean import CONTROL
from mpisgd.training.parameters import Parameters
from mpisgd.training.worker import Worker
from mpisgd.values.errors import NotFinite, UsageError
from mpisgd.worlds.marks import Marks

DIGITS = load("digits", samples=53)
EXPERIMENT = Experiment(
    model="mlp", hidden=(24, 12), data="digits", batch=3, steps=11, rate=0.2, evaluate_every=0
)
OVERLAP: dict[str, Any] = {"algorithm": "minibatch-overlap"}
SIZES = (10, 10 * 12, 12, 12 * 24, 24, 24 * 64)  # elements, as backward has them
CUTS = (1, 600, 1200, 3000, 10**9)  # bytes: from a bucket for each array to one for all


# Buckets.

SHAPES = st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=12)


@given(shapes=SHAPES, elements=st.integers(1, 200), most=st.integers(1, 9))
def test_buckets_are_full_but_the_last_and_tile_the_gradient(shapes, elements, most):
    named = {str(i): tuple(shape) for i, shape in enumerate(shapes)}
    sizes = [math.prod(shape) for shape in shapes]
    lows = borders(named, elements, most)
    assert lows[-1] == 0
    assert set(lows) <= {sum(sizes[:i]) for i in range(len(sizes) + 1)}
    held = -np.diff([sum(sizes), *lows])
    assert (held[:-1] >= elements).all()
    assert len(lows) <= most
    if sum(sizes):
        assert (held > 0).all()
    for low, high in zip(lows, [sum(sizes), *lows], strict=False):
        starts = [sum(sizes[:i]) for i in range(len(sizes)) if sizes[i]]
        if low and sum(sizes) <= elements * most:  # without its last array it was not full
            assert high - min([start for start in starts if start > low] + [high]) < elements


@pytest.mark.parametrize("bucket", CUTS)
def test_each_bucket_starts_when_its_last_element_is_final(bucket):
    _, run = prepare(EXPERIMENT, 1, dataset=DIGITS, **OVERLAP, bucket_bytes=bucket)
    worker, started = run.workers[0], []
    plan = worker.site.plan

    def watched(source: np.ndarray, *more: Any) -> Any:
        pending, number = plan(source, *more), len(plans)
        plans.append(source)
        start = pending.start

        def noted() -> None:
            started.append(number)
            start()

        pending.start = noted  # type: ignore[method-assign]
        return pending

    plans: list[np.ndarray] = []
    worker.site.plan = watched  # type: ignore[method-assign]
    buckets = worker.buckets(bucket)
    assert sum(part.size for part in plans) == sum(SIZES) + CONTROL
    assert all(np.shares_memory(part, worker.gradient.buffer) for part in plans)
    for low in (*buckets.lows[:-1], 0):
        buckets.ready(low + 1)
        before = len(started)
        buckets.ready(low)
        assert len(started) == before + (1 if low else 0)
    buckets.start()
    assert started == list(range(len(plans)))
    assert plans[-1].ctypes.data == worker.gradient.extra.ctypes.data


def test_the_signals_lie_beside_the_last_bucket():
    parameters = Parameters({"a": (3, 2), "b": (4,)}, "float64", 2, leading=True)
    parameters.buffer[:] = np.arange(12)
    assert parameters.extra.tolist() == [0, 1]
    assert parameters["b"].tolist() == [8, 9, 10, 11]
    assert parameters.like().leading


# The numbers.

ANY_CUT = ("tree", "butterfly", "halving-doubling", "hierarchical")
BY_PLACE = ("ring", "double-tree")  # the order of sums depends on the place


def both(ranks: int, **options: Any) -> tuple[Finished, Finished]:
    bucket = options.pop("bucket_bytes")
    plain = virtual(EXPERIMENT, ranks, dataset=DIGITS, **options)
    return plain, virtual(
        EXPERIMENT, ranks, dataset=DIGITS, **options, **OVERLAP, bucket_bytes=bucket
    )


@pytest.mark.parametrize("allreduce", ANY_CUT)
@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_it_is_minibatch_bit_for_bit_however_it_is_cut(ranks, allreduce):
    """53 samples: some steps have batches of several sizes, on 8 ranks some have none."""
    plain = virtual(EXPERIMENT, ranks, dataset=DIGITS, allreduce=allreduce, ema=0.9)
    sizes = [plain.workers[0].sampler.batch_sizes(step) for step in range(1, 12)]
    assert ranks == 1 or any(len(set(step)) > 1 for step in sizes)
    for bucket in (1, 1200, 10**9):
        run = virtual(
            EXPERIMENT, ranks, dataset=DIGITS, allreduce=allreduce, ema=0.9, **OVERLAP,
            bucket_bytes=bucket,
        )  # fmt: skip
        assert np.array_equal(run.parameters, plain.parameters)
        assert np.array_equal(run.rows[0].evaluations[11][0], plain.rows[0].evaluations[11][0])


@pytest.mark.parametrize("allreduce", BY_PLACE)
def test_elsewhere_it_is_minibatch_but_for_rounding(allreduce):
    plain, run = both(5, allreduce=allreduce, bucket_bytes=600, dtype="float64")
    assert far(run.parameters, plain.parameters) < 1e-12
    assert np.ptp(run.parameters, axis=0).max() == 0
    plain, run = both(5, allreduce=allreduce, bucket_bytes=600)
    assert not np.array_equal(run.parameters, plain.parameters)


@pytest.mark.parametrize("model", ["mnist-cnn", "resnet8", "torch:mlp", "torch:cnn"])
def test_deep_models_in_both_tiers(model):
    """Convolutions, both normalisations, residual blocks; hooks of PyTorch's backward pass."""
    if model.startswith("torch:"):
        pytest.importorskip("torch", reason="PyTorch is not installed")
    options: dict[str, Any] = {"model": model, "hidden": None, "batch": 2, "steps": 2}
    tiny = load("digits", samples=7)
    plain = virtual(EXPERIMENT, 3, dataset=tiny, **options)
    run = virtual(EXPERIMENT, 3, dataset=tiny, **options, **OVERLAP, bucket_bytes=2000)
    assert len(borders(run.workers[0].model.shapes, 500)) > 1
    assert np.array_equal(run.parameters, plain.parameters)
    first = run.rows[0].steps[1]
    assert first["flight_start_s"] - first["start_s"] < first["compute_s"]


def test_one_bucket_is_minibatch_in_time_too():
    plain, run = both(3, bucket_bytes=10**9, network="titanx-20g")
    for step, columns in plain.rows[1].steps.items():
        assert run.rows[1].steps[step] == pytest.approx(columns)


@pytest.mark.parametrize("slow", [0, 1, 2])
@pytest.mark.parametrize("place", [-1, 0])
def test_what_is_not_finite_stops_all_ranks_at_its_step(place, slow):
    """One NaN, in the first bucket or in the last; whoever comes late must not be blamed."""
    options: dict[str, Any] = {**OVERLAP, "bucket_bytes": 600}

    def seconds(rank: int, step: int) -> float:
        return 2.0 if rank == slow else 1.0

    clock, run = prepare(EXPERIMENT, 3, dataset=DIGITS, step_time=seconds, **options)
    for worker in run.workers:
        poison(worker, 1, 5, place)
    with pytest.raises(NotFinite, match=r"on rank 1 at step 5$"):
        clock.run([algorithm_run(run.experiment, worker) for worker in run.workers])
    assert {worker.step for worker in run.workers} == {5}
    before = virtual(EXPERIMENT, 3, dataset=DIGITS, steps=4, **options)
    assert np.array_equal(run.parameters, before.parameters)


def poison(worker: Worker, rank: int, step: int, place: int) -> None:
    """The gradient of `rank` at `step` gets one NaN."""
    gradient = worker.model.gradient

    def poisoned(parameters, inputs, targets, result, *told):
        loss = gradient(parameters, inputs, targets, result, *told)
        if (worker.rank, worker.step) == (rank, step):
            result.flat[place] = np.nan
        return loss

    worker.model.gradient = poisoned  # type: ignore[method-assign]


# The seconds.

STEP_S = 1.0


def timed(monkeypatch: Any, network: Network, ranks: int, **options: Any) -> Finished:
    """A run on `network` with steps of a second, unless `step_time` says more."""
    monkeypatch.setattr(virtual_world, "virtual_network", lambda experiment: network)
    step_time = options.pop("step_time", lambda rank, step: STEP_S)
    return virtual(EXPERIMENT, ranks, dataset=DIGITS, step_time=step_time, **options)


def end(run: Finished) -> float:
    return max(rows.evaluations[run.workers[0].last][1] for rows in run.rows)


def parts(bucket: int) -> list[Bucket]:
    """When each bucket is ready in a step of STEP_S, and its bytes, read off the model."""
    experiment = resolve_for(EXPERIMENT, DIGITS, 1)
    model = build_model(experiment, DIGITS, 0, 1)
    gradient, parameters = Parameters(model.shapes), Parameters(model.shapes)
    marks = Marks()
    model.gradient(parameters, *DIGITS.batch(np.arange(3)), gradient, marks.progress, marks.ready)
    ready = {low: share for share, _, lows in marks.pieces() for low in lows}
    lows = borders(model.shapes, bucket / 4)
    highs = [gradient.size, *lows]
    signals = [0] * (len(lows) - 1) + [4 * CONTROL]  # the last bucket carries them
    return [
        Bucket(STEP_S * min(share for at, share in ready.items() if at <= low and share > 0)
               if low else STEP_S, 4 * (high - low) + more)
        for low, high, more in zip(lows, highs, signals, strict=False)
    ]  # fmt: skip


def in_turn(buckets: Sequence[Bucket], bandwidth: float) -> float:
    """Two ranks: each bucket crosses the link once, in turn, from when it is ready."""
    free = 0.0
    for bucket in buckets:
        free = max(free, bucket.ready_s) + bucket.nbytes / bandwidth
    return free


@pytest.mark.parametrize("bandwidth", [3e3, 1e4, 1e5])
@pytest.mark.parametrize("bucket", CUTS)
def test_predicted_simulated_and_closed_form_agree(monkeypatch, bucket, bandwidth):
    network = Network("test", bandwidth_Bps=bandwidth, progress="perfect")
    run = timed(monkeypatch, network, 2, **OVERLAP, bucket_bytes=bucket)
    buckets = parts(bucket)
    closed = in_turn(buckets, bandwidth)
    schedule = build("butterfly", 2)
    predicted = overlap_cost(
        STEP_S, STEP_S, buckets,
        lambda nbytes: float(simulate(schedule, int(nbytes), network, itemsize=4).max()), 2,
    )  # fmt: skip
    assert end(run) == pytest.approx(11 * closed, rel=1e-12)
    assert predicted.step_s == pytest.approx(closed, rel=1e-12)


@pytest.mark.parametrize("ranks", [4, 8])
@pytest.mark.parametrize("bucket", CUTS)
def test_the_model_is_near_where_buckets_share_ports(monkeypatch, bucket, ranks):
    """It lets buckets cross in turn; here their rounds mix."""
    alpha, rounds = 0.01, ranks.bit_length() - 1
    network = Network("test", alpha, 2e4, progress="perfect")
    run = timed(monkeypatch, network, ranks, **OVERLAP, bucket_bytes=bucket)
    buckets = parts(bucket)
    predicted = overlap_cost(
        STEP_S, STEP_S, buckets, lambda nbytes: rounds * (alpha + nbytes / 2e4), ranks
    )
    print(bucket, ranks, end(run) / 11, predicted.step_s)
    assert end(run) / 11 == pytest.approx(predicted.step_s, rel=0.06)


def test_what_backward_hides_costs_nothing(monkeypatch):
    """As in Fig. 4 of the DaSGD paper: 6p + 6c for minibatch, here 6p + 6c of the last bucket."""
    network = Network("test", bandwidth_Bps=1e5, progress="perfect")
    buckets = parts(600)
    last_s, whole_s = buckets[-1].nbytes / 1e5, sum(part.nbytes for part in buckets) / 1e5
    assert last_s < whole_s
    plain = timed(monkeypatch, network, 2, steps=6)
    run = timed(monkeypatch, network, 2, steps=6, **OVERLAP, bucket_bytes=600)
    assert end(plain) == pytest.approx(6 * (STEP_S + whole_s))
    assert end(run) == pytest.approx(6 * (STEP_S + last_s))
    for columns in run.rows[0].steps.values():
        flown = columns["flight_end_s"] - columns["flight_start_s"]
        assert columns["wait_s"] == pytest.approx(last_s)
        assert columns["flight_start_s"] - columns["start_s"] == pytest.approx(buckets[0].ready_s)
        assert flown == pytest.approx(STEP_S - buckets[0].ready_s + last_s)


@settings(deadline=None, max_examples=15)
@given(
    ranks=st.integers(2, 6),
    bucket=st.integers(1, 9000),
    allreduce=st.sampled_from(["tree", "butterfly", "halving-doubling"]),
    bandwidth=st.sampled_from([2e3, 1e4, 1e6]),
    uneven=st.booleans(),
)
def test_it_is_never_slower_where_messages_cost_only_bytes(
    ranks, bucket, allreduce, bandwidth, uneven
):
    network = Network("test", bandwidth_Bps=bandwidth, progress="perfect")

    def seconds(rank: int, step: int) -> float:
        return STEP_S + (((rank * 5 + step * 3) % 7) / 7 if uneven else 0.0)

    with pytest.MonkeyPatch.context() as patch:
        options: dict[str, Any] = {"allreduce": allreduce, "steps": 4, "step_time": seconds}
        plain = timed(patch, network, ranks, **options)
        run = timed(patch, network, ranks, **options, **OVERLAP, bucket_bytes=bucket)
    assert end(run) <= end(plain) * (1 + 1e-9)
    assert np.array_equal(run.parameters, plain.parameters)


def test_many_small_buckets_pay_for_their_latencies(monkeypatch):
    """Why a bucket has a least size: with a network of latency alone each cut costs, or hides."""
    network = Network("test", latency_s=0.1, overhead_s=0.05, progress="looks")
    ends = [
        end(timed(monkeypatch, network, 4, steps=3, **OVERLAP, bucket_bytes=bucket))
        for bucket in (1, 10**9)
    ]
    assert ends[0] > ends[1]


# What can be asked for.


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bucket": "0"}, "--bucket '0': a size"),
        ({"bucket": "1.5x"}, "--bucket '1.5x': a size"),
        ({"bucket": "nan"}, "--bucket 'nan': a size"),
        ({"bucket": True}, "--bucket True: a size"),
        ({"bucket": "-1K"}, "--bucket '-1K': a size"),
        ({"clip": 1.0}, "--clip 1.0: minibatch-overlap sends a gradient before"),
        ({"algorithm": "local", "bucket": 9}, "--bucket 9: local has none; minibatch-overlap do"),
    ],
)
def test_mistakes_are_one_line(options, said):
    with pytest.raises(UsageError) as mistake:
        Experiment.read(OVERLAP | options)
    assert said in str(mistake.value)
    assert "\n" not in str(mistake.value)


def test_sizes_are_those_of_messages():
    assert Experiment.read(OVERLAP | {"bucket": "1M"}).bucket_bytes == 1 << 20
    assert Experiment.read(OVERLAP | {"bucket": "1MB"}).bucket_bytes == 10**6
    assert Experiment.read(OVERLAP | {"bucket": 77}).bucket_bytes == 77
    assert resolve_for(Experiment.read(OVERLAP), DIGITS, 2).bucket_bytes == BUCKET
    assert resolve_for(EXPERIMENT, DIGITS, 2).bucket_bytes is None


def test_deep_nets_have_no_more_buckets_than_tags():
    layers = (4,) * 80
    run = virtual(
        EXPERIMENT, 2, dataset=DIGITS, hidden=layers, steps=2, **OVERLAP, bucket_bytes=1
    )  # fmt: skip
    shapes = run.workers[0].model.shapes
    assert len(shapes) == 162
    assert 2 < len(borders(shapes, 1)) <= MOST
