"""What the double has, CuPy has, under the same names and parameters: asked of the real wheel.

All of the device path is tested on the double, so what is not in it is not used. No device is
needed: `pip install -e '.[cuda12]'` or `'.[cuda13]'`. Skipped without CuPy.
"""

import importlib
import inspect
import re
import warnings
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from allreduce.testing import device as double
from allreduce.testing.device import nccl, runtime

OWN = {
    "NAME", "REDUCTIONS", "UFUNCS", "Event", "ModuleType", "Stream", "counts", "cuda", "launch",
    "octets", "settings",
}  # fmt: skip
OF_ARRAYS = {"host", "memory", "now"}  # what tests may look at
OF_STREAMS = {"lane", "number", "position", "put", "queue", "run_to", "step"}
OF_EVENTS = {"end", "moment", "polls", "query", "stream", "timed", "device"}
NCCL = {"allReduce": "(sendbuf, recvbuf, count, datatype, op, stream)"}


@pytest.fixture(scope="module")
def cupy() -> Any:
    found = pytest.importorskip("cupy", reason="CuPy is not installed: the extras cuda12, cuda13")
    if found is double:
        pytest.skip("the double stands in for CuPy")
    return found


def public(owner: Any, without: set[str]) -> Iterator[tuple[str, Any]]:
    """What is CuPy's of the double, by name."""
    for name, value in vars(owner).items():
        foreign = isinstance(value, ModuleType) or getattr(value, "__module__", "") in (
            "typing", "types", "collections.abc",
        )  # fmt: skip
        if not name.startswith("_") and name not in without and not foreign:
            yield name, value


def parameters(function: Any) -> set[str] | None:
    """Their names; of a compiled function from its first line of documentation; None: nobody says.

    `*args` of a ufunc or of a generalised one hide nothing: what is given by name is listed.
    """
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        line = (getattr(function, "__doc__", None) or "").strip().partition("\n")[0]
    found = re.search(r"\((.*)\)", line)
    if found is None:
        return None
    given = (re.split(r"[=:]", each)[0].strip(" *\\") for each in found[1].split(","))
    return {each.split()[-1] for each in given if each.strip()} - {"/"}


def lacking(ours: Any, theirs: Any) -> set[str]:
    """Parameters that CuPy's does not have."""
    own = parameters(ours) if callable(ours) else None
    known = parameters(theirs)
    if own is None or known is None:
        return set()
    hidden = {"args", "options", "inputs", "_", "__"}
    return own - known - hidden - {"self", "a", "b"}


def check(ours: Iterator[tuple[str, Any]], theirs: Any, where: str) -> list[str]:
    """Names and parameters that CuPy lacks."""
    found = []
    for name, value in ours:
        if not hasattr(theirs, name):
            found.append(f"{where}.{name}")
        elif not isinstance(value, (type, property, SimpleNamespace)):
            found += [f"{where}.{name}({each})" for each in lacking(value, getattr(theirs, name))]
    return found


def test_functions_arrays_and_constants(cupy):
    assert check(public(double, OWN), cupy, "cupy") == []
    assert check(public(double.ndarray, OF_ARRAYS), cupy.ndarray, "cupy.ndarray") == []
    for name in ("__cuda_array_interface__", "__matmul__", "__iadd__", "__getitem__"):
        assert hasattr(cupy.ndarray, name)
    assert cupy.ndarray.__module__.partition(".")[0] == "cupy"  # how `arrays.of` finds the module


def test_streams_events_and_devices(cupy):
    cuda = cupy.cuda
    assert check(public(double.cuda, {"nccl"}), cuda, "cuda") == []
    for ours, without in (
        (double.Stream, OF_STREAMS), (double.Event, OF_EVENTS), (double.cuda.Device, set()),
    ):  # fmt: skip
        theirs = getattr(cuda, ours.__name__)
        assert check(public(ours, without), theirs, ours.__name__) == []
        if (known := parameters(theirs)) is not None:
            assert set(inspect.signature(ours).parameters) <= known
    for name in ("ptr", "device_id"):
        assert hasattr(cuda.Stream.null, name)


def test_the_runtime_and_its_errors(cupy):
    ours, theirs = double.cuda.runtime, cupy.cuda.runtime
    assert check(public(ours, set()), theirs, "runtime") == []
    error = theirs.CUDARuntimeError(runtime.ILLEGAL_ADDRESS)
    assert "cudaErrorIllegalAddress" in str(error)
    assert theirs.CUDARuntimeError(runtime.NOT_READY).status == runtime.NOT_READY == 600
    assert parameters(theirs.eventQuery) == {"event"}
    assert hasattr(cupy.cuda.memory, "OutOfMemoryError")
    for number, text in runtime.NAMES.items():
        assert str(theirs.CUDARuntimeError(number)).startswith(text.partition(":")[0])


def test_nccl(cupy):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = importlib.import_module("cupy.cuda.nccl")
    if not theirs.available:
        pytest.skip("NCCL is not installed: nvidia-nccl-cu12 or -cu13")
    assert check(public(nccl, {"memory", "runtime", "KINDS"}), theirs, "nccl") == []
    assert parameters(theirs.NcclCommunicator.allReduce) in (
        None, {"self", *re.findall(r"\w+", NCCL["allReduce"])},
    )  # fmt: skip


def test_the_check_itself_sees_what_is_lacking():
    real = SimpleNamespace(get=lambda stream=None: 0)
    ours = [("get", lambda stream=None, out=None: 0), ("put", len)]
    assert check(iter(ours), real, "x") == ["x.get(out)", "x.put"]
    documented = type("F", (), {"__doc__": "get(self, int stream=None, order='C')"})
    documented.__signature__ = "none"  # type: ignore[attr-defined]
    assert parameters(documented) == {"self", "stream", "order"}
