"""The table that `mpisgd tune` writes: what all-reduces took, by nodes, ranks a node and bytes.

    [machine]                     # that it is for
    mpi_library = "MPICH Version: 5.0.2"
    hosts = ["h0", "h1"]
    [[cell]]
    nodes = 1
    ranks_per_node = 2
    bytes = 65536
    settled = true                # whether the order of the first few is beyond doubt
    times = [                     # fastest first
        { algorithm = "butterfly", chunks = 1, median_s = 3.1e-05, ... },
    ]

An algorithm `mpi:NAME` is one of the library's own, forced: for its rules file, not for `train`.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mpisgd.values.errors import UsageError
from mpisgd.values.options import Kind, number, switch, text, whole

FORCED = "mpi:"  # what the names of the library's own algorithms begin with


class Timed(NamedTuple):
    """What one all-reduce took: the median over `repetitions`, and its 95 % interval, which is None
    where there were too few."""

    algorithm: str
    chunks: int
    median_s: float
    ci_low_s: float | None
    ci_high_s: float | None
    repetitions: int


class Cell(NamedTuple):
    """One row: `times` from the fastest to the slowest."""

    nodes: int
    ranks_per_node: int
    bytes: int
    settled: bool
    times: tuple[Timed, ...]

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    def fastest(self, fits: Callable[[str], bool]) -> Timed | None:
        """Of those whose name fits."""
        return next((timed for timed in self.times if fits(timed.algorithm)), None)


@dataclass(frozen=True)
class Table:
    """The cells, and the machine that they were measured on."""

    cells: tuple[Cell, ...]
    machine: Mapping[str, Any]

    def nearest(
        self, nodes: int, ranks_per_node: int, nbytes: int, fits: Callable[[str], bool]
    ) -> Cell | None:
        """The cell, among those with something that fits, that is nearest in nodes, then in ranks a
        node, then in bytes, by their ratios; None if there is none."""

        def distance(cell: Cell) -> tuple[float, ...]:
            pairs = (
                (nodes, cell.nodes), (ranks_per_node, cell.ranks_per_node), (nbytes, cell.bytes),
            )  # fmt: skip
            return tuple(abs(math.log(max(1, one) / max(1, other))) for one, other in pairs)

        usable = [cell for cell in self.cells if cell.fastest(fits) is not None]
        return min(usable, key=distance, default=None)

    def toml(self) -> str:
        """The text of a file that `parse` reads back as an equal table."""
        lines = ["# Written by mpisgd tune; train --allreduce auto --tuning takes it.", "[machine]"]
        lines += [f"{key} = {_plain(value)}" for key, value in self.machine.items()]
        for cell in self.cells:
            lines += ["", "[[cell]]"]
            lines += [f"{key} = {_plain(getattr(cell, key))}" for key in Cell._fields[:-1]]
            lines += ["times = [", *(f"    {_inline(timed)}," for timed in cell.times), "]"]
        return "\n".join(lines) + "\n"


def parse(place: str, found: Mapping[str, Any]) -> Table:
    """From a parsed file, of which `place` is the name. UsageError for what `tune` would not write;
    keys that are not known are nobody's business."""
    cells = found.get("cell")
    if not isinstance(cells, list) or not cells:
        raise UsageError(f"{place}: cell", None, "tables [[cell]], as mpisgd tune writes them")
    machine = found.get("machine", {})
    if not isinstance(machine, dict):
        raise UsageError(f"{place}: machine", machine, "a table")
    read = (_cell(f"{place}: cell[{i}]", each) for i, each in enumerate(cells, 1))
    return Table(tuple(sorted(read)), machine)


_COUNT = whole(1, 1 << 20)
_SECONDS = number(0, 1e9)
_KINDS: dict[str, Kind] = {
    "nodes": _COUNT, "ranks_per_node": _COUNT, "bytes": whole(0), "settled": switch(),
    "algorithm": text(), "chunks": whole(1, 256), "median_s": _SECONDS,
    "repetitions": whole(1),
}  # fmt: skip


def _cell(place: str, found: Any) -> Cell:
    nodes, ranks_per_node, nbytes, settled = _values(place, found, Cell._fields[:-1])
    times = found.get("times")
    if not isinstance(times, list) or not times:
        raise UsageError(f"{place}.times", None, "a list of at least one algorithm's times")
    read = [_timed(f"{place}.times[{i}]", each) for i, each in enumerate(times, 1)]
    times = tuple(sorted(read, key=lambda timed: timed.median_s))
    return Cell(nodes, ranks_per_node, nbytes, settled, times)


def _timed(place: str, found: Any) -> Timed:
    algorithm, chunks, median_s, repetitions = _values(
        place, found, ("algorithm", "chunks", "median_s", "repetitions")
    )
    ends = [
        None if found.get(key) is None else _SECONDS.read(f"{place}.{key}", found[key])
        for key in ("ci_low_s", "ci_high_s")
    ]
    return Timed(algorithm, chunks, median_s, ends[0], ends[1], repetitions)


def _values(place: str, found: Any, keys: Iterable[str]) -> list[Any]:
    if not isinstance(found, dict):
        raise UsageError(place, found, "a table")
    return [_KINDS[key].read(f"{place}.{key}", found.get(key)) for key in keys]


def _inline(timed: Timed) -> str:
    told = {key: value for key, value in timed._asdict().items() if value is not None}
    return "{ " + ", ".join(f"{key} = {_plain(value)}" for key, value in told.items()) + " }"


def _plain(value: bool | int | float | str | Sequence[str] | Mapping[str, str]) -> str:
    """As TOML has it: like JSON, but for tables."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_plain(value[key])}" for key in value) + " }"
    return json.dumps(value)
