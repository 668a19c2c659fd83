"""NumPy or CuPy: the one module that knows which array lives where.

A *memory* is what `of(array)` returns: where the array's bytes are and how to work on them.
Device work is queued on the stream that was current when the memory was made; `fence()` says
when all that was queued so far is done.
"""

import sys
from collections.abc import Callable
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


def too_narrow(dtype: np.dtype) -> bool:
    """Whether values of it may have a sum that it cannot hold though it can hold their mean:
    float16 ends at 65,504. (So does float32 at 3e38, but there is nothing to sum it in at no cost.)
    """
    return dtype == np.float16


Poll = Callable[[], bool]


class Host:
    """NumPy arrays: work is done when the call returns, and MPI takes the memory as it is."""

    name = "numpy"
    module: Any = np
    block = 1 << 17
    """Elements that elementwise work should take at a time, so that they stay in the cache."""

    def empty(self, count: int | tuple[int, ...], dtype: np.dtype) -> Any:
        return np.empty(count, dtype)

    def zeros(self, count: int | tuple[int, ...], dtype: np.dtype) -> Any:
        return np.zeros(count, dtype)

    def put(self, target: Any, values: Any) -> None:
        """Values of the host into an array of this memory; they may be changed at once."""
        target[...] = values

    def get(self, array: Any) -> np.ndarray:
        """The values on the host, waited for; the same array if it is there."""
        return array

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


class Device(Host):
    """Arrays with `__cuda_array_interface__`, worked on by the module they come from."""

    block = sys.maxsize

    def __init__(self, module: Any):
        self.module = module
        self.name = module.__name__
        self.stream = module.cuda.get_current_stream()

    def empty(self, count: int | tuple[int, ...], dtype: np.dtype) -> Any:
        with self.stream:
            return self.module.empty(count, dtype)

    def zeros(self, count: int | tuple[int, ...], dtype: np.dtype) -> Any:
        with self.stream:
            return self.module.zeros(count, dtype)

    def put(self, target: Any, values: Any) -> None:
        target.set(np.ascontiguousarray(values, target.dtype), stream=self.stream)
        self.stream.synchronize()

    def get(self, array: Any) -> np.ndarray:
        return array.get(stream=self.stream)

    def copy(self, target: Any, source: Any) -> None:
        with self.stream:
            target[...] = source

    def add(self, target: Any, other: Any) -> None:
        with self.stream:
            self.module.add(target, other, out=target)

    def divide(self, target: Any, divisor: int) -> None:
        with self.stream:
            self.module.divide(target, target.dtype.type(divisor), out=target)

    def octets(self, array: Any) -> Any:
        return array.view(self.module.uint8)

    def fence(self) -> Poll:
        """A poll that is true once everything queued before it is done. It never waits."""
        event = self.module.cuda.Event()
        event.record(self.stream)
        return lambda: bool(event.done)

    def pinned(self, count: int, dtype: np.dtype) -> np.ndarray:
        """Page-locked host memory, which the device reads and writes by itself."""
        memory = self.module.cuda.alloc_pinned_memory(max(1, count) * dtype.itemsize)
        return np.frombuffer(memory, dtype, count)

    def to_host(self, target: np.ndarray, source: Any) -> None:
        source.get(stream=self.stream, out=target, blocking=False)

    def to_device(self, target: Any, source: np.ndarray) -> None:
        target.set(source, stream=self.stream)


HOST = Host()


def is_array(value: Any) -> bool:
    """Whether it has a memory: a NumPy array or one of a device."""
    return isinstance(value, np.ndarray) or hasattr(value, "__cuda_array_interface__")


def of(array: Any) -> Host:
    """The memory of `array`; BufferRefused if it is neither NumPy's nor a device's."""
    if isinstance(array, np.ndarray):
        return HOST
    if hasattr(array, "__cuda_array_interface__"):
        return Device(sys.modules[type(array).__module__.partition(".")[0]])
    raise BufferRefused(
        f"cannot reduce {type(array).__name__}: need a NumPy array or one with "
        "__cuda_array_interface__ (CuPy)"
    )


def flat(array: Any, *, writable: bool) -> Any:
    """`array` as one dimension over the same memory; BufferRefused, with the reason, if not."""
    memory = of(array)
    reason = _refusal(array, writable)
    if reason:
        raise BufferRefused(f"cannot reduce this buffer: {reason}")
    # np.matrix and the like stay two-dimensional whatever their shape is asked to be.
    return (np.asarray(array) if memory is HOST else array).reshape(-1)


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
