"""Devices: peak arithmetic, memory bandwidth, memory.

Sources. TITAN X and K80: the device table of PALEO's public code (its K80 is the card of two
chips; memory is per chip). V100, A100, H100, H200: NVIDIA's data sheets, SXM boards, the FP32
rate of the CUDA cores without tensor cores, because the model counts FP32 operations. Where a
job uses TF32 or BF16 tensor cores, describe your own device with that rate.
"""

from dataclasses import dataclass

from mpisgd.predict.records import find as find_record
from mpisgd.values.quantities import number


@dataclass(frozen=True)
class Device:
    """One accelerator. Raises UsageError for values that are not positive numbers."""

    name: str
    peak_GFLOPS: float  # noqa: N815 (10^9 floating-point operations a second)
    bandwidth_GBps: float  # noqa: N815 (memory; PALEO reads this unit as 2^30 bytes a second)
    memory_GB: float  # noqa: N815 (10^9 bytes)

    def __post_init__(self) -> None:
        for key in ("peak_GFLOPS", "bandwidth_GBps", "memory_GB"):
            value = number(f"device {self.name}: {key}", getattr(self, key), open_low=True)
            object.__setattr__(self, key, value)


DEVICES = {
    "titanx": Device("titanx", 6144, 336.5, 12),
    "k80": Device("k80", 5600, 480, 12),
    "v100": Device("v100", 15_700, 900, 32),
    "a100": Device("a100", 19_500, 2039, 80),
    "h100": Device("h100", 67_000, 3350, 80),
    "h200": Device("h200", 67_000, 4800, 141),
}


def find(text: str, place: str = "--device") -> Device:
    """The device `text` names: a preset, a TOML file or `name=...,peak_GFLOPS=...,...`."""
    return find_record(Device, DEVICES, text, place)
