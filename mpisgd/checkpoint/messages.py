"""States on their way between ranks: one at a time, in pieces, with a deadline."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from allreduce.errors import Stalled
from allreduce.plan import wait_until
from mpisgd.checkpoint.state import pack, unpack

TAG = 32002
PIECE = 1 << 26  # octets of a message
PATIENCE = 10  # deadlines that a rank waits for others to be saved before it


def send(comm: Any, state: Mapping[str, Any], to: int, deadline: float) -> None:
    """Wait until rank `to` has taken it. Raises Stalled."""
    octets = pack(state)
    _wait(comm.Isend(np.array([octets.size]), to, TAG), comm, to, PATIENCE * deadline)
    for low in range(0, octets.size, PIECE):
        _wait(comm.Isend(octets[low : low + PIECE], to, TAG), comm, to, PATIENCE * deadline)


def receive(comm: Any, source: int, deadline: float) -> dict[str, Any]:
    """The next state that rank `source` sends. Raises Stalled."""
    size = np.zeros(1, np.int64)
    _wait(comm.Irecv(size, source, TAG), comm, source, deadline)
    octets = np.empty(int(size[0]), np.uint8)
    for low in range(0, octets.size, PIECE):
        _wait(comm.Irecv(octets[low : low + PIECE], source, TAG), comm, source, deadline)
    return unpack(octets)


def _wait(request: Any, comm: Any, peer: int, deadline: float) -> None:
    began = time.monotonic()

    def done() -> bool:
        if request.Test():
            return True
        if time.monotonic() - began > deadline:
            rank = comm.Get_rank()
            raise Stalled(f"rank {rank} waited {deadline:.0f} s for rank {peer} at a checkpoint")
        return False

    wait_until(done)
