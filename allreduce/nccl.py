"""NCCL's all-reduce behind the methods of a Plan: between devices, one of each rank's own."""

import importlib
import warnings
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from allreduce.arrays import Device, summed_in
from allreduce.errors import AllreduceError, BufferRefused
from allreduce.measure import gather
from allreduce.phases import Work
from allreduce.plan import Call, wait_until

DTYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")


class _Ring(NamedTuple):
    """NCCL's communicator on the ranks of MPI's `comm`, and the stream of all that it does."""

    comm: Any
    number: int
    handle: Any
    stream: Any


_rings: list[_Ring] = []


def library(module: Any) -> Any:
    """`cupy.cuda.nccl`; its `available` says whether the library was found."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it tells how to install it, which `refusal` does
        return importlib.import_module(f"{module.__name__}.cuda.nccl")


def refusal(comm: Any, name: str, module: Any, cuda_aware: bool = False) -> str:
    """Why all ranks of `comm` cannot use it, the same on each; "" if they can. They meet here."""
    if module is np:
        return "it takes arrays of devices alone"
    import socket

    there = library(module).available
    where = zlib.crc32(f"{socket.gethostname()} {module.cuda.Device().pci_bus_id}".encode())
    told = gather(comm, [there, where])
    if not told[:, 0].all():
        lacking = ", ".join(map(str, np.flatnonzero(told[:, 0] == 0)[:4]))
        return f"no NCCL on rank {lacking}: pip install nvidia-nccl-cu12 (or -cu13)"
    first = told[:, 1].tolist().index
    for rank, device in enumerate(told[:, 1].tolist()):
        if first(device) != rank:
            return f"it needs a device a rank, and ranks {first(device)} and {rank} share one"
    return ""


class Nccl(Call):
    """One all-reduce by NCCL, to be started any number of times.

    Arguments, methods and errors are those of a Plan, with these differences. `source` and
    `result` lie on a device that no other rank uses. `chunks` other than 1 is refused, `tag` and
    `cuda_aware` are without meaning. All ranks make and start theirs in the same order, on one
    stream; that they agree is not checked. That all ranks get the same bits is not promised.

    Raises AllreduceError or BufferRefused here, with the reason; Stalled from `test` and `wait`.
    """

    def __init__(
        self,
        comm: Any,
        name: str,
        source: Any,
        result: Any = None,
        *,
        mean: bool = False,
        tag: int = 0,
        chunks: int = 1,
        deadline: float = 60.0,
        cuda_aware: bool = False,
    ):
        super().__init__(
            comm, name, source, result, mean=mean, tag=tag, chunks=chunks, deadline=deadline
        )
        memory, target = self._memory, self._target
        if not isinstance(memory, Device):
            raise BufferRefused(f"{name} takes arrays of devices alone")
        if target.dtype.name not in DTYPES:
            raise BufferRefused(f"{name} has no {target.dtype.name}")
        self._ring = _ring(comm, name, memory)
        self._memory = memory = Device(memory.module, memory.number, self._ring.stream)
        before: list[Callable[[], None]] = []
        after: list[Callable[[], None]] = []
        target = summed_in(target, mean, memory)
        if target is not self._target:
            before, after = (
                [partial(memory.copy, target, self._target)],
                [partial(memory.copy, self._target, target)],
            )
        if mean:
            after.insert(0, partial(memory.divide, target, self.size))
        self._body += [Work(memory, [*before, partial(self._reduce, target), *after])]

    def close(self) -> None:
        """What is in flight is waited for: NCCL cannot take it back."""
        if not self._closed:
            wait_until(self.test)
            self._closed = True

    def _reduce(self, target: Any) -> None:
        nccl, memory = library(self._memory.module), self._memory
        assert isinstance(memory, Device)
        dtype = getattr(nccl, f"NCCL_{target.dtype.name.upper()}")
        with memory.queueing():
            self._ring.handle.allReduce(
                target.data.ptr, target.data.ptr, target.size, dtype, nccl.NCCL_SUM,
                memory.stream.ptr,
            )  # fmt: skip


def _ring(comm: Any, name: str, memory: Device) -> _Ring:
    """The one of `comm` and this device; made by all ranks together, the first time."""
    for made in _rings:
        if made.comm == comm and made.number == memory.number:
            return made
    with memory.queueing() as module:
        if why := refusal(comm, name, module):
            raise AllreduceError(f"{name}: {why}")
        nccl = library(module)
        own = nccl.get_unique_id()  # bytes; a tuple of numbers before CuPy 14
        common = type(own)(int(octet) for octet in gather(comm, list(own))[0])
        handle = nccl.NcclCommunicator(comm.Get_size(), common, comm.Get_rank())
    _rings.append(_Ring(comm, memory.number, handle, memory.stream))
    return _rings[-1]
