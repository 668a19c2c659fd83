"""`--allreduce auto`: the all-reduce for these ranks and bytes, by a table of `mpisgd tune`, else
by the simulator on a network.

A function of what all ranks know, so that all choose alike; they compare it before a run begins.
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from allreduce import collectives, files
from allreduce.algorithms import ALGORITHMS
from allreduce.errors import AllreduceError
from allreduce.network import Network, network
from mpisgd.experiment.experiment import Experiment
from mpisgd.tuning.table import Table, parse
from mpisgd.values.errors import UsageError
from mpisgd.values.schedules import build

OPTION = "--tuning"
VARIABLE = "MPISGD_TUNING"  # names a file where the option does not
# Of equal prices the first. The transfers of a ring grow with the square of its ranks, and so does
# what they take in memory; its latency loses long before.
PREFERRED = ("butterfly", *(name for name in ALGORITHMS if name != "butterfly"))
MOST_IN_A_RING = 1024  # ranks
# These wait for an average as soon as it has begun.
BLOCKS = ("minibatch", "local", "slowmo", "diloco", "post-local")

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
    try:
        found = files.toml(path) if path.endswith(".toml") else {}
        if "cell" in found:
            return parse(f"{OPTION} {path}", found), path
        return network(path), path
    except files.Unreadable as error:
        raise UsageError(OPTION, path, str(error)) from None
    except AllreduceError as error:
        raise UsageError(OPTION, path, f"no table of mpisgd tune, and {error}") from None


def settled(
    experiment: Experiment,
    nbytes: int,
    nodes: Sequence[int],
    virtual: bool,
    measured: Callable[[], Network],
) -> Experiment:
    """The experiment with `allreduce`, `chunks` and by what they were chosen. `nbytes`: of all
    parameters; `nodes`: of each rank; `measured`: the network, where no file is named."""
    source, name = read(experiment.tuning)
    if source is None:
        source = measured()
        name = source.name

    def fits(algorithm: str) -> bool:
        row = collectives.carrier(algorithm)
        if algorithm not in collectives.NAMES or not row.host or (virtual and not row.scheduled):
            return False
        waits = experiment.algorithm in BLOCKS and experiment.progress != "thread"
        return row.polled or waits

    if experiment.bucket_bytes is not None:
        nbytes = min(nbytes, experiment.bucket_bytes)
    choice = choose(source, name, nbytes, nodes, fits)
    return replace(
        experiment, allreduce=choice.algorithm, chunks=choice.chunks, allreduce_from=choice.told
    )


def choose(
    source: Table | Network, name: str, nbytes: int, nodes: Sequence[int], fits: Fits
) -> Choice:
    """The fastest of those that fit, by a source of that name."""
    if isinstance(source, Table):
        return _by_table(source, name, nbytes, nodes, fits)
    return _by_network(source, name, nbytes, nodes, fits)


def _by_table(table: Table, name: str, nbytes: int, nodes: Sequence[int], fits: Fits) -> Choice:
    each = Counter(nodes)
    shape = len(each), max(each.values())
    cell = table.nearest(*shape, nbytes, fits)
    timed = None if cell is None else cell.fastest(fits)
    if cell is None or timed is None:
        raise UsageError(OPTION, name, "measured nothing that may carry these averages")
    told = f"{name}, {cell.nodes} x {cell.ranks_per_node} ranks, {cell.bytes} B"
    if cell[:3] != (*shape, nbytes):
        told += f", the nearest to {shape[0]} x {shape[1]}, {nbytes} B"
    return Choice(timed.algorithm, timed.chunks, told)


def _by_network(
    network: Network, name: str, nbytes: int, nodes: Sequence[int], fits: Fits
) -> Choice:
    from allreduce.simulate import simulate

    ranks = len(nodes)

    def seconds(algorithm: str) -> float:
        return float(simulate(build(algorithm, ranks, nodes), nbytes, network).max())

    tried = [n for n in PREFERRED if fits(n) and ("ring" not in n or ranks <= MOST_IN_A_RING)]
    best = min(tried, key=seconds)
    return Choice(best, 1, f"simulated on {name}, {ranks} ranks, {nbytes} B")
