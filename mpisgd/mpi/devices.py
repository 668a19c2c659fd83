"""Which device a rank works on, and what is said where there is none: one line.

Ranks of a node share its devices in turn; several on one device are allowed, and told.
"""

import ctypes
import os
import platform
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from allreduce.arrays import HOST, Device, Host
from mpisgd.mpi.announced import local_rank
from mpisgd.values.errors import UsageError
from mpisgd.values.options import whole

INSTALL = "pip install -e '.[{}]' where mpisgd was cloned"
PLACE = "--backend cupy"


def memory(backend: str, device: int | str | None = None) -> Host:
    """The memory of `module_of`, of this rank."""
    module = module_of(backend, device)
    return HOST if module is np else Device(module, module.cuda.runtime.getDevice())


def module_of(backend: str, device: int | str | None = None) -> Any:
    """NumPy, or CuPy with this rank's device made current. `device`: its number among those that
    this rank sees, or `auto` (also None), its number on its node modulo how many these are.

    UsageError, in one line, for what is not installed, has no driver or is no device.
    """
    if backend == "numpy":
        if device not in (None, "auto"):
            raise UsageError("--device", device, f"only with {PLACE}")
        return np
    module = _installed(backend)
    count = _devices(module)
    if device in (None, "auto"):
        number = local_rank() % count
    else:
        number = whole(0).read("--device", str(device))
        if number >= count:
            raise UsageError("--device", device, f"this rank sees {count}: 0 to {count - 1}")
    module.cuda.Device(number).use()
    _try(module)
    return module


def driver_version() -> int:
    """The CUDA that the driver knows at most, as 12040 for 12.4; 0 without a driver."""
    found = ctypes.c_int(0)
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(found))
    except (OSError, AttributeError):
        return 0
    return found.value


def host() -> str:
    """The name of this node."""
    return platform.node()


def shared(names: Sequence[str]) -> list[str]:
    """What is to be told of the devices of all ranks: which several of them have."""
    ranks = {name: names.count(name) for name in names}
    return [
        f"{count} ranks share the device {name}: their work and copies take turns"
        for name, count in ranks.items()
        if count > 1
    ]


def facts(module: Any) -> dict[str, Any]:
    """What a result file keeps of this rank's device; {} of the host."""
    if module is np:
        return {}
    runtime, number = module.cuda.runtime, module.cuda.runtime.getDevice()
    found = runtime.getDeviceProperties(number)
    free, total = runtime.memGetInfo()
    return {
        "cupy": module.__version__,
        "cuda_driver": runtime.driverGetVersion(),
        "cuda_runtime": runtime.runtimeGetVersion(),
        "device": number,
        "device_name": found["name"].decode(),
        "device_bus": module.cuda.Device(number).pci_bus_id,
        "devices_visible": runtime.getDeviceCount(),
        "device_memory_B": total,
        "device_memory_free_B": free,
    } | _asked(module.cuda.Device(number).pci_bus_id)


SMI = {
    "driver_version": "driver",
    "clocks.sm": "clock_sm_MHz",
    "clocks.max.sm": "clock_sm_max_MHz",
    "clocks.mem": "clock_memory_MHz",
    "power.limit": "power_limit_W",
    "mig.mode.current": "mig",
    "compute_mode": "compute_mode",
    "persistence_mode": "persistence_mode",
}


def _asked(bus: str) -> dict[str, str]:
    """What nvidia-smi says of the device; {} where it is not to be had."""
    import subprocess

    command = ["nvidia-smi", f"--id={bus}", f"--query-gpu={','.join(SMI)}"]
    try:
        done = subprocess.run(
            [*command, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [value.strip() for value in done.stdout.partition("\n")[0].split(",")]
    if done.returncode or len(values) != len(SMI):
        return {}
    return dict(zip(SMI.values(), values, strict=True))


def _installed(backend: str) -> ModuleType:
    try:
        return import_module(backend)
    except ModuleNotFoundError:
        raise UsageError(f"{PLACE} needs CuPy", None, f"install it: {_extra()}") from None
    except ImportError as error:
        first = (str(error).strip().splitlines() or ["it says no more"])[0]
        raise UsageError(f"{PLACE}: CuPy cannot be imported", None, first) from None


def _extra(driver: int | None = None) -> str:
    """The extra for this driver; both where nobody can tell."""
    version = driver_version() if driver is None else driver
    if version >= 13000:
        return INSTALL.format("cuda13")
    if version >= 12000:
        return INSTALL.format("cuda12")
    return f"{INSTALL.format('cuda12')}, or cuda13, as nvidia-smi's CUDA version says"


def _devices(module: Any) -> int:
    """How many devices this rank sees, at least one."""
    runtime = module.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        what = str(error).partition(":")[0]
        driver, built = runtime.driverGetVersion(), runtime.runtimeGetVersion()
        if what != "cudaErrorNoDevice" and not driver:
            why = "no NVIDIA driver on this machine, or none that this container shows"
        elif what == "cudaErrorInsufficientDriver":
            why = (
                f"CuPy is for CUDA {built // 1000}, the driver for {driver // 1000} at most: "
                f"pip uninstall the other, then {_extra(driver)}"
            )
        else:
            why = "no device is visible; see nvidia-smi and CUDA_VISIBLE_DEVICES"
            if (hidden := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
                why += f" (which is {hidden!r})"
        raise UsageError(PLACE, None, f"{what}: {why}") from None
    if not count:
        raise UsageError(PLACE, None, "no device is visible")
    return int(count)


def _try(module: Any) -> None:
    """A kernel is compiled and run: without the toolkit's libraries CuPy fails here."""
    try:
        float(module.add(module.zeros(1, np.float32), np.float32(1))[0])
    except (RuntimeError, OSError, ImportError, MemoryError) as error:
        first = (str(error).strip().splitlines() or [""])[0]
        what = f"{PLACE}: a first kernel fails"
        remedy = f"the extras bring the toolkit's libraries: {_extra()}"
        raise UsageError(what, None, f"{type(error).__name__}: {first}; {remedy}") from None
