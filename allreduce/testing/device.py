"""What of CuPy this project uses, on host memory: a strict device whose work comes late.

Operations are queued on a stream. They take effect when an event recorded after them has been
asked a random number of times, or when somebody synchronises: whoever reads, or sends, earlier
gets the bytes from before. As with CuPy, an array is no NumPy array and never becomes one by
itself, arrays of the host are refused as operands, and values come to the host by `get` alone, or
as one number (`float`, `bool`, `tolist`), which waits. It says nothing of a device's arithmetic.
"""

import random
import sys
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace, TracebackType
from typing import Any

import numpy as np

uint8 = np.uint8
MOST_POLLS = 4
NAME = "device_double"  # of this module, as its arrays say: CuPy's say "cupy"
SCALARS = (bool, int, float, np.generic)

_random = random.Random(0)
sys.modules[NAME] = sys.modules[__name__]


class Stream:
    """Operations in order; `position` counts those that have been done."""

    def __init__(self) -> None:
        self.queue: deque[Callable[[], None]] = deque()
        self.position = 0

    def put(self, operation: Callable[[], None]) -> None:
        self.queue.append(operation)

    def synchronize(self) -> None:
        self.run_to(self.position + len(self.queue))

    def run_to(self, end: int) -> None:
        with np.errstate(all="ignore"):  # a device does not warn
            while self.position < end:
                self.queue.popleft()()
                self.position += 1

    def __enter__(self) -> "Stream":
        _current.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _current.pop()


_current = [Stream()]


class Event:
    """Done once it has been asked often enough: the device is never as far as one hopes."""

    def record(self, stream: Stream) -> None:
        self.stream, self.end = stream, stream.position + len(stream.queue)
        self.polls = _random.randint(1, MOST_POLLS)

    @property
    def done(self) -> bool:
        self.polls -= 1
        if self.polls <= 0:
            self.stream.run_to(self.end)
        return self.stream.position >= self.end


cuda = SimpleNamespace(
    Event=Event,
    Stream=Stream,
    get_current_stream=lambda: _current[-1],
    alloc_pinned_memory=bytearray,
)


class ndarray:  # noqa: N801 (CuPy's name)
    """An array of the device. `host`: its bytes, which tests may look at."""

    __module__ = NAME
    __array_ufunc__ = None  # NumPy's functions do not take it
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, host: np.ndarray):
        self.host = host
        self.size, self.dtype, self.ndim = host.size, host.dtype, host.ndim
        self.shape, self.nbytes = host.shape, host.nbytes
        self.flags = SimpleNamespace(
            c_contiguous=host.flags.c_contiguous, f_contiguous=host.flags.f_contiguous
        )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.host.ctypes.data, False),
            "version": 3,
        }

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("Implicit conversion to a NumPy array is not allowed: use get()")

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> "ndarray":
        return ndarray(self.host[index])

    def __setitem__(self, index: Any, value: Any) -> None:
        target, source = self.host[index], _operand(value)
        _current[-1].put(lambda: np.copyto(target, source, casting="unsafe"))

    def reshape(self, *shape: int) -> "ndarray":
        return ndarray(self.host.reshape(*shape))

    def view(self, dtype: Any) -> "ndarray":
        return ndarray(self.host.view(dtype))

    def copy(self) -> "ndarray":
        return _launch(np.positive, self)

    def all(self) -> "ndarray":
        return _launch(np.all, self)

    def get(self, stream: Stream, out: np.ndarray | None = None, blocking: bool = True) -> Any:
        if out is None:
            stream.synchronize()
            return self.host.copy()
        assert not blocking, "the engine must not wait for the device"
        stream.put(lambda: np.copyto(out, self.host))
        return out

    def set(self, source: np.ndarray, stream: Stream) -> None:
        assert type(source) is np.ndarray, type(source)
        assert (source.dtype, source.shape) == (self.dtype, self.shape)
        stream.put(lambda: np.copyto(self.host, source))

    def now(self) -> np.ndarray:
        """A copy of the values once all that was queued is done: for tests."""
        _current[-1].synchronize()
        return self.host.copy()

    def __float__(self) -> float:
        return float(self.now())

    def __bool__(self) -> bool:
        return bool(self.now())

    def __add__(self, other: Any) -> "ndarray":
        return _launch(np.add, self, other)

    def __sub__(self, other: Any) -> "ndarray":
        return _launch(np.subtract, self, other)

    def __mul__(self, other: Any) -> "ndarray":
        return _launch(np.multiply, self, other)

    def __truediv__(self, other: Any) -> "ndarray":
        return _launch(np.divide, self, other)

    __radd__, __rmul__ = __add__, __mul__

    def __iadd__(self, other: Any) -> "ndarray":
        return _launch(np.add, self, other, out=self)

    def __isub__(self, other: Any) -> "ndarray":
        return _launch(np.subtract, self, other, out=self)

    def __imul__(self, other: Any) -> "ndarray":
        return _launch(np.multiply, self, other, out=self)


def _operand(value: Any) -> Any:
    """What a kernel computes with; arrays of the host are refused."""
    if isinstance(value, ndarray):
        return value.host
    if isinstance(value, SCALARS):
        return value
    raise TypeError(f"Unsupported type {type(value)}")


def _launch(function: Any, *inputs: Any, out: ndarray | None = None) -> ndarray:
    """Queue it; the result has the type that NumPy would give."""
    operands = [_operand(value) for value in inputs]
    if out is None:
        like = [np.zeros(x.shape, x.dtype) if isinstance(x, np.ndarray) else x for x in operands]
        with np.errstate(all="ignore"):
            made = np.asarray(function(*like))
        out = empty(made.shape, made.dtype)
    elif not isinstance(out, ndarray):
        raise TypeError(f"Unsupported type {type(out)}")
    target = out.host
    _current[-1].put(lambda: np.copyto(target, function(*operands), casting="same_kind"))
    return out


def _kernel(function: Any) -> Callable[..., ndarray]:
    return lambda *inputs, out=None: _launch(function, *inputs, out=out)


add, subtract, multiply, divide = map(_kernel, (np.add, np.subtract, np.multiply, np.divide))
sqrt, isfinite, dot = map(_kernel, (np.sqrt, np.isfinite, np.dot))


def empty(shape: Any, dtype: Any) -> ndarray:
    host = np.empty(shape, dtype)
    host.reshape(-1).view(np.uint8)[...] = 0xA5
    return ndarray(host)


def zeros(shape: Any, dtype: Any) -> ndarray:
    made = empty(shape, dtype)
    made[...] = 0
    return made


def array(values: np.ndarray) -> ndarray:
    """`values` on the device, once its stream has come so far."""
    made = empty(values.shape, values.dtype)
    kept = values.copy()
    _current[-1].put(lambda: np.copyto(made.host, kept))
    return made


def octets(buffer: Any) -> np.ndarray:
    """The bytes of an array of this module or of NumPy's, for a loopback World."""
    host = buffer.host if isinstance(buffer, ndarray) else buffer
    return host.reshape(-1).view(np.uint8)
