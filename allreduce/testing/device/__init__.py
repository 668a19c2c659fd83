"""What of CuPy this project uses, on host memory: a strict device whose work comes late.

Operations are queued on streams, and take effect when an event recorded after them has been asked
a random number of times, when somebody waits, or whenever the device likes: whoever reads or sends
earlier gets the bytes from before, and nothing orders two streams but events. As with CuPy, an
array is no NumPy array and never becomes one by itself, arrays of the host are refused as operands,
and values come to the host by `get` alone, or as one number (`float`, `bool`, `tolist`), which
waits. Addresses of the device cannot be read, arrays belong to the device on which they were made,
memory whose array is gone is used again, and the first error stays. NumPy computes: of a device's
arithmetic and speed it says nothing.

`import allreduce.testing.device as cupy`, or the folder `allreduce/testing/stand_in` on PYTHONPATH,
where `import cupy` finds it. `settings` (and variables DEVICE_DOUBLE_*) say what it is like,
`counts` what was called.
"""

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from allreduce.testing.device import memory, nccl, runtime
from allreduce.testing.device.array import NAME, REDUCTIONS, empty, launch, ndarray
from allreduce.testing.device.runtime import Event, Stream, counts, settings

__all__ = ["Event", "Stream", "counts", "empty", "ndarray", "octets", "settings"]

__version__ = "13.0.0"
float16, float32, float64, bool_ = np.float16, np.float32, np.float64, np.bool_
int8, int16, int32, int64 = np.int8, np.int16, np.int32, np.int64
uint8, uint16, uint32, uint64 = np.uint8, np.uint16, np.uint32, np.uint64
newaxis, inf, nan, pi = None, np.inf, np.nan, np.pi

cuda = ModuleType("cupy.cuda")
cuda.__dict__.update(
    Event=Event,
    Stream=Stream,
    Device=memory.Device,
    get_current_stream=runtime.current_stream,
    alloc_pinned_memory=memory.alloc_pinned_memory,
    get_elapsed_time=runtime.elapsed,
    is_available=lambda: settings.devices > 0,
    runtime=SimpleNamespace(
        CUDARuntimeError=runtime.CUDARuntimeError,
        getDevice=lambda: runtime.local.device,
        getDeviceCount=memory.device_count,
        eventQuery=runtime.event_query,
        driverGetVersion=lambda: 0,
        runtimeGetVersion=lambda: 0,
        memGetInfo=lambda: memory.Device().mem_info,
        getDeviceProperties=lambda device: {"name": b"a double", "totalGlobalMem": settings.memory},
    ),
    memory=SimpleNamespace(OutOfMemoryError=runtime.OutOfMemoryError),
)

sys.modules[NAME] = sys.modules[__name__]
sys.modules[f"{__name__}.cuda"], sys.modules[f"{__name__}.cuda.nccl"] = cuda, nccl


def zeros(shape: Any, dtype: Any = float) -> ndarray:
    return full(shape, 0, dtype)


def ones(shape: Any, dtype: Any = float) -> ndarray:
    return full(shape, 1, dtype)


def full(shape: Any, fill_value: Any, dtype: Any = None) -> ndarray:
    made = empty(shape, dtype or np.asarray(fill_value).dtype)
    made[...] = fill_value
    return made


def empty_like(prototype: ndarray, dtype: Any = None) -> ndarray:
    return empty(prototype.shape, dtype or prototype.dtype)


def zeros_like(a: ndarray, dtype: Any = None) -> ndarray:
    return zeros(a.shape, dtype or a.dtype)


def array(obj: Any, dtype: Any = None) -> ndarray:
    """Values on the device, once its stream has come so far."""
    if isinstance(obj, ndarray):
        return obj.astype(dtype or obj.dtype)
    kept = np.array(obj, dtype)
    made = empty(kept.shape, kept.dtype)
    target = made.host
    counts["set"] += 1
    runtime.current_stream().put(lambda: np.copyto(target, kept))
    return made


def asarray(a: Any, dtype: Any = None) -> ndarray:
    """The same array if it is one of the device; others with its interface as they lie."""
    if isinstance(a, ndarray):
        return a if dtype is None or a.dtype == np.dtype(dtype) else a.astype(dtype)
    inside = getattr(a, "device_double", None)  # how a test lends an array of another package
    return inside if isinstance(inside, ndarray) else array(a, dtype)


def ascontiguousarray(a: ndarray) -> ndarray:
    return a if a.flags.c_contiguous else a.copy()


def arange(*args: Any, dtype: Any = None) -> ndarray:
    return array(np.arange(*args, dtype=dtype))


def asnumpy(a: Any) -> np.ndarray:
    return a.get() if isinstance(a, ndarray) else np.asarray(a)


def copyto(dst: ndarray, src: Any) -> None:
    dst[...] = src


def get_array_module(*args: Any) -> Any:
    return sys.modules[NAME] if any(isinstance(each, ndarray) for each in args) else np


def concatenate(tup: Any, axis: int = 0) -> ndarray:
    return launch(lambda *hosts: np.concatenate(hosts, axis), *tup)


def where(condition: ndarray, x: Any, y: Any) -> ndarray:
    return launch(np.where, condition, x, y)


def clip(a: ndarray, a_min: Any, a_max: Any) -> ndarray:
    return launch(lambda host: np.clip(host, a_min, a_max), a)


def take_along_axis(a: ndarray, indices: ndarray, axis: int) -> ndarray:
    return launch(lambda host, at: np.take_along_axis(host, at, axis), a, indices)


def dot(a: ndarray, b: ndarray, out: ndarray | None = None) -> ndarray:
    return launch(np.dot, a, b, out=out)


def count_nonzero(a: ndarray) -> ndarray:
    return launch(np.count_nonzero, a)


def _kernel(function: Any) -> Callable[..., ndarray]:
    """As CuPy's ufuncs: what is positional behind the inputs is `out`."""
    inputs = getattr(function, "nin", 2)

    def kernel(*args: Any, out: ndarray | None = None, dtype: Any = None) -> ndarray:
        options = {} if dtype is None else {"dtype": dtype}
        given, rest = args[:inputs], args[inputs:]
        return launch(
            lambda *hosts: function(*hosts, **options), *given, out=rest[0] if rest else out
        )

    return kernel


def _of_method(name: str) -> Callable[..., Any]:
    def function(a: ndarray, *args: Any, **options: Any) -> Any:
        if not isinstance(a, ndarray):
            raise TypeError(f"Unsupported type {type(a)}")
        return getattr(a, name)(*args, **options)

    return function


UFUNCS = (
    "add", "subtract", "multiply", "divide", "true_divide", "floor_divide", "maximum", "minimum",
    "exp", "log", "log1p", "sqrt", "square", "sign", "tanh", "reciprocal", "negative", "absolute",
    "power", "greater", "greater_equal", "less", "less_equal", "equal", "not_equal", "isfinite",
    "isnan", "isinf", "logical_and", "logical_or", "logical_not", "matmul", "copysign",
)  # fmt: skip
for _name in UFUNCS:
    globals()[_name] = _kernel(getattr(np, _name))
for _name in (*REDUCTIONS, "reshape", "ravel", "transpose"):
    globals()[_name] = _of_method(_name)
globals().update(amax=_of_method("max"), amin=_of_method("min"))


def octets(buffer: Any) -> np.ndarray:
    """The bytes of an array of this module or of NumPy's, for a loopback World."""
    host = buffer.host if isinstance(buffer, ndarray) else buffer
    return host.reshape(-1).view(np.uint8)
