"""A recorded run of partial rounds again, serially, to the same bits.

Of each round and rank the file says how many gradients it brought, and by how many updates the
oldest was late: that is all that the order of arrivals decided.
"""

from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

from mpisgd.experiment.experiment import Experiment
from mpisgd.values import progress
from mpisgd.values.errors import UsageError

if TYPE_CHECKING:
    from allreduce.schedule import Schedule
    from mpisgd.store.reader import Run

ALGORITHM = "minibatch-partial"
NEEDED = ("gradients", "staleness")


def schedule_of(run: "Run", experiment: Experiment) -> "Schedule":
    """What its averages were made with. UsageError if a library made them."""
    from allreduce.collectives import carrier
    from mpisgd.experiment.virtual_time import virtual_network, virtual_schedule
    from mpisgd.values.schedules import build

    if run.virtual:
        return virtual_schedule(experiment, virtual_network(experiment))
    if not carrier(experiment.allreduce).scheduled:
        allowed = "a library's sums have no order to repeat; a schedule of ours has"
        raise UsageError(str(run.path), None, f"--allreduce {experiment.allreduce}: {allowed}")
    hosts = run.environment.get("hosts") or [""] * run.ranks
    return build(experiment.allreduce, run.ranks, [hosts.index(host) for host in hosts])


def replay_rounds(
    experiment: Experiment, steps: Mapping[str, np.ndarray], schedule: "Schedule"
) -> np.ndarray:
    """The flat parameters at the end of that run with those rows of /steps, [step, rank].

    Raises UsageError if the rows are missing or make no sense.
    """
    brought, age = checked(steps), np.asarray(steps["staleness"])
    late = np.arange(1, len(age) + 1)[:, None] - age
    if ((brought < 0) | (brought > 2) | ((brought > 0) & ((age < 0) | (late < 1)))).any():
        allowed = "tell of 0, 1 or 2 gradients, none from before the first step"
        raise UsageError("/steps/gradients", None, allowed)
    return _Replay(experiment, schedule).run(brought, age)


def checked(steps: Mapping[str, np.ndarray]) -> np.ndarray:
    """/steps/gradients. UsageError if a column that is needed is missing."""
    for name in NEEDED:
        if name not in steps or not len(steps[name]):
            raise UsageError(f"/steps/{name}", None, "is needed, and was not recorded")
    return np.asarray(steps["gradients"])


class _Replay:
    """All ranks in turn, and the parameters that a late gradient may be of."""

    def __init__(self, experiment: Experiment, schedule: "Schedule"):
        from allreduce.wire import Wire
        from mpisgd.experiment.building import Place, build_worker, load
        from mpisgd.training.mean import CONTROL
        from mpisgd.training.parameters import Parameters

        dataset, ranks = load(experiment), experiment.ranks
        self.schedule, self.workers = schedule, [
            build_worker(experiment, dataset, Place(rank, ranks)) for rank in range(ranks)
        ]  # fmt: skip
        first = self.workers[0]
        self.parameters, self.begun = first.parameters, {0: first.parameters.flat.copy()}
        size, extra = self.parameters.size, CONTROL + ranks
        shapes, dtype = self.parameters.shapes, self.parameters.dtype
        self.sent = [Parameters(shapes, dtype, extra) for _ in range(ranks)]
        self.wire = experiment.wire and Wire(experiment.wire, size, size + extra)
        feeds = experiment.error_feedback
        self.errors = [0 * sent.buffer for sent in self.sent] if feeds else None

    def run(self, brought: np.ndarray, age: np.ndarray) -> np.ndarray:
        """Every round."""
        lasting = _oldest(brought, age)
        with closing(progress.shown("replay", len(brought), unit="step")) as bar:
            for step in range(1, len(brought) + 1):
                samples = [
                    self._bring(rank, step, int(brought[step - 1, rank]), int(age[step - 1, rank]))
                    for rank in range(len(self.workers))
                ]
                self._update(step, sum(samples))
                self.begun[step] = self.parameters.flat.copy()
                for old in [kept for kept in self.begun if kept < lasting[step - 1]]:
                    del self.begun[old]
                bar.update()
        return self.parameters.flat

    def _bring(self, rank: int, step: int, count: int, age: int) -> int:
        """Into what the rank sends; the samples that it stands for."""
        from mpisgd.training.quorum import scale

        worker, sent, samples = self.workers[rank], self.sent[rank].flat, 0
        sent[...] = 0
        for number, begun in enumerate((step - age, step)[:count]):
            samples += self._gradient(worker, begun)
            sizes = worker.sampler.batch_sizes
            scale(worker.gradient.flat, sum(sizes(begun)), sum(sizes(step)))
            if number:
                sent += worker.gradient.flat
            else:
                sent[...] = worker.gradient.flat
        return samples

    def _gradient(self, worker: Any, begun: int) -> int:
        """Of the batch of the step `begun`, weighted; its samples."""
        from mpisgd.training.gradient import clip, weigh
        from mpisgd.training.parameters import Parameters

        shapes, flat = self.parameters.shapes, worker.gradient.flat
        at = Parameters(shapes, self.parameters.dtype, buffer=self.begun[begun - 1])
        inputs, targets = worker.batch(begun)
        worker.model.gradient(at, inputs, targets, worker.gradient, lambda share: None)
        if worker.clip is not None:
            clip(flat, worker.clip)
        weigh(flat, worker.sampler.share(worker.rank, begun))
        return len(targets)

    def _update(self, step: int, samples: int) -> None:
        from allreduce.evaluate import evaluate
        from mpisgd.training.quorum import scale

        first, sent = self.workers[0], [each.buffer for each in self.sent]
        evaluate(self.schedule, sent, mean=True, wire=self.wire or None, errors=self.errors)
        scale(self.sent[0].flat, sum(first.sampler.batch_sizes(step)), samples)
        first.optimiser.step(self.parameters.flat, self.sent[0].flat, first.rate(step))


def _oldest(brought: np.ndarray, age: np.ndarray) -> list[int]:
    """After each step, the first of the parameters that is still needed."""
    steps = np.arange(1, len(age) + 1)[:, None]
    needed = np.where(brought > 0, steps - age - 1, len(age)).min(axis=1)
    later = np.minimum.accumulate(np.append(needed, len(age))[::-1])[::-1][1:]
    return [int(oldest) for oldest in later]
