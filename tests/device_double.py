"""What of CuPy `allreduce.arrays` uses, on host memory: a device whose work comes late.

Operations are queued on a stream. They take effect when an event recorded after them has been
asked a random number of times, or when somebody synchronises: whoever reads, or sends, earlier
gets the bytes from before.
"""

import random
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace, TracebackType
from typing import Any

import numpy as np

uint8 = np.uint8
MOST_POLLS = 4

_random = random.Random(0)


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
    """An array of the device."""

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

    def __getitem__(self, index: Any) -> "ndarray":
        return ndarray(self.host[index])

    def __setitem__(self, index: Any, value: "ndarray") -> None:
        target, source = self.host[index], value.host
        _current[-1].put(lambda: np.copyto(target, source))

    def reshape(self, *shape: int) -> "ndarray":
        return ndarray(self.host.reshape(*shape))

    def view(self, dtype: Any) -> "ndarray":
        return ndarray(self.host.view(dtype))

    def get(self, stream: Stream, out: np.ndarray, blocking: bool) -> None:
        assert not blocking, "the engine must not wait for the device"
        stream.put(lambda: np.copyto(out, self.host))

    def set(self, source: np.ndarray, stream: Stream) -> None:
        stream.put(lambda: np.copyto(self.host, source))

    def now(self) -> np.ndarray:
        """A copy of the values once all that was queued is done: for tests."""
        _current[-1].synchronize()
        return self.host.copy()


def empty(count: int, dtype: Any) -> ndarray:
    host = np.empty(count, dtype)
    host.view(np.uint8)[...] = 0xA5
    return ndarray(host)


def array(values: np.ndarray) -> ndarray:
    """`values` on the device, once its stream has come so far."""
    made = empty(values.size, values.dtype)
    kept = values.copy()
    _current[-1].put(lambda: np.copyto(made.host, kept))
    return made


def add(one: ndarray, other: ndarray, out: ndarray) -> None:
    _current[-1].put(lambda: np.add(one.host, other.host, out=out.host))


def divide(one: ndarray, divisor: Any, out: ndarray) -> None:
    _current[-1].put(lambda: np.divide(one.host, divisor, out=out.host))


def octets(buffer: Any) -> np.ndarray:
    """The bytes of an array of this module or of NumPy's, for a loopback World."""
    host = buffer.host if isinstance(buffer, ndarray) else buffer
    return host.reshape(-1).view(np.uint8)
