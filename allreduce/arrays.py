"""NumPy or CuPy: the one module that knows which array lives where.

A *memory* is what `of(array)` returns: where the array's bytes are and how to work on them.
Device work is queued on the stream that was current when the memory was made, or on one of its
own (`beside()`), whichever thread asks for it and whatever its current device is; `fence()` says
when all that was queued so far is done.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from allreduce.errors import BufferRefused

DTYPES = tuple(
    np.dtype(name)
    for name in (
        *("float16", "float32", "float64"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    )
)
"""What can be reduced; its index is how ranks tell each other their dtype."""

WIDE = np.dtype("float32")
PAGE = 4096  # bytes


def summed_in(target: Any, mean: bool, memory: "Host") -> Any:
    """Where what ends in `target` is summed, and sent from: itself, or new room for as many WIDE
    values, of a mean whose sum the type may not hold though it can hold the mean.

    float16 ends at 65,504. (So does float32 at 3e38, but there is nothing to sum it in at no cost.)
    """
    if mean and target.dtype == np.float16:
        return memory.empty(target.size, WIDE)
    return target


Poll = Callable[[], bool]


class Host:
    """NumPy arrays: work is done when the call returns, and MPI takes the memory as it is."""

    name = "numpy"
    module: Any = np
    block = 1 << 17
    """Elements that elementwise work should take at a time, so that they stay in the cache."""

    def empty(self, count: int | tuple[int, ...], dtype: np.dtype) -> Any:
        return np.empty(count, dtype)

    def apart(self, array: Any, count: int) -> Any:
        """Room for `count` elements of the array's type, half a page away from it modulo pages.

        Where a copy lands exactly 16 bytes behind its source, modulo pages, it takes 4 times as
        long (14 times, where nothing else counts: measured on an AMD EPYC, `rep movsb`), and a sum
        twice. Blocks that malloc gives one after the other lie so, on all ranks alike.
        """
        room = np.empty(count * array.itemsize + PAGE, np.uint8)
        at = (array.ctypes.data - room.ctypes.data + PAGE // 2) % PAGE
        return room[at : at + count * array.itemsize].view(array.dtype)

    def zeros(self, count: int | tuple[int, ...], dtype: np.dtype) -> Any:
        return np.zeros(count, dtype)

    def put(self, target: Any, values: Any) -> None:
        """Values of the host into an array of this memory; they may be changed at once."""
        target[...] = values

    def get(self, array: Any) -> np.ndarray:
        """The values on the host, waited for; the same array if it is there."""
        return array

    def asarray(self, values: Any) -> Any:
        """Values of the host as an array of this memory; they may be changed at once."""
        return np.asarray(values)

    sum: Callable[..., Any] = staticmethod(np.add.reduce)
    largest: Callable[..., Any] = staticmethod(np.maximum.reduce)

    def beside(self) -> "Host":
        """The same memory with a stream of its own, which waits for no other unless it is told."""
        return self

    def follow(self, other: "Host | None" = None) -> None:
        """Let what is queued from now on wait for all that is queued there [on the caller's current
        stream]."""

    def copy(self, target: Any, source: Any) -> None:
        target[...] = source

    def add(self, target: Any, other: Any) -> None:
        np.add(target, other, out=target)

    def divide(self, target: Any, divisor: int) -> None:
        np.divide(target, target.dtype.type(divisor), out=target)

    def octets(self, array: Any) -> Any:
        """The same memory as bytes, which is what messages carry."""
        return array.view(np.uint8)

    def fence(self) -> Poll | None:
        """None: nothing is ever outstanding."""
        return None


NOT_READY = 600  # cudaErrorNotReady: what an event says that has not happened yet


class Device(Host):
    """Arrays with `__cuda_array_interface__`, worked on by CuPy, or a module with its names.

    `number`: the device, which is made the current one for each call: threads begin on device 0.
    """

    block = sys.maxsize

    def __init__(self, module: Any, number: int, stream: Any = None):
        self.module, self.name, self.number = module, module.__name__, number
        with module.cuda.Device(number):
            self.stream = module.cuda.get_current_stream() if stream is None else stream
        self._events: list[Any] = []  # those that have happened
        self._before: Any = None

    @contextmanager
    def queueing(self) -> Iterator[Any]:
        """Inside, the module's work goes to this device and stream."""
        with self.module.cuda.Device(self.number), self.stream:
            yield self.module

    def empty(self, count: int | tuple[int, ...], dtype: np.dtype) -> Any:
        with self.queueing() as module:
            return module.empty(count, dtype)

    def apart(self, array: Any, count: int) -> Any:
        return self.empty(count, array.dtype)

    def zeros(self, count: int | tuple[int, ...], dtype: np.dtype) -> Any:
        with self.queueing() as module:
            return module.zeros(count, dtype)

    def put(self, target: Any, values: Any) -> None:
        with self.queueing() as module:
            target[...] = module.asarray(np.asarray(values, target.dtype))

    def get(self, array: Any) -> np.ndarray:
        with self.queueing():
            return array.get(stream=self.stream)

    def asarray(self, values: Any) -> Any:
        with self.queueing() as module:
            return module.asarray(values)

    @staticmethod
    def sum(array: Any, axis: Any = 0, **options: Any) -> Any:
        return array.sum(axis=axis, **options)

    @staticmethod
    def largest(array: Any, axis: Any = 0, **options: Any) -> Any:
        return array.max(axis=axis, **options)

    def beside(self) -> "Device":
        with self.module.cuda.Device(self.number):
            stream = self.module.cuda.Stream(non_blocking=True)
        return Device(self.module, self.number, stream)

    def follow(self, other: "Any" = None) -> None:
        with self.module.cuda.Device(self.number):
            if self._before is None:
                self._before = self.module.cuda.Event(disable_timing=True)
            self._before.record(
                self.module.cuda.get_current_stream() if other is None else other.stream
            )
            self.stream.wait_event(self._before)

    @property
    def free(self) -> int:
        """Bytes of the device that nobody has taken."""
        return int(self.module.cuda.Device(self.number).mem_info[0])

    def copy(self, target: Any, source: Any) -> None:
        with self.queueing():
            target[...] = source

    def add(self, target: Any, other: Any) -> None:
        with self.queueing() as module:
            module.add(target, other, out=target)

    def divide(self, target: Any, divisor: int) -> None:
        with self.queueing() as module:
            module.divide(target, target.dtype.type(divisor), out=target)

    def octets(self, array: Any) -> Any:
        return array.view(self.module.uint8)

    def fence(self) -> Poll:
        """A poll that is true once everything queued before it is done. It never waits, and raises
        the device's error, by its name, if there was one."""
        cuda, happened = self.module.cuda, False
        with cuda.Device(self.number):
            event = self._events.pop() if self._events else cuda.Event(disable_timing=True)
            event.record(self.stream)

        def poll() -> bool:
            nonlocal happened
            if not happened:
                status = cuda.runtime.eventQuery(event.ptr)
                if status == NOT_READY:
                    return False
                if status:  # Event.done would say that it has not happened yet, for ever
                    raise cuda.runtime.CUDARuntimeError(status)
                happened = True
                self._events.append(event)
            return True

        return poll

    def pinned(self, count: int, dtype: np.dtype) -> np.ndarray:
        """Page-locked host memory, which the device reads and writes by itself."""
        with self.module.cuda.Device(self.number):
            memory = self.module.cuda.alloc_pinned_memory(max(1, count) * dtype.itemsize)
        return np.frombuffer(memory, dtype, count)

    def to_host(self, target: np.ndarray, source: Any) -> None:
        with self.queueing():
            source.get(stream=self.stream, out=target, blocking=False)

    def to_device(self, target: Any, source: np.ndarray) -> None:
        with self.queueing():
            target.set(source, stream=self.stream)


HOST = Host()


def is_array(value: Any) -> bool:
    """Whether it has a memory: a NumPy array or one of a device."""
    return isinstance(value, np.ndarray) or hasattr(value, "__cuda_array_interface__")


def of(array: Any) -> Host:
    """The memory of `array`; BufferRefused if it is neither NumPy's nor a device's."""
    if isinstance(array, np.ndarray):
        return HOST
    array = _known(array)
    return Device(_module_of(array), array.device.id)


def flat(array: Any, *, writable: bool) -> Any:
    """`array` as one dimension over the same memory; BufferRefused, with the reason, if not.

    One of PyTorch or Numba on a device becomes CuPy's: what it waits for is queued on the stream
    that is current there.
    """
    array = array if isinstance(array, np.ndarray) else _known(array)
    reason = _refusal(array, writable)
    if reason:
        raise BufferRefused(f"cannot reduce this buffer: {reason}")
    # np.matrix and the like stay two-dimensional whatever their shape is asked to be.
    return (np.asarray(array) if isinstance(array, np.ndarray) else array).reshape(-1)


def _known(array: Any) -> Any:
    """An array of a device as CuPy's, or as of a module with its names, over the same memory."""
    if not hasattr(array, "__cuda_array_interface__"):
        raise BufferRefused(
            f"cannot reduce {type(array).__name__}: need a NumPy array or one with "
            "__cuda_array_interface__ (CuPy)"
        )
    if hasattr(_module_of(array), "asnumpy"):
        return array
    try:
        return importlib.import_module("cupy").asarray(array)
    except ImportError:
        raise BufferRefused(
            f"{type(array).__module__} arrays on a device need CuPy to be reduced"
        ) from None


def _module_of(array: Any) -> Any:
    return sys.modules[type(array).__module__.partition(".")[0]]


def overlap(one: Any, other: Any) -> bool:
    """Whether two contiguous arrays of the same kind of memory share any of it."""
    if isinstance(one, np.ndarray):
        return bool(np.may_share_memory(one, other))
    first, second = (array.__cuda_array_interface__["data"][0] for array in (one, other))
    return bool(first < second + other.nbytes and second < first + one.nbytes)


def _refusal(array: Any, writable: bool) -> str | None:
    dtype = np.dtype(array.dtype)
    if array.ndim == 0:
        return "it is 0-dimensional; pass array.reshape(1)"
    if dtype not in DTYPES:
        names = ", ".join(known.name for known in DTYPES)
        return f"its dtype is {dtype}; choose from native {names}"
    if not array.flags.c_contiguous:
        order = "in Fortran order" if array.flags.f_contiguous else "not contiguous"
        return f"it is {order}; pass a C-contiguous copy"
    if writable and not getattr(array.flags, "writeable", True):
        return "it is read-only"
    return None
