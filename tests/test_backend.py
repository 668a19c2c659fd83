"""`--backend cupy`: which device, where data lie, and that nothing in a step waits."""

import sys
import time
from typing import Any

import numpy as np
import pytest

from allreduce import arrays
from allreduce.testing import device as double
from allreduce.testing.device import runtime
from mpisgd.data import Dataset
from mpisgd.data.device import Resident, Sent, there
from mpisgd.mpi import devices
from mpisgd.training.gradient import clip
from mpisgd.training.report import GRADIENT, LOSS, PARAMETERS, Report
from mpisgd.worlds.mpi import LOOK_BESIDE, CommunicatorSite
from mpisgd.worlds.step import Counters


@pytest.fixture(autouse=True)
def cupy(monkeypatch):
    """The double, where CuPy is looked for."""
    before = dict(vars(double.settings))
    monkeypatch.setitem(sys.modules, "cupy", double)
    yield
    vars(double.settings).update(before)
    runtime.recover()
    runtime.local.device = 0


@pytest.mark.parametrize(("rank", "asked", "chosen"), [(0, "auto", 0), (5, "auto", 2), (1, 2, 2)])
def test_a_rank_takes_its_own_device_or_the_one_that_is_named(rank, asked, chosen, monkeypatch):
    double.settings.devices = 3
    monkeypatch.setattr(devices, "local_rank", lambda: rank)
    memory: Any = devices.memory("cupy", asked)
    assert memory.number == runtime.local.device == chosen
    assert devices.memory("numpy") is arrays.HOST


@pytest.mark.parametrize(("share", "kind"), [(1, Sent), (8, Resident)])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_batches_are_those_of_the_host_whether_the_data_fit_or_not(share, kind, scale):
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 9, (50, 4), np.uint8)
    targets = rng.integers(0, 3, 50, np.int32)
    parts = inputs[:40], targets[:40], inputs[40:], targets[40:]
    dataset = Dataset("d", *parts, 3, "", "", scale)
    memory: Any = devices.memory("cupy")
    free, total = double.cuda.Device().mem_info
    double.settings.memory = total - free + share * (inputs.nbytes + targets.nbytes)
    here = there(dataset, memory)
    assert type(here) is kind
    double.settings.memory = total
    indices = [rng.permutation(40)[:7] for _ in range(4)]
    for number, chosen in enumerate(indices):
        found = here.batch(chosen)
        if number < 2:  # the last comes as nobody has said
            here.ahead(indices[number + 1])  # type: ignore[attr-defined]
        wanted = dataset.batch(chosen)
        for one, other in zip(
            (*found, *here.test(2, 9)), (*wanted, *dataset.test(2, 9)), strict=True
        ):
            assert (one.dtype, one.now().tobytes()) == (other.dtype, other.tobytes())
    assert there(dataset, arrays.HOST) is dataset


def test_a_report_waits_for_nothing_and_says_what_was_queued():
    memory: Any = devices.memory("cupy")
    report = Report(memory)
    flat = double.array(np.ones(5, np.float32))
    waits = double.counts["synchronize"]
    told = []
    for value in (1.0, np.nan, 2.0):
        report.begin()
        report.finite(GRADIENT, flat)
        flat[2:3] = value
        report.finite(GRADIENT, flat[:3])
        report.put(LOSS, double.array(np.array(value)))
        done = report.send()
        while not done():
            pass
        told.append(report.read())
        report.finite(PARAMETERS, flat)
    assert double.counts["synchronize"] == waits
    assert told[0] == (1.0, True, True)
    assert np.isnan(told[1][0])
    assert told[1][1:] == (False, True)
    assert told[2] == (2.0, False, False)  # what was not finite still is not
    assert report.parameters()


def test_clipping_waits_for_nothing():
    flat = double.array(np.full(4, 3.0, np.float32))
    waits = double.counts["synchronize"]
    clip(flat, 2.0)
    assert double.counts["synchronize"] == waits
    assert flat.now().tolist() == [1.0] * 4


@pytest.mark.parametrize("threaded", [False, True])
def test_looks_beside_a_device_are_bounded(threaded):
    looked: list[float] = []
    site: Any = CommunicatorSite.__new__(CommunicatorSite)
    site.thread = object() if threaded else None
    site._in_flight, site._counters = [None], Counters()
    site._look = lambda: looked.append(time.perf_counter())
    began, asked = time.perf_counter(), []

    def done() -> bool:
        asked.append(None)
        return len(asked) > 3 and time.perf_counter() > began + 100 * LOOK_BESIDE

    site._look_until(done)
    assert site._counters.polls == len(looked)
    assert len(looked) <= (time.perf_counter() - began) / LOOK_BESIDE + 1
    assert bool(looked) != threaded
