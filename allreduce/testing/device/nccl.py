"""The double's NCCL: an all-reduce by MPI, as an operation of a stream that may take its time."""

import random
import sys
from typing import Any

import numpy as np

from allreduce.testing.device import memory, runtime

available = True
NCCL_SUM = 0
KINDS = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")
for _number, _kind in enumerate(KINDS):
    globals()[f"NCCL_{_kind.upper()}"] = _number


def get_unique_id() -> bytes:
    return random.randbytes(128)


class NcclCommunicator:
    """All ranks of MPI's world, each at a device of its own."""

    def __init__(self, ndev: int, commId: bytes, rank: int):  # noqa: N803 (CuPy's name)
        world = sys.modules["mpi4py.MPI"].COMM_WORLD
        self.comm = world.Dup()
        places = world.allgather((runtime.host(), runtime.local.device))
        assert (type(commId), len(commId)) == (bytes, 128)
        assert (ndev, rank) == (world.Get_size(), world.Get_rank())
        assert world.allgather(commId) == ndev * [commId], "ranks disagree in the id"
        assert len(set(places)) == ndev, "ncclInvalidUsage: a device of two ranks"

    def allReduce(  # noqa: N802 (CuPy's name)
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int
    ) -> None:
        assert op == NCCL_SUM
        dtype = np.dtype(KINDS[datatype])
        source, target = (memory.at(each, count * dtype.itemsize) for each in (sendbuf, recvbuf))
        request: list[Any] = []

        def reduce() -> bool:
            if not request:
                given = source.view(dtype).copy()
                request.append(self.comm.Iallreduce(given, target.view(dtype)))
            return bool(request[0].Test())

        runtime.stream_at(stream).put(reduce)
