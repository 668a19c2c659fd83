"""A recorded run whose averages of models began without some of the ranks, again, to the same bits.

The run's own algorithm on the virtual clock, where no time passes: which steps a rank skipped, and
which it did late, is what the file says.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mpisgd.experiment.experiment import Experiment
from mpisgd.values.errors import UsageError

if TYPE_CHECKING:
    from allreduce.schedule import Schedule

STILL: dict[str, Any] = {
    "network": "ideal",
    "straggler": None,
    "step_time_s": 1.0,
    "evaluate_every": 0,
}


def replay_models(
    experiment: Experiment, steps: Mapping[str, np.ndarray], schedule: "Schedule"
) -> np.ndarray:
    """The flat parameters at the end of that run with those rows of /steps, [step, rank].

    Raises UsageError if the rows make no sense.
    """
    from mpisgd.drivers.virtual import world
    from mpisgd.experiment.building import algorithm_run, load

    taken, age = np.asarray(steps["gradients"]), np.asarray(steps["staleness"])
    begun = np.arange(1, len(age) + 1)[:, None] - age
    if ((taken < 0) | (taken > 1) | ((taken > 0) & ((age < 0) | (begun < 1)))).any():
        allowed = "tell of 0 or 1 gradient a step, none from before the first step"
        raise UsageError("/steps/gradients", None, allowed)
    still = replace(experiment, **STILL, steps=len(taken))
    silent = [_Silent() for _ in range(experiment.ranks)]
    clock, workers = world(still, load(experiment), silent)
    clock.schedule = schedule
    for worker in workers:
        rank = worker.rank
        worker.recorded = partial(_recorded(), taken[:, rank].tolist(), begun[:, rank].tolist())
    clock.run([algorithm_run(still, worker) for worker in workers])
    assert clock.evaluated is not None
    return clock.evaluated.flat


class _Silent:
    """Takes a rank's rows."""

    def step(self, step: int, columns: dict[str, float]) -> None: ...

    def evaluation(self, worker: Any, sums: Any, time_s: float, step: int) -> None: ...


def _recorded() -> Any:
    """The class of rounds whose gradients are those of a file; imported where it is needed."""
    from mpisgd.training.model_rounds import ModelRounds
    from mpisgd.training.quorum import ALL

    class Recorded(ModelRounds):
        def __init__(self, taken: list[int], begun: list[int], worker: Any, tau: int,
                     quorum: Any, late: str | None, keep_started: bool):  # fmt: skip
            super().__init__(worker, tau, ALL, late, keep_started)
            self.taken, self.begun = taken, begun
            late_ones = {b for s, b in enumerate(begun, 1) if taken[s - 1] and b < s}
            self.at = dict.fromkeys(late_ones, None)  # parameters, once they are reached

        def compute_gradient(self, meet: Any) -> Any:
            worker, self._meet = self.worker, meet
            step = worker.step
            if step in self.at:
                self.at[step] = worker.parameters.buffer.copy()
            if not self.taken[step - 1]:
                self._skip()
                return False
            begun = self.begun[step - 1]
            worker.step = begun  # whose batch it is
            yield from worker.compute_gradient(at=self.at.pop(begun, None))
            worker.step = step
            self._take(step - begun)
            return True

    return Recorded
