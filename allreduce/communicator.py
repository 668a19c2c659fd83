"""What is asked of a communicator and its requests: the names of mpi4py, which is not imported."""

import sys
import time
from typing import Any, Protocol

HAND_ON = 0.5  # s the launcher gets to hand on what a rank said, before the abort cuts it off


class Request(Protocol):
    """A message on its way."""

    def Test(self) -> bool:  # noqa: N802
        """Whether it is done; moves MPI on."""


class Communicator(Protocol):
    """One rank's end of a group of ranks: mpi4py's, or testing.loopback's."""

    def Get_rank(self) -> int: ...  # noqa: N802

    def Get_size(self) -> int: ...  # noqa: N802

    def Send_init(self, buf: Any, dest: int, tag: int = 0) -> Any: ...  # noqa: N802

    def Recv_init(self, buf: Any, source: int, tag: int = 0) -> Any: ...  # noqa: N802

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request: ...  # noqa: N802

    def Irecv(self, buf: Any, source: int, tag: int = 0) -> Request: ...  # noqa: N802

    def Iprobe(self, source: int, tag: int = 0) -> bool: ...  # noqa: N802

    def Recv(self, buf: Any, source: int, tag: int = 0) -> object: ...  # noqa: N802

    def Abort(self, errorcode: int = 0) -> Any: ...  # noqa: N802


def abort(comm: Communicator, words: str, code: int, hand_on: float | None = None) -> None:
    """End all ranks with exit code `code`, after `words` on standard error have been handed on.

    `hand_on`: s it gets, instead of HAND_ON. Some libraries return from Abort.
    """
    sys.stdout.flush()
    print(words, file=sys.stderr, flush=True)
    time.sleep(HAND_ON if hand_on is None else hand_on)
    comm.Abort(code)
