"""Who carries an all-reduce: one row each, by the name that a user gives.

A row makes, for a number of ranks and the node of each, a `Maker`: what makes one all-reduce on a
communicator, with the methods of a Plan. A new carrier is a file with a Runner, and a row here.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from allreduce import native
from allreduce.algorithms import ALGORITHMS, build
from allreduce.native import NATIVE, Native
from allreduce.nccl import Nccl
from allreduce.nccl import refusal as nccl_refusal
from allreduce.plan import Plan, Runner
from allreduce.schedule import Schedule


class Maker(Protocol):
    """Makes one all-reduce of `source`; arguments, errors and result are those of Plan. A `wire`
    and its `error` go to schedules only."""

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
        **wire: Any,
    ) -> Runner: ...


def _nothing_speaks_against_it(comm: Any, name: str, module: Any, cuda_aware: bool) -> str:
    return ""


class Carrier(NamedTuple):
    """One row. `chunked`: it can cut messages; `polled`: it moves on while somebody looks, else it
    is begun and over in `start()`; `scheduled`: it can be verified, evaluated and simulated;
    `host`: it takes memory of the host. `refusal(comm, name, module, cuda_aware)`: why it cannot
    work on arrays of `module`, the same on all ranks, which meet there; "" if it can."""

    maker: "Callable[[str, int, Nodes, Build], Maker]"
    chunked: bool = True
    polled: bool = True
    scheduled: bool = True
    host: bool = True
    refusal: "Callable[[Any, str, Any, bool], str]" = _nothing_speaks_against_it


Nodes = Sequence[int] | None
Build = Callable[[str, int, Nodes], Schedule]


def _plans(name: str, size: int, nodes: Nodes, build: Build) -> Maker:
    schedule = build(name, size, nodes)

    def make(comm: Any, source: Any, result: Any = None, **options: Any) -> Plan:
        return Plan(comm, schedule, source, result, **options)

    return make


def _named(runner: Callable[..., Runner]) -> "Callable[[str, int, Nodes, Build], Maker]":
    """Of a Runner that takes its name behind the communicator."""

    def maker(name: str, size: int, nodes: Nodes, build: Build) -> Maker:
        def make(comm: Any, source: Any, result: Any = None, **options: Any) -> Runner:
            return runner(comm, name, source, result, **options)

        return make

    return maker


PLANNED = Carrier(_plans)
CARRIERS = {
    **dict.fromkeys(ALGORITHMS, PLANNED),
    **{
        name: Carrier(
            _named(Native),
            chunked=False,
            polled=name != "mpi",
            scheduled=False,
            refusal=native.refusal,
        )
        for name in NATIVE
    },
    "nccl": Carrier(_named(Nccl), chunked=False, scheduled=False, host=False, refusal=nccl_refusal),
}
NAMES = (*CARRIERS, *(f"hierarchical:{inner}" for inner in ALGORITHMS))


def carrier(name: str) -> Carrier:
    """The row of `name`. Any other name, as `hierarchical:ring`, is that of a schedule."""
    return CARRIERS.get(name, PLANNED)


SCHEDULES = tuple(name for name in NAMES if carrier(name).scheduled)


def maker(name: str, size: int, nodes: Nodes = None, build: Build = build) -> Maker:
    """What makes all-reduces `name` of `size` ranks; `nodes` as in `build`, which may know more
    schedules. ScheduleError for a name that nothing has."""
    return carrier(name).maker(name, size, nodes, build)
