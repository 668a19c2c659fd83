"""Arrays of the double: their operations are queued, and nothing of the host is among them."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from allreduce.testing.device.memory import Device, Memory, is_pinned
from allreduce.testing.device.runtime import GARBAGE, Stream, counts, current_stream, local

NAME = "device_double"  # of its module, as its arrays say: CuPy's say "cupy"
SCALARS = (bool, int, float, complex, np.generic)
KINDS = "?bhilqBHILQefd"


class ndarray:  # noqa: N801 (CuPy's name)
    """An array of the device. `host`: its bytes, which tests may look at."""

    __module__ = NAME
    __array_ufunc__ = None  # NumPy's functions do not take it
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, host: np.ndarray, memory: Memory):
        self.host, self.memory = host, memory
        self.size, self.dtype, self.ndim = host.size, host.dtype, host.ndim
        self.shape, self.nbytes, self.strides = host.shape, host.nbytes, host.strides
        self.itemsize = host.itemsize
        self.flags = SimpleNamespace(
            c_contiguous=host.flags.c_contiguous, f_contiguous=host.flags.f_contiguous
        )

    @property
    def device(self) -> Device:
        return Device(self.memory.device)

    @property
    def data(self) -> Any:
        octets = self.memory.octets.ctypes.data
        return SimpleNamespace(ptr=self.memory.address + self.host.ctypes.data - octets)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "strides": None if self.flags.c_contiguous else self.strides,
            "data": (self.data.ptr if self.size else 0, False),
            "version": 3,
            "stream": 1,
        }

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("Implicit conversion to a NumPy array is not allowed: use get()")

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> "Iterator[ndarray]":
        return (self[number] for number in range(len(self)))

    def __getitem__(self, key: Any) -> "ndarray":
        parts, fancy = _index(key)
        if not fancy:
            whole = (*parts,) if Ellipsis in parts else (*parts, Ellipsis)
            return ndarray(self.host[whole], self.memory)
        if any(isinstance(part, ndarray) and part.dtype == bool for part in parts):
            parts = [part.now() if isinstance(part, ndarray) else part for part in parts]
        return launch(lambda host, *given: host[given], self, *parts, like=_alike(self.host, parts))

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, np.ndarray) and value.ndim:
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        operand(self)
        parts, _ = _index(key)
        given = [operand(part) if isinstance(part, ndarray) else part for part in parts]
        host, source = self.host, operand(value)
        np.broadcast_to(np.empty(np.shape(source), bool), _alike(host, parts).shape)

        def put() -> None:
            host[tuple(given)] = source

        current_stream().put(put)

    def reshape(self, *shape: Any) -> "ndarray":
        made = self.host.reshape(*shape)
        if made.size and not np.shares_memory(made, self.host):
            return self.copy().reshape(*shape)
        return ndarray(made, self.memory)

    def ravel(self) -> "ndarray":
        return self.reshape(-1)

    def transpose(self, *axes: Any) -> "ndarray":
        return ndarray(self.host.transpose(*axes), self.memory)

    @property
    def T(self) -> "ndarray":  # noqa: N802 (CuPy's name)
        return self.transpose()

    def view(self, dtype: Any = None) -> "ndarray":
        return ndarray(self.host.view(dtype or self.dtype), self.memory)

    def astype(self, dtype: Any, copy: bool = True) -> "ndarray":
        if not copy and self.dtype == np.dtype(dtype):
            return self
        return launch(lambda host: host.astype(dtype), self)

    def copy(self) -> "ndarray":
        return launch(np.array, self)

    def fill(self, value: Any) -> None:
        self[...] = value

    def get(
        self,
        stream: Stream | None = None,
        order: str = "C",
        out: np.ndarray | None = None,
        blocking: bool = True,
    ) -> Any:
        stream = stream or current_stream()
        counts["get"] += 1
        if out is None:
            stream.synchronize()
            return self.host.copy()
        _check_copy(self, out)
        host = self.host
        if out.nbytes:
            out.view(np.uint8)[...] = GARBAGE  # until the copy is there
        stream.put(lambda: np.copyto(out, host))
        if blocking or not is_pinned(out):
            stream.synchronize()
        return out

    def set(self, arr: np.ndarray, stream: Stream | None = None) -> None:
        counts["set"] += 1
        _check_copy(self, arr)
        given = arr if stream is not None and is_pinned(arr) else arr.copy()
        host = self.host
        (stream or current_stream()).put(lambda: np.copyto(host, given))

    def now(self) -> np.ndarray:
        """A copy of the values once all that was queued is done: for tests."""
        current_stream().synchronize()
        return self.host.copy()

    def __float__(self) -> float:
        return float(self.now())

    def __int__(self) -> int:
        return int(self.now())

    def __index__(self) -> int:
        return int(self.now())

    def __bool__(self) -> bool:
        return bool(self.now())

    def item(self) -> Any:
        return self.now().item()

    def tolist(self) -> Any:
        return self.now().tolist()

    def tobytes(self) -> bytes:
        return self.now().tobytes()

    def dot(self, b: "ndarray", out: "ndarray | None" = None) -> "ndarray":
        return launch(np.dot, self, b, out=out)


def empty(shape: Any, dtype: Any = float) -> ndarray:
    """Garbage. ValueError for what no device computes with."""
    kind = np.dtype(dtype)
    if kind.char not in KINDS:
        raise ValueError(f"Unsupported dtype {kind}")
    memory = Memory(int(np.prod(shape, dtype=np.int64)) * kind.itemsize)
    return ndarray(memory.octets.view(kind).reshape(shape), memory)


def operand(value: Any) -> Any:
    """What a kernel computes with; arrays of the host or of another device are refused."""
    if isinstance(value, ndarray):
        if value.memory.device != local.device:
            raise ValueError(
                "Array device must be same as the current device: array device = "
                f"{value.memory.device} while current = {local.device}"
            )
        return value.host
    if isinstance(value, SCALARS):
        return value
    raise TypeError(f"Unsupported type {type(value)}")


def launch(
    function: Callable[..., Any], *inputs: Any, out: ndarray | None = None, like: Any = None
) -> ndarray:
    """Queue it; the result has the type that NumPy would give. `like`: known beforehand."""
    known = like is not None
    operands = [
        each if known and not isinstance(each, ndarray) else operand(each) for each in inputs
    ]
    if not known:
        blank = [np.ones(x.shape, x.dtype) if isinstance(x, np.ndarray) else x for x in operands]
        with np.errstate(all="ignore"):
            like = np.asarray(function(*blank))
    if out is None:
        out = empty(like.shape, like.dtype)
    elif not isinstance(out, ndarray):
        raise TypeError(f"Unsupported type {type(out)}")
    elif operand(out).shape != np.broadcast_shapes(out.shape, like.shape):
        raise ValueError(f"out has shape {out.shape}, the result {like.shape}")
    elif not np.can_cast(like.dtype, out.dtype, "same_kind"):
        raise TypeError(f"cannot cast the result, {like.dtype}, to {out.dtype}")
    target = out.host
    current_stream().put(lambda: np.copyto(target, function(*operands), casting="same_kind"))
    return out


def _index(key: Any) -> tuple[list[Any], bool]:
    """The parts of an index; whether arrays are among them, so that it makes a copy."""
    parts = list(key) if isinstance(key, tuple) else [key]
    for number, part in enumerate(parts):
        if isinstance(part, (list, np.ndarray)):  # CuPy copies them to the device
            parts[number] = np.array(part)
        elif not (part is None or part is Ellipsis or isinstance(part, (int, slice, np.integer))):
            operand(part)
    return parts, any(isinstance(part, (ndarray, np.ndarray)) for part in parts)


def _alike(host: np.ndarray, parts: list[Any]) -> np.ndarray:
    """What an index gives, as to shape and dtype; its values may not be there yet."""
    blank = [
        np.zeros(part.shape, part.dtype) if isinstance(part, ndarray) else part for part in parts
    ]
    return np.broadcast_to(np.zeros((), host.dtype), host.shape)[tuple(blank)]


def _check_copy(one: ndarray, other: Any) -> None:
    """TypeError, ValueError or RuntimeError, as CuPy has them, for what is no plain copy."""
    if not isinstance(other, np.ndarray):
        raise TypeError(f"only numpy.ndarray goes to or comes from a device, not {type(other)}")
    if one.dtype != other.dtype:
        raise TypeError(f"{one.dtype} of the device, {other.dtype} of the host")
    if one.shape != other.shape:
        raise ValueError(f"shape mismatch: {one.shape} of the device, {other.shape} of the host")
    if not (one.flags.c_contiguous and other.flags.c_contiguous):
        raise RuntimeError("cannot copy what is not contiguous")


def _method(function: Callable[..., Any], swapped: bool = False, in_place: bool = False) -> Any:
    def method(self: ndarray, other: Any) -> ndarray:
        pair = (other, self) if swapped else (self, other)
        return launch(function, *pair, out=self if in_place else None)

    return method


def _reduction(name: str) -> Any:
    def plain(self: ndarray, axis: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
        return launch(lambda x: getattr(np, name)(x, axis=axis, keepdims=keepdims), self, out=out)

    def typed(self: ndarray, axis: Any = None, dtype: Any = None, out: Any = None,
              keepdims: bool = False) -> ndarray:  # fmt: skip
        options: dict[str, Any] = {"axis": axis, "keepdims": keepdims, "dtype": dtype}
        return launch(lambda x: getattr(np, name)(x, **options), self, out=out)

    return typed if name in TYPED else plain


ARITHMETIC = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide,
    "matmul": np.matmul, "pow": np.power, "floordiv": np.floor_divide, "mod": np.remainder,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "lshift": np.left_shift, "rshift": np.right_shift,
}  # fmt: skip
COMPARISONS = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip
UNARY = {"neg": np.negative, "invert": np.invert, "abs": np.absolute}
TYPED = ("sum", "mean", "prod")
REDUCTIONS = (*TYPED, "max", "min", "all", "any", "argmax", "argmin")
for _name, _function in ARITHMETIC.items():
    setattr(ndarray, f"__{_name}__", _method(_function))
    setattr(ndarray, f"__r{_name}__", _method(_function, swapped=True))
    setattr(ndarray, f"__i{_name}__", _method(_function, in_place=True))
for _name, _function in COMPARISONS.items():
    setattr(ndarray, f"__{_name}__", _method(_function))
for _name, _function in UNARY.items():
    setattr(ndarray, f"__{_name}__", lambda self, own=_function: launch(own, self))
for _name in REDUCTIONS:
    setattr(ndarray, _name, _reduction(_name))
