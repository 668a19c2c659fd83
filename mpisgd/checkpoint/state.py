"""States as flat tables of arrays, and as octets on their way between ranks. No pickle."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from allreduce import arrays
from mpisgd.values.errors import UsageError

SEPARATOR = "/"
KINDS = "biuf"  # kinds of dtype that a state may have
LENGTH = 8  # octets of the number before a packed table


class BadState(UsageError):
    """A state that does not fit what is to be restored: one line with what differs."""


def flatten(state: Mapping[str, Any], prefix: str = "") -> dict[str, np.ndarray]:
    """`{"a": {"b": 1}}` -> `{"a/b": array(1)}`. Empty dicts and values that are None vanish."""
    flat: dict[str, np.ndarray] = {}
    for name, value in state.items():
        assert SEPARATOR not in name, name
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}{SEPARATOR}")
        elif value is not None:
            array = arrays.of(value).get(value) if arrays.is_array(value) else np.asarray(value)
            assert array.dtype.kind in KINDS, (name, array.dtype)
            flat[prefix + name] = array
    return flat


def unflatten(flat: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """What `flatten` was given: arrays without dimensions become numbers."""
    state: dict[str, Any] = {}
    for path, array in flat.items():
        *parents, name = path.split(SEPARATOR)
        place = state
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = array if array.ndim else array.item()
    return state


def copy_into(live: Mapping[str, np.ndarray], saved: Mapping[str, Any], what: str) -> None:
    """Fill the arrays of `live` with the saved ones of the same names. Raises BadState."""
    if live.keys() != saved.keys():
        raise BadState(f"{what} holds {_names(saved)}, not {_names(live)}")
    for name, array in live.items():
        value = np.asarray(saved[name])
        if (value.shape, value.dtype) != (array.shape, array.dtype):
            raise BadState(
                f"{what}: {name} is {value.dtype} {value.shape}, not {array.dtype} {array.shape}"
            )
        arrays.of(array).put(array, value)


def pack(state: Mapping[str, Any]) -> np.ndarray:
    """The state as octets (n,) uint8, to be sent."""
    flat = flatten(state)
    table = json.dumps([(n, a.dtype.str, a.shape) for n, a in flat.items()]).encode()
    parts = [np.array([len(table)], "<u8"), np.frombuffer(table, np.uint8), *flat.values()]
    return np.concatenate([_octets(part) for part in parts])


def unpack(octets: np.ndarray) -> dict[str, Any]:
    """The state that `pack` was given; its arrays lie in `octets`."""
    edge = LENGTH + int(octets[:LENGTH].view("<u8")[0])
    flat, low = {}, edge
    for name, dtype, shape in json.loads(octets[LENGTH:edge].tobytes()):
        high = low + math.prod(shape) * np.dtype(dtype).itemsize
        flat[name] = np.frombuffer(octets[low:high].tobytes(), dtype).reshape(shape)
        low = high
    return unflatten(flat)


def _octets(array: np.ndarray) -> np.ndarray:
    return np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)


def _names(state: Iterable[str]) -> str:
    return ", ".join(sorted(state)) or "nothing"
