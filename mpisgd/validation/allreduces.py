"""All-reduces, measured and simulated, and what of each a calibration has never seen."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from allreduce.measure import Rule, repeat
from allreduce.network import Network
from allreduce.simulate import steady
from allreduce.simulate.program import messages
from mpisgd.bench.operations import Vectors, operation
from mpisgd.predict.links import MEASURED_BYTES
from mpisgd.values.schedules import build

DTYPE = np.dtype(np.float32)
SCHEDULE, SIZES = "schedule", "schedule and sizes"  # what a calibration has not seen


class Cell(NamedTuple):
    """One all-reduce in place: a schedule, bytes of the vector, messages a transfer is cut in."""

    algorithm: str
    bytes: int
    chunks: int

    def unseen(self, nodes: Sequence[int]) -> str:
        """What of it is held out. A calibration sends single messages, of a few sizes: the schedule
        always is, and SIZES says that none of its messages has a size that was measured."""
        schedule = build(self.algorithm, len(nodes), nodes)
        sent = messages(schedule, self.bytes, DTYPE.itemsize, self.chunks).nbytes
        return SCHEDULE if set(sent.tolist()) & set(MEASURED_BYTES) else SIZES

    def measure(self, comm: Any, rule: Rule, nodes: list[int], deadline: float) -> np.ndarray:
        """Seconds [repetition, rank], equal on all ranks, which all call it."""
        vectors = Vectors(np, self.bytes // DTYPE.itemsize, DTYPE, in_place=True)
        made = operation(
            comm, self.algorithm, vectors, chunks=self.chunks, nodes=nodes, deadline=deadline
        )
        try:
            return repeat(comm, [made.run], rule, deadline=deadline)[0]
        finally:
            made.close()

    def simulate(self, nodes: Sequence[int], links: Network) -> float:
        """Seconds, of one in a row of them, as they are measured."""
        schedule = build(self.algorithm, len(nodes), nodes)
        return steady(schedule, self.bytes, links, itemsize=DTYPE.itemsize, chunks=self.chunks)
