"""One round of a validation: calibrate, then measure and simulate every cell, in random order."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from allreduce.measure import Rule, held_up
from mpisgd.bench.record import library_told
from mpisgd.mpi.cores import Places
from mpisgd.predict import links
from mpisgd.validation.allreduces import DTYPE, Cell
from mpisgd.validation.errors import error, typical
from mpisgd.validation.steps import ALONE, Training

Found = tuple[dict[str, Any], np.ndarray]  # a row, and its samples [repetition, rank]


@dataclass(frozen=True)
class Settings:
    """What is validated."""

    algorithms: tuple[str, ...]
    sizes: tuple[int, ...]
    chunks: tuple[int, ...]
    runs: tuple[str, ...]
    rounds: int
    messages: int
    rule: Rule
    seed: int
    deadline_s: float
    allow: float | None
    fastest: float
    training: Training

    def cells(self) -> list[Cell]:
        """In the order of the table."""
        return [
            Cell(name, size, chunks)
            for size in self.sizes for name in self.algorithms for chunks in self.chunks
        ]  # fmt: skip


class Round:
    """All ranks of `comm` go through it alike; only rank 0 has rows. `told`: after each part."""

    def __init__(self, comm: Any, chosen: Settings, where: Places, told: Callable[[], object]):
        self.comm, self.chosen, self.where, self.told = comm, chosen, where, told
        self.speaks = comm.Get_rank() == 0
        self.links = links.calibrated(
            comm, where.hosts, chosen.messages, chosen.deadline_s, chosen.fastest
        )
        told()

    def allreduces(self, cells: Sequence[Cell]) -> Iterator[Found]:
        nodes, chosen = self.where.nodes, self.chosen
        for cell in cells:
            seconds = cell.measure(self.comm, chosen.rule, nodes, chosen.deadline_s)
            if self.speaks:
                row = {"part": "communication", **cell._asdict(), "unseen": cell.unseen(nodes),
                       "in_place": True, "dtype": DTYPE.name}  # fmt: skip
                yield self._row(row, seconds, cell.simulate(nodes, self.links)), seconds
            self._together()

    def steps(self, names: Sequence[str]) -> Iterator[Found]:
        training, size = self.chosen.training, self.comm.Get_size()
        step_s = training.calibrate(self.comm) if names else 0.0
        for name in names:
            found = training.measure(self.comm, name)
            if found is not None:
                row = {"part": "step", "algorithm": name, "bytes": None, "chunks": 1,
                       "unseen": "batch" if name == ALONE else "algorithm and batch"}  # fmt: skip
                simulated = training.simulate(name, size, self.links, step_s)
                yield self._row(row, found, simulated), found
            self._together()

    def _row(self, row: dict[str, Any], seconds: np.ndarray, simulated: float) -> dict[str, Any]:
        measured_s = typical(seconds, self.chosen.fastest)
        measured = {"measured_s": measured_s, "simulated_s": simulated}
        place = {"ranks": self.comm.Get_size(), "library": library_told()}
        whole = row | measured | place
        return whole | {"error": error(whole)}

    def _together(self) -> None:
        """The others have waited for rank 0."""
        held_up(self.comm, self.chosen.deadline_s)
        self.told()
