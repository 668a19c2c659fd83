"""Which device a rank works on, whether MPI may have its memory, and what is said in one line."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from allreduce.testing import device
from allreduce.testing.loopback import World
from mpisgd.bench.memory import Memory
from mpisgd.mpi import aware, devices
from mpisgd.mpi.aware import Awareness
from mpisgd.values.errors import UsageError

ERROR = device.cuda.runtime.CUDARuntimeError


@pytest.fixture(autouse=True)
def on_the_double(monkeypatch) -> Iterator[None]:
    before = dict(vars(device.settings))
    monkeypatch.setattr(devices, "import_module", lambda name: device)
    yield
    vars(device.settings).update(before)
    device.cuda.Device(0).use()


@pytest.mark.parametrize(
    ("chosen", "local", "number"), [(None, 0, 0), ("auto", 5, 1), ("1", 4, 1), (0, 3, 0)]
)
def test_a_rank_takes_its_device(chosen, local, number, monkeypatch):
    device.settings.devices = 2
    monkeypatch.setattr(devices, "local_rank", lambda: local)
    assert devices.module_of("cupy", chosen) is device
    assert device.cuda.runtime.getDevice() == number
    assert getattr(devices.memory("cupy", chosen), "number") == number  # noqa: B009
    assert devices.module_of("numpy") is np


def refuse(status: int) -> Any:
    def count() -> int:
        raise ERROR(status)

    return count


@pytest.mark.parametrize(
    ("status", "driver", "built", "said"),
    [
        (35, 0, 12090, "no NVIDIA driver on this machine"),
        (35, 12080, 13000, r"CuPy is for CUDA 13, the driver for 12 at most: .*\[cuda12\]"),
        (100, 12080, 12080, "no device is visible; see nvidia-smi and CUDA_VISIBLE_DEVICES"),
    ],
)
def test_why_there_is_no_device_is_one_line(status, driver, built, said, monkeypatch):
    for name, value in (
        ("getDeviceCount", refuse(status)),
        ("driverGetVersion", lambda: driver),
        ("runtimeGetVersion", lambda: built),
    ):
        monkeypatch.setattr(device.cuda.runtime, name, value)
    with pytest.raises(UsageError, match=said) as error:
        devices.module_of("cupy")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("raised", "driver", "said"),
    [
        (ModuleNotFoundError("cupy"), 13010, r"needs CuPy: install it: .*'\.\[cuda13\]'"),
        (ModuleNotFoundError("cupy"), 12040, r"needs CuPy: install it: .*'\.\[cuda12\]'"),
        (ModuleNotFoundError("cupy"), 0, "cuda12.*or cuda13"),
        (ImportError("libcudart.so.12: no\nsuch file"), 0, "cannot be imported: libcudart.so.12"),
    ],
)
def test_what_is_not_installed_is_named_with_the_extra_for_this_driver(
    raised, driver, said, monkeypatch
):
    def fail(name: str) -> None:
        raise raised

    monkeypatch.setattr(devices, "import_module", fail)
    monkeypatch.setattr(devices, "driver_version", lambda: driver)
    with pytest.raises(UsageError, match=said):
        devices.module_of("cupy")


def test_other_mistakes(monkeypatch):
    for words, said in (
        (("numpy", "1"), "--device '1': only with --backend cupy"),
        (("cupy", "1"), "--device '1': this rank sees 1: 0 to 0"),
        (("cupy", "x"), "--device 'x'"),
    ):
        with pytest.raises(UsageError, match=said):
            devices.module_of(*words)

    def broken(*_: Any) -> None:
        raise RuntimeError("CuPy failed to load libnvrtc.so.12: OSError\nmore")

    monkeypatch.setattr(device, "add", broken)
    with pytest.raises(UsageError, match=r"first kernel fails: RuntimeError: .*libnvrtc.*extras"):
        devices.module_of("cupy")


def test_a_file_keeps_what_the_device_is(monkeypatch):
    values = "580.1, 1980, 2010, 3201, 700.00, Disabled, Default, Enabled\n"
    done = SimpleNamespace(returncode=0, stdout=values)
    monkeypatch.setattr("subprocess.run", lambda *_, **__: done)
    facts = devices.facts(device)
    assert (facts["device_name"], facts["device"]) == ("a double", 0)
    assert (facts["driver"], facts["power_limit_W"], facts["mig"]) == (
        "580.1",
        "700.00",
        "Disabled",
    )
    done.returncode = 9
    assert "mig" not in devices.facts(device)
    assert devices.facts(np) == {}


COMM = World(1).comm(0)


def decide(choice: str, monkeypatch: Any, says: bool) -> Awareness:
    monkeypatch.setattr(aware, "cuda_aware", lambda: says)
    return aware.decide(choice, COMM, device)


def test_an_mpi_is_believed_once_a_process_of_its_own_has_proved_it(monkeypatch):
    assert decide("yes", monkeypatch, False).aware
    assert not decide("no", monkeypatch, True).aware
    assert "does not say" in decide("auto", monkeypatch, False).why
    liar = decide("auto", monkeypatch, True)  # this MPI cannot read a device's addresses
    assert not liar.aware
    assert "SIGSEGV" in liar.why or "Bad address" in liar.why
    assert liar.facts()["staging"] == "pinned host memory"
    monkeypatch.setenv("DEVICE_DOUBLE_AWARE", "1")
    assert decide("auto", monkeypatch, True).aware


def test_a_proof_that_does_not_end_is_none(monkeypatch):
    monkeypatch.setattr(aware, "PROOF_S", 0.01)
    assert "TimeoutExpired" in decide("auto", monkeypatch, True).why


def test_what_cannot_work_on_a_device_is_left_out_with_its_reason(monkeypatch):
    names = ("ring", "mpi", "mpi-nonblocking", "mpi-reduce-bcast")
    monkeypatch.setattr("allreduce.native.library", lambda: "Open MPI v5.0.11")
    staged = Memory(device, Awareness(False, "x"))
    left, notes = staged.possible(COMM, names)
    assert left == names[:3]
    assert notes == [
        "without mpi-reduce-bcast: it is the library's, which gets no device memory here"
    ]
    left, notes = Memory(device, Awareness(True, "x")).possible(COMM, names)
    assert left == ("ring", "mpi", "mpi-reduce-bcast")
    assert notes == ["without mpi-nonblocking: of device memory crashes Open MPI"]
    with pytest.raises(UsageError, match="nccl: it takes arrays of devices alone"):
        Memory(np, Awareness(False, "x")).possible(COMM, ["nccl"])
