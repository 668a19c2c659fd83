"""`--allreduce auto`: the all-reduce for these ranks and bytes, by a table of `mpisgd tune`, else
by the simulator on a network.

A function of what all ranks know, so that all choose alike; they compare it before a run begins.
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from allreduce import collectives, files
from allreduce.algorithms import ALGORITHMS
from allreduce.compress import priced
from allreduce.errors import AllreduceError
from allreduce.network import Network, network
from allreduce.schedule import Schedule
from allreduce.wire import Carried, Wire
from mpisgd.experiment.delays import parameters_wire
from mpisgd.experiment.experiment import Experiment
from mpisgd.tuning.table import Table, parse
from mpisgd.values.errors import UsageError
from mpisgd.values.schedules import build

if TYPE_CHECKING:
    from mpisgd.training.parameters import Parameters

OPTION = "--tuning"
VARIABLE = "MPISGD_TUNING"  # names a file where the option does not
# Of equal prices the first. The transfers of a ring grow with the square of its ranks, and so does
# what they take in memory; its latency loses long before.
PREFERRED = ("butterfly", *(name for name in ALGORITHMS if name != "butterfly"))
MOST_IN_A_RING = 1024  # ranks
# These wait for an average as soon as it has begun; gossip has none but for evaluations.
BLOCKS = ("minibatch", "local", "slowmo", "diloco", "post-local", "gossip")

Fits = Callable[[str], bool]


class Choice(NamedTuple):
    """`told`: by what it was chosen."""

    algorithm: str
    chunks: int
    told: str


def read(path: str | None) -> tuple[Table | Network | None, str]:
    """What a file says, or the one that MPISGD_TUNING names, and that name: a table, or a network
    (also a preset's name); None if there is neither. UsageError."""
    path = path or os.environ.get(VARIABLE) or None
    if path is None:
        return None, ""
    named = _named_by(path)
    try:
        found = files.toml(path) if path.endswith(".toml") else {}
        if "cell" in found:
            return parse(f"{named} {path}", found), path
        return network(path), path
    except files.Unreadable as error:
        raise UsageError(named, path, str(error)) from None
    except AllreduceError as error:
        raise UsageError(named, path, f"no table of mpisgd tune, and {error}") from None


def _named_by(path: str) -> str:
    return VARIABLE if path == os.environ.get(VARIABLE) else OPTION


def settled(
    experiment: Experiment,
    parameters: "Parameters",
    nodes: Sequence[int],
    virtual: bool,
    measured: Callable[[], Network],
) -> Experiment:
    """The experiment with `allreduce`, `chunks` and by what they were chosen. `parameters`: of all
    buckets; `nodes`: of each rank; `measured`: the network, where no file is named."""
    source, name = _source(experiment.tuning, measured)

    def fits(algorithm: str) -> bool:
        row = collectives.carrier(algorithm)
        if algorithm not in collectives.NAMES or not row.host or (virtual and not row.scheduled):
            return False
        if experiment.wire is not None and not row.scheduled:
            return False
        waits = experiment.algorithm in BLOCKS and experiment.progress != "thread"
        return row.polled or waits

    whole, wire = parameters.buffer, parameters_wire(experiment, parameters)
    nbytes = min(whole.nbytes, experiment.bucket_bytes or whole.nbytes)
    if wire is not None and nbytes < whole.nbytes:
        wire = Wire(wire.format)  # a bucket's shapes are not known
    load = Load(nbytes, whole.itemsize, wire)
    choice = choose(source, name, load, nodes, fits)
    return replace(
        experiment, allreduce=choice.algorithm, chunks=choice.chunks, allreduce_from=choice.told
    )


def by_size(
    tuning: str | None,
    sizes: Sequence[int],
    nodes: Sequence[int],
    fits: Fits,
    measured: Callable[[], Network],
) -> tuple[tuple[int, str, int, str], ...]:
    """(bytes, algorithm, chunks, by what) for each of `sizes`; the others as of `settled`."""
    source, name = _source(tuning, measured)
    return tuple((size, *choose(source, name, Load(size), nodes, fits)) for size in sizes)


def _source(path: str | None, measured: Callable[[], Network]) -> tuple[Table | Network, str]:
    """As `read`, with what is measured where no file is named."""
    source, name = read(path)
    if source is None:
        source = measured()
        name = source.name
    return source, name


class Load(NamedTuple):
    """What is to be averaged: `nbytes` bytes in elements of `itemsize`, which travel by `wire`."""

    nbytes: int
    itemsize: int = 1
    wire: Wire | None = None

    def carried(self, schedule: Schedule) -> tuple[Schedule, Carried]:
        """By which schedule and as what it travels."""
        return priced(self.wire, schedule, self.nbytes // self.itemsize, self.itemsize)

    def __str__(self) -> str:
        return f"{self.nbytes} B" + (f" as {self.wire.format}" if self.wire else "")


def choose(
    source: Table | Network, name: str, load: Load, nodes: Sequence[int], fits: Fits
) -> Choice:
    """The fastest of those that fit, by a source of that name."""
    if isinstance(source, Table):
        return _by_table(source, name, load, nodes, fits)
    return _by_network(source, name, load, nodes, fits)


def _by_table(table: Table, name: str, load: Load, nodes: Sequence[int], fits: Fits) -> Choice:
    """By the bytes that travel: a table knows messages in full."""
    _, (nbytes, *_) = load.carried(build(PREFERRED[0], len(nodes), nodes))
    each = Counter(nodes)
    shape = len(each), max(each.values())
    cell = table.nearest(*shape, nbytes, fits)
    timed = None if cell is None else cell.fastest(fits)
    if cell is None or timed is None:
        raise UsageError(_named_by(name), name, "measured nothing that may carry these averages")
    told = f"{name}, {cell.nodes} x {cell.ranks_per_node} ranks, {cell.bytes} B"
    if cell[:3] != (*shape, load.nbytes):
        told += f", the nearest to {shape[0]} x {shape[1]}, {load}"
    if not cell.settled:
        told += "; its race was not settled"
    if disturbed := table.machine.get("disturbed"):
        told += f"; disturbed when it was made: {'; '.join(map(str, disturbed))}"
    return Choice(timed.algorithm, timed.chunks, told)


def _by_network(
    network: Network, name: str, load: Load, nodes: Sequence[int], fits: Fits
) -> Choice:
    from allreduce.simulate import simulate

    ranks = len(nodes)

    def seconds(algorithm: str) -> float:
        schedule, carried = load.carried(build(algorithm, ranks, nodes))
        return float(simulate(schedule, network=network, **carried._asdict()).max())

    tried = [n for n in PREFERRED if fits(n) and ("ring" not in n or ranks <= MOST_IN_A_RING)]
    best = min(tried, key=seconds)
    return Choice(best, 1, f"simulated on {name}, {ranks} ranks, {load}")
