"""Plans on device memory, without a device: a double whose bytes come late, as a stream's do."""

import itertools
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from allreduce import arrays, lowering, phases, plan
from allreduce.algorithms import ALGORITHMS, build
from allreduce.evaluate import evaluate
from allreduce.plan import Plan
from allreduce.testing import device as device_double
from allreduce.testing.loopback import World

NAMES = (*ALGORITHMS, "hierarchical:ring")


def on_device(size: int, cuda_aware: bool, name: str, seed: int, *, out: bool, mean: bool) -> bool:
    """Whether plans on device memory give evaluate's bits, twice."""
    world = World(size, seed, octets=device_double.octets)
    values = list(np.random.default_rng(seed).standard_normal((size, 11)))
    given = [device_double.array(v) for v in values]
    results = [device_double.empty(11, np.dtype(float)) if out else None for _ in given]
    plans = [
        Plan(world.comm(r), build(name, size), *pair, mean=mean, cuda_aware=cuda_aware, chunks=2)
        for r, pair in enumerate(zip(given, results, strict=True))
    ]
    right = True
    for _ in range(2):
        for one in plans:
            one.start()
        world.drive(plans)
        wanted = [v.copy() for v in values]
        evaluate(build(name, size), wanted, mean=mean)
        found = [one.result.host.tobytes() for one in plans]  # done means done: no synchronising
        right = right and found == [w.tobytes() for w in wanted]
        if not out:
            values = wanted
    right = right and (
        not out or all((g.now() == v).all() for g, v in zip(given, values, strict=True))
    )
    for one in plans:
        one.close()
    world.check_quiet()
    return right


@pytest.mark.parametrize("cuda_aware", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_device_memory(name, cuda_aware):
    for size, (out, mean) in itertools.product((1, 2, 3, 5, 8), ((False, True), (True, False))):
        assert on_device(size, cuda_aware, name, size, out=out, mean=mean), (size, out, mean)


@pytest.mark.parametrize("where", ["host", "device", "cuda-aware"])
@pytest.mark.parametrize("name", NAMES)
def test_means_of_halves_have_the_bits_of_evaluate_everywhere(name, where):
    """Their sums do not fit."""
    size, device = 5, where != "host"
    world = World(size, 1, octets=device_double.octets)
    values = list(np.random.default_rng(2).uniform(2e4, 6e4, (size, 9)).astype(np.float16))
    given = [device_double.array(v) if device else v.copy() for v in values]
    options = {"mean": True, "chunks": 2, "cuda_aware": where == "cuda-aware"}
    plans = [
        Plan(world.comm(r), build(name, size), v, **options)  # type: ignore[arg-type]
        for r, v in enumerate(given)
    ]
    for one in plans:
        one.start()
    world.drive(plans)
    evaluate(build(name, size), values, mean=True)
    assert np.isfinite(values[0]).all()
    for array, wanted in zip(given, values, strict=True):
        assert (array.host if device else array).tobytes() == wanted.tobytes()
    for one in plans:
        one.close()


def test_a_piece_is_sent_while_the_next_is_still_copied_out():
    """And what comes is copied in while others are on their way."""
    world = World(2, 3, octets=device_double.octets)
    given = [device_double.array(np.full(8, float(rank))) for rank in range(2)]
    plans = [Plan(world.comm(r), build("butterfly", 2), v, chunks=4) for r, v in enumerate(given)]
    copied_when_sent, added_when_open = set(), set()
    for one in plans:
        one.start()
    waiting = list(plans)
    while waiting:
        world.look()
        waiting = [one for one in waiting if not one.test()]
        for one in waiting:
            stage = one._phases[one._position]
            if isinstance(stage, phases.Staged):
                copied_when_sent.add(len(stage._outgoing))
                added_when_open.add(sum(each < stage._receives for each in stage._open))
    assert copied_when_sent >= {4, 0}
    assert copied_when_sent & {1, 2, 3}
    assert added_when_open & {1, 2, 3}
    assert [array.now().tolist() for array in given] == [[1.0] * 8] * 2
    for one in plans:
        one.close()


def no_fence(monkeypatch) -> None:
    monkeypatch.setattr(arrays.Device, "fence", lambda self: None)


def no_fence_before_the_first_message(monkeypatch) -> None:
    lower = lowering.lower
    monkeypatch.setattr(plan, "lower", lambda *call: lower(*call)[1:])


def fence_before_the_work(monkeypatch) -> None:
    def begin(self) -> None:
        self._poll = self.memory.fence()
        for operation in self.operations:
            operation()

    monkeypatch.setattr(phases.Work, "begin", begin)


def fences_before_the_copies(monkeypatch) -> None:
    stage = phases.Staged.__init__

    def early(self, memory, requests, peers, copies, landings):
        polls = []
        first = [partial(lambda copy: (polls.append(memory.fence()), copy()), c) for c in copies]
        stage(self, memory, requests, peers, first, landings)
        self.memory = SimpleNamespace(fence=lambda: polls.pop(0) if polls else memory.fence())

    monkeypatch.setattr(phases.Staged, "__init__", early)


@pytest.mark.parametrize(
    ("fault", "cuda_aware"),
    [
        (no_fence, True),
        (no_fence, False),
        (no_fence_before_the_first_message, True),
        (fence_before_the_work, True),
        (fences_before_the_copies, False),
    ],
)
def test_the_device_double_sees_bytes_sent_too_early(fault, cuda_aware, monkeypatch):
    fault(monkeypatch)
    wrong = [
        not on_device(4, cuda_aware, name, seed, out=False, mean=False)
        for name in ("butterfly", "ring")
        for seed in range(5)
    ]
    assert all(wrong)
