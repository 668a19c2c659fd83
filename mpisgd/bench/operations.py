"""What is timed: all-reduces of our own, the library's, and what else its parts could do."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from allreduce import arrays, measure
from allreduce.native import NATIVE, bare
from allreduce.plan import Runner
from allreduce.schedule import bounds
from mpisgd.values.schedules import maker

Call = Callable[[], object]


class Operation(NamedTuple):
    """One all-reduce, made ready: each `run` is one call; `close` gives its requests back."""

    run: Call
    close: Call


class Vectors:
    """What is reduced, and where the sum goes: the same array when it is in place."""

    def __init__(self, module: Any, count: int, dtype: np.dtype, in_place: bool):
        self.module = module  # NumPy or CuPy
        self.source = self.module.zeros(count, dtype)
        self.source[...] = 0  # now the pages are there
        self.result = self.source if in_place else self.module.zeros(count, dtype)
        self.result[...] = 0

    @property
    def in_place(self) -> bool:
        return self.result is self.source

    def count_wrong(self, comm: Any, run: Call, deadline: float) -> int:
        """How many elements `run` gets wrong, on all ranks together; zeros are left behind."""
        rank, size = comm.Get_rank(), comm.Get_size()
        count, dtype, wrong = self.source.size, np.dtype(self.source.dtype), 0
        for trial in range(measure.trials(size, dtype)):
            given = measure.pattern(rank, size, count, dtype, trial)
            self.source[...] = self.module.asarray(given)
            run()
            wrong += measure.wrong(self._host(self.result), size, trial)
            if not self.in_place:  # then the input must not change
                wrong += int(np.count_nonzero(self._host(self.source) != given))
        self.source[...] = 0
        return int(measure.gather(comm, [wrong], deadline).sum())

    def _host(self, vector: Any) -> np.ndarray:
        return vector if self.module is np else vector.get()


def operation(
    comm: Any,
    name: str,
    vectors: Vectors,
    *,
    chunks: int = 1,
    nodes: Sequence[int] | None = None,
    order: Sequence[int] | None = None,
    deadline: float = 60.0,
    cuda_aware: bool = False,
) -> Operation:
    """The all-reduce `name`. The library's run bare on host memory, as any program calls them."""
    if name in MOCK_UPS:
        call = MOCK_UPS[name](comm, vectors.source, vectors.result)
        return Operation(
            call if vectors.module is np else _after_the_stream(vectors, call), _nothing
        )
    if name in NATIVE and isinstance(vectors.source, np.ndarray):
        return Operation(*bare(comm, name, vectors.source, vectors.result))
    made = pending(
        comm, name, vectors, chunks=chunks, nodes=nodes, order=order, deadline=deadline,
        cuda_aware=cuda_aware,
    )  # fmt: skip
    start, wait = made.start, made.wait

    def run() -> None:
        start()
        wait()

    return Operation(run, made.close)


def pending(
    comm: Any,
    name: str,
    vectors: Vectors,
    *,
    chunks: int = 1,
    nodes: Sequence[int] | None = None,
    order: Sequence[int] | None = None,
    deadline: float = 60.0,
    cuda_aware: bool = False,
) -> Runner:
    """The all-reduce `name` with the methods of a Plan."""
    result = None if vectors.in_place else vectors.result
    return maker(name, comm.Get_size(), nodes, order)(
        comm, vectors.source, result, chunks=chunks, deadline=deadline, cuda_aware=cuda_aware
    )


def _after_the_stream(vectors: Vectors, call: Call) -> Call:
    """`call` once the device has done what is queued: MPI knows of no stream."""
    stream = vectors.module.cuda.get_current_stream()

    def run() -> None:
        stream.synchronize()
        call()

    return run


def _nothing() -> None:
    """There is nothing to give back."""


def library_of(comm: Any) -> Any:
    """The module whose communicator this is: mpi4py.MPI, with its constants."""
    return sys.modules[type(comm).__module__]


def _given(comm: Any, source: Any, result: Any) -> Any:
    return library_of(comm).IN_PLACE if source is result else source


def _reduce_broadcast(comm: Any, source: Any, result: Any) -> Call:
    """MPI_Reduce to rank 0, then MPI_Bcast."""
    given, taken = _given(comm, source, result), result
    if comm.Get_rank() > 0:
        given, taken = source, None

    def run() -> None:
        comm.Reduce(given, taken)
        comm.Bcast(result)

    return run


def _reduce_scatter_allgather(comm: Any, source: Any, result: Any) -> Call:
    """MPI_Reduce_scatter, then MPI_Allgatherv, through a buffer of this rank's share."""
    edges = bounds(result.size, comm.Get_size())
    counts = np.diff(edges).tolist()
    own = arrays.of(result).empty(counts[comm.Get_rank()], np.dtype(result.dtype))

    def run() -> None:
        comm.Reduce_scatter(source, own, counts)
        comm.Allgatherv(own, (result, counts))

    return run


MOCK_UPS = {
    "mpi-reduce-bcast": _reduce_broadcast,
    "mpi-reduce-scatter-allgather": _reduce_scatter_allgather,
}
"""What the library's all-reduce must not lose to, or its tuning is bad: then to beat it is
nothing. Hunold, Carpen-Amarie 2018 (performance guidelines)."""
