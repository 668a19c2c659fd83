"""Plans have a stream of their own, on whichever device and thread; what is forgotten is seen."""

import sys
import threading
from contextlib import contextmanager
from typing import Any

import pytest

from allreduce import arrays
from allreduce.algorithms import build
from allreduce.arrays import Device
from allreduce.errors import BufferRefused
from allreduce.plan import Plan
from allreduce.testing import device as double
from allreduce.testing.device import runtime
from allreduce.testing.loopback import World


@pytest.fixture
def two_devices():
    double.settings.devices = 2
    yield
    double.settings.devices = 1
    runtime.recover()


def plans_are_right() -> bool:
    """Whether a ring of three on a device of its own, beside work of the caller, gives the sum."""
    world = World(3, 5, octets=double.octets)
    with double.cuda.Device(1):
        given = [double.zeros(5) for _ in range(3)]
        plans = [Plan(world.comm(r), build("ring", 3), a) for r, a in enumerate(given)]
        for array in given:
            array += 1
        for one in plans:
            one.start()
        on_a_thread(world, plans)
        found = [one.result.host.tolist() for one in plans]
        for one in plans:
            one.close()
        for array in given:
            array.now()
    return found == [[3.0] * 5] * 3


def on_a_thread(world: World, plans: list[Plan]) -> None:
    """On a thread, whose device is another at first."""
    failed: list[BaseException] = []

    def drive() -> None:
        try:
            world.drive(plans)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=drive)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def late_stream(monkeypatch: Any) -> None:
    monkeypatch.setattr(Device, "follow", lambda self: None)


def missing_fence(monkeypatch: Any) -> None:
    monkeypatch.setattr(Device, "fence", lambda self: None)


def wrong_device(monkeypatch: Any) -> None:
    @contextmanager
    def queueing(self):
        with self.stream:
            yield self.module

    monkeypatch.setattr(Device, "queueing", queueing)


@pytest.mark.parametrize("fault", [None, late_stream, missing_fence, wrong_device])
def test_a_plan_works_on_a_device_and_a_thread_of_its_own_and_each_fault_is_seen(
    fault, monkeypatch, two_devices
):
    if fault is None:
        assert plans_are_right()
        return
    fault(monkeypatch)
    try:
        right = plans_are_right()
    except (RuntimeError, ValueError):
        right = False
    assert not right


def test_an_error_of_the_device_is_told_by_its_name(two_devices):
    memory: Any = arrays.of(array := double.zeros(3))
    try:
        double.settings.fault = 1
        memory.add(array, array)
        poll = memory.fence()
        with pytest.raises(double.cuda.runtime.CUDARuntimeError, match="cudaErrorIllegalAddress"):
            _ = [poll() for _ in range(100)]
    finally:
        double.settings.fault = 0


class Foreign:
    """An array of another library on the device."""

    def __init__(self, array: Any):
        self.array = array

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.array.__cuda_array_interface__


def test_arrays_of_others_are_taken_as_cupys_without_a_copy(monkeypatch):
    array = double.zeros(4)
    taken = Foreign(array)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(BufferRefused, match="need CuPy"):
        arrays.flat(taken, writable=True)
    module = type(sys)("cupy")
    module.asarray = lambda given: given.array  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", module)
    flat = arrays.flat(taken, writable=True)
    assert arrays.overlap(flat, array)
    assert arrays.of(taken).number == array.device.id
