"""Who carries an all-reduce: one row each, by the name that a user gives.

A row makes, for a number of ranks and the node of each, a `Maker`: what makes one all-reduce on a
communicator, with the methods of a Plan. A new carrier is a file with a Runner, and a row here.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from allreduce.algorithms import ALGORITHMS, build
from allreduce.native import NATIVE, Native
from allreduce.plan import Plan, Runner
from allreduce.schedule import Schedule


class Maker(Protocol):
    """Makes one all-reduce of `source`; arguments, errors and result are those of Plan."""

    def __call__(
        self,
        comm: Any,
        source: Any,
        result: Any = None,
        *,
        mean: bool = False,
        tag: int = 0,
        chunks: int = 1,
        deadline: float = 60.0,
        cuda_aware: bool = False,
    ) -> Runner: ...


class Carrier(NamedTuple):
    """One row. `chunked`: it can cut messages; `polled`: it moves on while somebody looks, else it
    is begun and over in `start()`; `scheduled`: it can be verified, evaluated and simulated."""

    maker: "Callable[[str, int, Nodes, Build], Maker]"
    chunked: bool = True
    polled: bool = True
    scheduled: bool = True


Nodes = Sequence[int] | None
Build = Callable[[str, int, Nodes], Schedule]


def _plans(name: str, size: int, nodes: Nodes, build: Build) -> Maker:
    schedule = build(name, size, nodes)

    def make(comm: Any, source: Any, result: Any = None, **options: Any) -> Plan:
        return Plan(comm, schedule, source, result, **options)

    return make


def _natives(name: str, size: int, nodes: Nodes, build: Build) -> Maker:
    def make(comm: Any, source: Any, result: Any = None, **options: Any) -> Native:
        return Native(comm, name, source, result, **options)

    return make


PLANNED = Carrier(_plans)
CARRIERS = {
    **dict.fromkeys(ALGORITHMS, PLANNED),
    **{
        name: Carrier(_natives, chunked=False, polled=name != "mpi", scheduled=False)
        for name in NATIVE
    },
}
NAMES = (*CARRIERS, *(f"hierarchical:{inner}" for inner in ALGORITHMS))
SCHEDULES = tuple(name for name in NAMES if name not in NATIVE)


def carrier(name: str) -> Carrier:
    """The row of `name`. Any other name, as `hierarchical:ring`, is that of a schedule."""
    return CARRIERS.get(name, PLANNED)


def maker(name: str, size: int, nodes: Nodes = None, build: Build = build) -> Maker:
    """What makes all-reduces `name` of `size` ranks; `nodes` as in `build`, which may know more
    schedules. ScheduleError for a name that nothing has."""
    return carrier(name).maker(name, size, nodes, build)
