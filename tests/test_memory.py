"""What trains works where the parameters lie: on a strict double of a device it gives NumPy's
numbers, and an array of the host among those of the device is refused, never converted."""

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from allreduce import arrays
from allreduce.algorithms import build as schedule
from allreduce.errors import AllreduceError
from allreduce.plan import Plan
from allreduce.testing import device
from allreduce.testing.loopback import World
from mpisgd.algorithms.merges import MERGES
from mpisgd.algorithms.slowmo import step_out
from mpisgd.checkpoint.state import copy_into, pack, unpack
from mpisgd.training.gradient import clip, finite, weigh
from mpisgd.training.lars import LARS
from mpisgd.training.mean import CONTROL, Mean
from mpisgd.training.optimisers import EMA, SGD, Decoupled, RMSProp
from mpisgd.training.parameters import Parameters

SIZE, STEPS = 11, 4
RNG = np.random.default_rng(5)
VALUES = RNG.standard_normal((STEPS + 3, SIZE)).astype(np.float32)


def both(work: Callable[[list[Any]], list[Any]]) -> None:
    """`work` on the rows of VALUES, here and on the device: the arrays it gives have equal bits."""
    here = work([row.copy() for row in VALUES])
    there = work([device.array(row) for row in VALUES])
    assert all(isinstance(array, device.ndarray) for array in there)
    for one, other in zip(here, there, strict=True):
        assert one.dtype == other.dtype
        assert one.tobytes() == other.now().tobytes()


OPTIMISERS: dict[str, Callable[[Any], Any]] = {
    "sgd": SGD,
    "decay": lambda like: SGD(like, weight_decay=0.1),
    "momentum": lambda like: SGD(like, momentum=0.9, weight_decay=0.1),
    "nesterov": lambda like: SGD(like, momentum=0.9, nesterov=True),
    "rmsprop": lambda like: RMSProp(like, weight_decay=0.1, epsilon=0.3),
    "lars": lambda like: LARS(like, momentum=0.9, weight_decay=0.1),
    "decoupled": lambda like: Decoupled(SGD(like, momentum=0.9), 0.1),
    "rmsprop-0": lambda like: RMSProp(like, momentum=0.0),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_optimisers(name):
    def work(rows: list[Any]) -> list[Any]:
        x, *gradients = rows
        optimiser = OPTIMISERS[name](x)
        for k, gradient in enumerate(gradients):
            optimiser.step(x, gradient, 0.1 / (k + 1))
        return [x, *optimiser.state().values()]

    both(work)


@pytest.mark.parametrize("warm_up", [False, True])
def test_the_moving_average(warm_up):
    def work(rows: list[Any]) -> list[Any]:
        ema = EMA(rows[0], 0.9, warm_up)
        for row in rows:
            ema.update(row)
        return [ema.average]

    both(work)


@pytest.mark.parametrize("merge", MERGES)
def test_merges(merge):
    def work(rows: list[Any]) -> list[Any]:
        MERGES[merge](*rows[:3], 0.3)
        return rows[:3]

    both(work)


@pytest.mark.parametrize(("beta", "alpha", "rate"), [(0.0, 1.0, 0.1), (0.7, 0.9, 0.1), (0.7, 1, 0)])
def test_the_outer_step(beta, alpha, rate):
    def work(rows: list[Any]) -> list[Any]:
        step_out(*rows[:3], rate, beta, alpha)
        return rows[:3]

    both(work)


def test_weighing_and_clipping():
    def work(rows: list[Any]) -> list[Any]:
        weigh(rows[0], 1.25)
        weigh(rows[1], 1.0)
        clip(rows[2], 0.5)
        clip(rows[3], 1e9)
        return rows[:4]

    both(work)


@pytest.mark.parametrize("value", [1.0, 3e38, np.inf, -np.inf, np.nan])
def test_what_is_finite(value):
    row = VALUES[0].copy()
    row[[3, 4]] = value
    assert finite(row) == finite(device.array(row)) == np.isfinite(value)


def test_parameters_and_states_go_there_and_back():
    shapes = {"a": (2, 3), "b": (4,)}
    there = Parameters(shapes, extra=2, memory=arrays.of(device.array(VALUES[0])))
    kept = there.like()
    assert isinstance(kept["a"], device.ndarray)
    assert kept.buffer.now().tolist() == [0] * 12
    kept.memory.put(kept.buffer, np.arange(12, dtype=np.float32))
    assert kept["b"].now().tolist() == [6, 7, 8, 9]
    assert kept.rows(3).shape == (3, 10)
    saved = unpack(pack({"flat": kept.flat, "step": 3}))
    assert (saved["flat"].tolist(), saved["step"]) == (list(range(10)), 3)
    copy_into({"flat": there.flat}, {"flat": saved["flat"]}, "it")
    assert there.flat.now().tolist() == list(range(10))


class Site:
    """Where a mean is a plan on the loopback."""

    def __init__(self, comm: Any, size: int):
        self.comm, self.size = comm, size

    def updating(self) -> Any:
        return nullcontext()

    def plan(self, buffer: Any, raw: Any = None, error: Any = None) -> Plan:
        self.pending = Plan(self.comm, schedule("ring", self.size), buffer, mean=True)
        return self.pending

    def wait(self, pending: Plan) -> Any:
        assert pending.test()
        yield from ()


@pytest.mark.parametrize("places", [0, 1, 3])
def test_a_mean_of_device_memory_with_its_signals_and_shares(places):
    shares, told, found = [2.0, 0.0, 1.0], [], []

    def hear(signals: np.ndarray) -> Any:
        told.append(signals.tolist())
        yield from ()

    world = World(3, 1, octets=device.octets)
    means = []
    for rank in range(3):
        worker: Any = SimpleNamespace(
            site=Site(world.comm(rank), 3), rank=rank, size=3, gradient=None, means=[],
            feedback=False, wire=None,
            parameters=None, equal=False, mean_gradient=False, read_signals=hear,
            signals=lambda own=rank: (own == 1, False, False),
        )  # fmt: skip
        memory = arrays.of(device.array(VALUES[0]))
        source = Parameters({"a": (SIZE,)}, extra=CONTROL + places, memory=memory)
        memory.put(source.flat, VALUES[rank])
        means.append(Mean(worker, source, keep_started=True))
    for mean, share in zip(means, shares, strict=True):
        mean.start(share)
    world.drive([mean.worker.site.pending for mean in means])  # type: ignore[attr-defined]
    for mean in means:
        steps = mean.wait()
        with pytest.raises(StopIteration) as end:
            next(steps)
        found.append(end.value.value.now())
    assert told == [[np.float32(1 / 3), 0, 0]] * 3
    np.testing.assert_allclose(found[0], (2 * VALUES[0] + VALUES[2]) / 3, rtol=1e-5)
    assert {one.tobytes() for one in found} == {found[0].tobytes()}
    assert [mean.started.now().tolist() for mean in means] == VALUES[:3].tolist()
    assert means[1].shares.tolist() == pytest.approx([[], [3.0], shares][min(places, 2)])


def test_nothing_of_the_host_is_taken_for_something_of_the_device():
    x, here = device.array(VALUES[0]), VALUES[1].copy()
    for refused in (
        lambda: SGD(x).step(x, here, 0.1),
        lambda: SGD(here).step(x, device.array(here), 0.1),
        lambda: EMA(x, 0.5).update(here),
        lambda: MERGES["convex"](x, here, here, 0.5),
        lambda: MERGES["overwrite"](x, here, here, 0.5),
        lambda: x + here,
        lambda: here + x,
        lambda: np.multiply(x, 2),
        lambda: np.asarray(x),
        lambda: finite([1.0]),
    ):
        with pytest.raises((TypeError, ValueError, AllreduceError)):
            refused()  # type: ignore[no-untyped-call]
