"""Training runs, measured and on the virtual clock: seconds per step.

A calibration times steps that never average, at half and twice the batch: so the batch is held out
like the algorithms. Such a step has all that a step has but averages: the gradient, padded if
it is, update, checks, and a rank that wakes up late.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from allreduce.network import Network
from mpisgd.drivers.run import run
from mpisgd.validation.errors import typical

TAU, DELAY, XI = 4, 3, 0.25
ALONE = "compute alone"
RUNS: dict[str, dict[str, Any]] = {
    ALONE: {"algorithm": "local", "tau": 1000000},
    "minibatch": {"algorithm": "minibatch"},
    "minibatch-overlap": {"algorithm": "minibatch-overlap"},
    "local": {"algorithm": "local", "tau": TAU},
    "dasgd": {"algorithm": "dasgd", "tau": TAU, "delay": DELAY, "xi": XI},
    "dasgd delta": {"algorithm": "dasgd", "tau": TAU, "delay": DELAY, "merge": "delta"},
}
FIRST = 2 * TAU  # steps left out: the first two rounds warm up
STEPS_PER_EPOCH = 4  # whole batches only


def by_rounds(steps: Mapping[str, np.ndarray]) -> np.ndarray:
    """Seconds per step [round, rank] of each round of TAU steps from step FIRST on, from columns of
    /steps: single steps would not tell the one that waits."""
    start_s, step_s = steps["start_s"], steps["step_s"]
    begins = np.vstack([start_s[FIRST::TAU], start_s[-1:] + step_s[-1:]])
    whole = (len(start_s) - FIRST) // TAU
    return np.diff(begins, axis=0)[:whole] / TAU


class Training(NamedTuple):
    """What all runs have in common. Texts are those of `mpisgd train`."""

    batch: int
    steps: int
    step_time: str | None
    hidden: str
    allreduce: str
    chunks: int
    deadline_s: float
    fastest: float  # share of the rounds whose median counts

    def options(self, name: str, ranks: int, batch: int) -> dict[str, Any]:
        """Of the run `name`, as `mpisgd.run` takes them: nothing is evaluated on the way, nothing
        diverges."""
        common = self._asdict() | {
            "fastest": None, "model": "mlp", "data": "synthetic", "batch": batch, "lr": 0.01,
            "evaluate_every": 0, "data_samples": STEPS_PER_EPOCH * batch * ranks,
        }  # fmt: skip
        return {key: value for key, value in (common | RUNS[name]).items() if value is not None}

    def measure(self, comm: Any, name: str, batch: int | None = None) -> np.ndarray | None:
        """Seconds per step [round, rank], on rank 0; all ranks call it."""
        options = self.options(name, comm.Get_size(), self.batch if batch is None else batch)
        found = run(comm=comm, **options)
        return None if found is None else by_rounds(found.steps)

    def calibrate(self, comm: Any) -> float:
        """Seconds of a step that never averages, by a straight line between half and twice the
        batch; the slowest rank's. On rank 0; nan elsewhere, which all call it."""
        batches = self.batch // 2, 2 * self.batch
        found = [self.measure(comm, ALONE, batch) for batch in batches]
        times = [np.nan if each is None else typical(each, self.fastest) for each in found]
        return float(np.interp(self.batch, batches, times))

    def simulate(self, name: str, ranks: int, links: Network, step_s: float) -> float:
        """Seconds per step of the virtual run, whose gradients take `step_s`. A padded step looks
        all the time."""
        if name == ALONE:
            return step_s
        network = ",".join(f"{key}={value}" for key, value in asdict(links).items())
        timed = {"step_time": step_s, "network": network}
        timed |= {"progress": "perfect"} if self.step_time else {}
        found = run(ranks=ranks, **self.options(name, ranks, self.batch) | timed)
        assert found is not None
        return typical(by_rounds(found.steps), self.fastest)
