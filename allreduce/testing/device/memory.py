"""The memory of the double's devices, and the devices: addresses are nobody's but the device's."""

import ctypes
import weakref
from collections import Counter
from typing import Any

import numpy as np

from allreduce.testing.device.runtime import (
    GARBAGE,
    CUDARuntimeError,
    OutOfMemoryError,
    check,
    counts,
    current_stream,
    local,
    lock,
    settings,
    synchronize,
)

RESERVED = 1 << 38  # bytes of addresses that nobody may read or write
_memories: "weakref.WeakSet[Memory]" = weakref.WeakSet()
_used: Counter[int] = Counter()  # bytes a device
_next = 0  # address


def _reserve() -> int:
    """Addresses that nobody can read or write: who does is ended by the system."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long,
    ]  # fmt: skip
    private_anonymous_unbacked = 0x2 | 0x20 | 0x4000
    return int(library.mmap(None, RESERVED, 0, private_anonymous_unbacked, -1, 0))


_base = _reserve()


class Memory:
    """Bytes of a device, under an address of their own; its stream may use them again once its
    array is gone, as a pool does, and fills them with garbage."""

    def __init__(self, nbytes: int):
        global _next
        check()
        self.nbytes, self.device, self.stream = nbytes, local.device, current_stream().lane
        self.octets = np.full(nbytes, GARBAGE, np.uint8)
        with lock:
            if _used[self.device] + nbytes > settings.memory:
                used = _used[self.device]
                raise OutOfMemoryError(
                    f"Out of memory allocating {nbytes:,} bytes (allocated so far: {used:,} bytes)"
                )
            _used[self.device] += nbytes
            self.address = _base + _next
            _next = (_next + nbytes + 511) // 512 * 512
        if settings.aware:
            self.address = self.octets.ctypes.data
        _memories.add(self)

    def __del__(self) -> None:
        if "address" in self.__dict__:
            _used[self.device] -= self.nbytes
            octets = self.octets
            if self.stream.queue:
                self.stream.queue.append(lambda: octets.fill(GARBAGE))


def at(address: int, nbytes: int) -> np.ndarray:
    """The bytes that an address of the device is for. KeyError for one that is nobody's."""
    for memory in list(_memories):
        start = address - memory.address
        if start >= 0 and start + nbytes <= memory.nbytes:
            return memory.octets[start : start + nbytes]
    raise KeyError(address)


class Device:
    """One of them; a thread works at its own current one."""

    def __init__(self, device: "int | Device | None" = None):
        self.id = local.device if device is None else int(device)

    def _check(self) -> None:
        if not 0 <= self.id < device_count():
            raise CUDARuntimeError(101)

    def __enter__(self) -> "Device":
        self._check()
        local.devices.append(local.device)
        local.device = self.id
        return self

    def __exit__(self, *_: object) -> None:
        local.device = local.devices.pop()

    def use(self) -> None:
        self._check()
        local.device = self.id

    def synchronize(self) -> None:
        synchronize()

    @property
    def mem_info(self) -> tuple[int, int]:
        """Bytes that are free, and in all."""
        return settings.memory - _used[self.id], settings.memory

    @property
    def pci_bus_id(self) -> str:
        return f"0000:{self.id:02X}:00.0"

    def __int__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self) -> int:
        return self.id


def device_count() -> int:
    """CUDARuntimeError where there is none, as the runtime has it."""
    if settings.devices < 1:
        raise CUDARuntimeError(35 if settings.devices < 0 else 100)
    return settings.devices


class PinnedMemory(bytearray):
    """Page-locked: the device reads and writes it by itself, later."""


def alloc_pinned_memory(size: int) -> PinnedMemory:
    check()
    counts["pinned"] += 1
    return PinnedMemory(bytes([GARBAGE]) * max(512, size))


def is_pinned(array: Any) -> bool:
    """Whether the bytes of a NumPy array are such memory."""
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(getattr(array, "obj", array), PinnedMemory)
