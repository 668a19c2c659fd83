"""The double of a device is as strict as CuPy, and later: what would go wrong there does here."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from allreduce.testing import device
from allreduce.testing.device import runtime

ONES = np.ones(4)
STAND_IN = Path(device.__file__).parent.parent / "stand_in"


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before = dict(vars(device.settings))
    yield
    vars(device.settings).update(before)
    runtime.recover()


def until_done(event: device.Event) -> None:
    while runtime.event_query(event.ptr) == runtime.NOT_READY:
        pass


def test_work_comes_late_and_copies_leave_garbage_until_then():
    x = device.array(ONES)
    pinned = np.frombuffer(device.cuda.alloc_pinned_memory(32), float, 4)
    x.get(out=pinned, blocking=False)
    assert not (pinned == 1).any()
    event = device.Stream.null.record()
    until_done(event)
    assert (pinned == 1).all()
    pinned[:] = 2
    x.set(pinned, stream=device.Stream.null)
    pinned[:] = 3  # too early: it has not been read yet
    assert x.now().tolist() == [3] * 4
    pageable = np.full(4, 5.0)
    x.set(pageable, stream=device.Stream.null)
    pageable[:] = 6
    assert x.now().tolist() == [5] * 4


def test_streams_are_ordered_by_events_alone():
    early, late = device.Stream(non_blocking=True), device.Stream(non_blocking=True)
    device.settings.polls = 0
    x, y = device.zeros(4), device.zeros(4)
    x.now()
    for fenced in (False, True):
        with early:
            x.fill(7)
            event = early.record()
        with late:
            if fenced:
                late.wait_event(event)
            device.add(x, 1, out=y)
            assert y.now().tolist() == [8 if fenced else 1] * 4


def test_memory_whose_array_is_gone_is_used_again():
    other = device.Stream(non_blocking=True)
    x, y = device.array(ONES), device.zeros(4)
    device.Stream.null.synchronize()
    with other:
        y[...] = x
    x.fill(1)
    del x
    device.Stream.null.synchronize()
    other.synchronize()
    assert not (y.host == 1).any()


def test_what_is_refused_is_what_cupy_refuses():
    x = device.array(ONES)
    for mistake in (
        lambda: x + ONES,
        lambda: ONES + x,
        lambda: np.asarray(x),
        lambda: device.add(x, x, out=ONES),
        lambda: device.add(x, x, out=device.empty(4, np.int32)),
        lambda: device.add(x, x, out=device.empty(3)),
        lambda: x.__setitem__(slice(None), ONES),
        lambda: x.__setitem__(slice(None), device.ones(3)),
        lambda: x.set(ONES.astype("f4")),
        lambda: x.get(out=np.empty(3)),
        lambda: device.empty(3, "M8[s]"),
        lambda: device.sum(ONES),
    ):
        with pytest.raises((TypeError, ValueError)):
            mistake()


def test_arrays_streams_and_events_belong_to_a_device():
    device.settings.devices = 2
    here, stream, event = device.array(ONES), device.Stream(), device.Event()
    with device.cuda.Device(1):
        with pytest.raises(ValueError, match="array device = 0 while current = 1"):
            device.add(here, here)
        with pytest.raises(RuntimeError, match="does not match"):
            stream.use()
        with pytest.raises(device.cuda.runtime.CUDARuntimeError, match="InvalidResourceHandle"):
            event.record()
    with pytest.raises(device.cuda.runtime.CUDARuntimeError, match="InvalidDevice"):
        device.cuda.Device(2).use()


def test_the_first_error_stays_and_an_event_does_not_raise_it():
    device.settings.fault = 1
    x, event = device.array(ONES), device.Event()
    event.record()
    while not (status := runtime.event_query(event.ptr)) or status == runtime.NOT_READY:
        pass
    assert status == 700
    assert not event.done
    for call in (x.now, lambda: x + 1, lambda: device.empty(3), device.Stream.null.synchronize):
        with pytest.raises(device.cuda.runtime.CUDARuntimeError, match="cudaErrorIllegalAddress"):
            call()


def test_a_device_is_full_at_some_time():
    free, total = device.cuda.Device().mem_info
    device.settings.memory = total - free + 1000
    kept = device.empty(100)
    with pytest.raises(MemoryError, match="208 bytes"):
        device.empty(26)
    del kept
    assert device.empty(125).nbytes == 1000


def in_a_process(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(STAND_IN)} | variables
    command = [sys.executable, "-c", f"import numpy as np, cupy, ctypes\n{code}"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150)


READ = "x = cupy.ones(4); x.now(); print(ctypes.c_double.from_address(x.data.ptr).value)"


def test_the_host_cannot_read_its_addresses():
    assert in_a_process(READ).returncode < 0  # a signal
    assert in_a_process(READ, DEVICE_DOUBLE_AWARE="1").stdout == "1.0\n"


def test_it_stands_in_for_cupy_and_for_a_machine_without_a_device():
    code = "print(cupy.cuda.runtime.getDeviceCount())"
    assert in_a_process(code, DEVICE_DOUBLE_DEVICES="3").stdout == "3\n"
    assert "cudaErrorNoDevice" in in_a_process(code, DEVICE_DOUBLE_DEVICES="0").stderr
    own = (
        "import threading; s = cupy.cuda.get_current_stream(); x = cupy.ones(2)\n"
        "t = threading.Thread(target=s.synchronize); t.start(); t.join(); print(x.host[0] == 1)"
    )
    assert in_a_process(own).stdout == "True\n"
    assert in_a_process(own, CUPY_CUDA_PER_THREAD_DEFAULT_STREAM="1").stdout == "False\n"
