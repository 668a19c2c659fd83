"""The races of `mpisgd tune`: one for each number of nodes, of ranks on a node, and of bytes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from allreduce.collectives import carrier
from allreduce.forced import Forcing, variable
from allreduce.measure import Rule, held_up, median_interval
from mpisgd.bench.operations import Vectors, library_of, operation
from mpisgd.tuning.race import Contender, race
from mpisgd.tuning.table import FORCED, Cell, Timed
from mpisgd.values.errors import UsageError

DTYPE = np.dtype(np.float32)
CUT_FROM = 1 << 14  # bytes from which on messages are also cut in chunks
SHAPES = ("--nodes", "--ranks-per-node")


class Shape(NamedTuple):
    """Ranks that take part: so many on each of so many nodes."""

    nodes: int
    ranks_per_node: int


@dataclass(frozen=True)
class Settings:
    """What is measured; `algorithms` may hold `mpi:NAME`, one of the library's own."""

    algorithms: tuple[str, ...]
    sizes: tuple[int, ...]
    chunks: tuple[int, ...]
    nodes: tuple[int, ...] | None
    ranks_per_node: tuple[int, ...] | None
    rule: Rule
    deadline_s: float

    def on(self, nodes: Sequence[int]) -> "Settings":
        """For ranks on these nodes: powers of two and all there are, where none were named, and the
        algorithms of this MPI library. UsageError for what is not there."""
        there = len(set(nodes)), min(nodes.count(node) for node in set(nodes))
        asked = self.nodes or _doubled(there[0]), self.ranks_per_node or _doubled(there[1])
        for option, given, most in zip(SHAPES, asked, there, strict=True):
            if max(given) > most:
                raise UsageError(option, max(given), f"at most {most}, which is what was started")
        wanted = replace(self, nodes=asked[0], ranks_per_node=asked[1])
        if not wanted.shapes():
            raise UsageError("mpisgd tune", None, "needs 2 ranks; start more with mpiexec -n")
        return replace(wanted, algorithms=tuple(_of_library(self.algorithms)))

    def shapes(self) -> list[Shape]:
        """Those of more than one rank."""
        every = product(self.nodes or (), self.ranks_per_node or ())
        return [Shape(*pair) for pair in every if pair != (1, 1)]

    @property
    def races(self) -> int:
        return len(self.shapes()) * len(self.sizes)


def members(shape: Shape, nodes: Sequence[int]) -> list[int]:
    """The ranks that take part: the first of each of the first nodes."""
    first = list(dict.fromkeys(nodes))[: shape.nodes]
    each = {node: [r for r, n in enumerate(nodes) if n == node] for node in first}
    return sorted(rank for node in first for rank in each[node][: shape.ranks_per_node])


def measure(
    comm: Any, chosen: Settings, nodes: Sequence[int], told: Callable[[], object]
) -> list[Cell]:
    """The cells, on rank 0, which takes part in every race; `told` is called after each."""
    cells = []
    undefined = library_of(comm).UNDEFINED
    forcing = _forcing(chosen)
    for shape in chosen.shapes():
        inside = members(shape, nodes)
        part = comm.Split(0 if comm.Get_rank() in inside else undefined, comm.Get_rank())
        own = [nodes[rank] for rank in inside]
        for nbytes in chosen.sizes:
            if comm.Get_rank() in inside:
                cells.append(_cell(part, chosen, shape, own, nbytes, forcing))
            held_up(comm, chosen.deadline_s)
            told()
        if comm.Get_rank() in inside:
            part.Free()
    return cells


def _doubled(most: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys([*(1 << k for k in range(most.bit_length())), most]))


def _of_library(names: Sequence[str]) -> Iterator[str]:
    """With `mpi:all` written out; nothing of a library whose algorithms are not known."""
    found = variable()
    known = {} if found is None else found.algorithms
    for name in names:
        own = name.removeprefix(FORCED)
        if own == name:
            yield name
        elif own == "all":
            yield from (FORCED + each for each in known if FORCED + each not in names)
        elif own in known:
            yield name
        else:
            there = ", ".join(known) or "none that is known"
            raise UsageError("--algorithms", name, f"this library's own are {there}")


def _forcing(chosen: Settings) -> Forcing | None:
    return Forcing() if any(name.startswith(FORCED) for name in chosen.algorithms) else None


def _cell(
    comm: Any, chosen: Settings, shape: Shape, nodes: list[int], nbytes: int,
    forcing: Forcing | None,
) -> Cell:  # fmt: skip
    vectors = Vectors(np, nbytes // DTYPE.itemsize, DTYPE, in_place=True)
    there = list(_contenders(comm, chosen, shape, nodes, vectors, forcing))
    seconds, settled = race(comm, there, chosen.rule, chosen.deadline_s)
    if forcing is not None:  # ranks outside know nothing of it, and would wait for another
        forcing.force(None)
    times = [_timed(*pair) for pair in zip(there, seconds, strict=True)]
    return Cell(*shape, nbytes, settled, tuple(sorted(times, key=lambda timed: timed.median_s)))


def _contenders(
    comm: Any, chosen: Settings, shape: Shape, nodes: list[int], vectors: Vectors,
    forcing: Forcing | None,
) -> Iterator[Contender]:  # fmt: skip
    """On one node, or with one rank on each, there is no hierarchy to follow."""
    for name, chunks in _named(chosen, vectors.source.nbytes, flat=1 in shape):
        if forcing is not None and (name == "mpi" or name.startswith(FORCED)):
            forced = name.removeprefix(FORCED) if name != "mpi" else None
            own, before = forcing.prepared(comm, forced)
            made = operation(own, "mpi", vectors)
            yield Contender(name, 1, "blocking", made.run, own.Free, before)
            continue
        made = operation(
            comm, name, vectors, chunks=chunks, nodes=nodes, deadline=chosen.deadline_s
        )
        row = carrier(name)
        kind = "ours" if row.scheduled else "polled" if row.polled else "blocking"
        yield Contender(name, chunks, kind, made.run, made.close)


def _named(chosen: Settings, nbytes: int, flat: bool) -> Iterator[tuple[str, int]]:
    for name in chosen.algorithms:
        if flat and name.startswith("hierarchical"):
            continue
        cut = not name.startswith(FORCED) and carrier(name).chunked and nbytes >= CUT_FROM
        for chunks in chosen.chunks if cut else (1,):
            yield name, chunks


def _timed(contender: Contender, seconds: np.ndarray) -> Timed:
    times = seconds.max(axis=1)
    low, high = (None if np.isnan(end) else end for end in median_interval(times))
    median = float(np.median(times))
    return Timed(contender.algorithm, contender.chunks, median, low, high, len(times))
