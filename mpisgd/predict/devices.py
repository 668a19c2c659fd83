"""Devices: peak arithmetic, memory bandwidth, memory.

Sources. TITAN X and K80: the device table of PALEO's public code (its K80 is the card of two
chips; memory is per chip). V100, A100, H100, H200: NVIDIA's data sheets, SXM boards, the FP32
rate of the CUDA cores without tensor cores, because the model counts FP32 operations. Where a
job uses TF32 or BF16 tensor cores, describe your own device with that rate.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from allreduce import files
from mpisgd.values.errors import UsageError, among
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
    """The device `text` names: a preset, a TOML file or `name=...,peak_GFLOPS=...,...`.

    Raises UsageError naming `place` for an unknown name or key, and for an unreadable file.
    """
    if text.endswith(".toml"):
        return _build({"name": Path(text).stem, **_read(text, place)}, f"{place} {text}")
    if "=" in text:
        pairs = [part.partition("=") for part in text.split(",")]
        return _build({key.strip(): value.strip() for key, _, value in pairs}, place)
    if text not in DEVICES and os.path.exists(text):
        raise UsageError(place, text, "must be a file that ends in .toml")
    among(place, text, DEVICES, "a .toml file, or key=value,...")
    return DEVICES[text]


def _build(values: Mapping[str, Any], place: str) -> Device:
    known = [field.name for field in fields(Device)]
    for key in values:
        if key not in known:
            raise UsageError(place, key, f"keys are {', '.join(known)}")
    for key in known:
        if key not in values:
            raise UsageError(place, None, f"lacks {key}")
    try:
        return Device(**values)
    except UsageError as mistake:
        raise UsageError(f"{place}: {mistake}") from None


def _read(path: str, place: str) -> dict[str, Any]:
    try:
        return files.toml(path)
    except files.Unreadable as error:
        raise UsageError(place, path, str(error)) from None
