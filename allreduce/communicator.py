"""What is asked of a communicator and its requests: the names of mpi4py, which is not imported."""

from typing import Any, Protocol


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
