"""All ranks in one process, on a virtual clock: the same generators, the same bits.

Time and data are apart. A gradient is computed at once and its `progress` calls become *look
times*; an all-reduce is evaluated when the last rank has started it. What the ranks' actions cost,
and in which order they happen, is the cluster's affair (see `Cluster`).
"""

from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np

from allreduce.errors import Stalled
from allreduce.evaluate import evaluate
from allreduce.schedule import Schedule
from mpisgd.evaluation import TRAINING, shard_sums
from mpisgd.parameters import Parameters
from mpisgd.worker import NotFinite, Worker
from mpisgd.worlds.communicator import Counters, Recorder

Steps = Generator[None, None, None]


class Cluster(Protocol):
    """Ranks that compute and communicate in virtual time. An action begins at the rank's time."""

    def compute(self, rank: int, seconds: float, looks: Sequence[float]) -> None:
        """Be busy for `seconds`, looking at what is in flight at these shares of them."""

    def start(self, rank: int, flight: Hashable, schedule: Schedule, nbytes: int) -> None:
        """Begin this rank's part of an all-reduce; takes no time of its own."""

    def wait(self, rank: int, flight: Hashable) -> None:
        """Be idle until `flight` has arrived at this rank."""

    def next(self) -> tuple[float, int] | None:
        """(time, rank) of the next rank whose action is over, None if nothing is going on."""


class Clock:
    """A world of `size` virtual ranks; `sites[rank]` is each one's place in it."""

    def __init__(
        self,
        size: int,
        cluster: Cluster,
        schedule: Schedule,
        recorders: Sequence[Recorder],
        step_time: Callable[[int, int], float],
        final_average_s: Callable[[int], float] = lambda nbytes: 0.0,
    ):
        """`step_time(rank, step)`: seconds of a gradient; `final_average_s(nbytes)`: seconds of an
        all-reduce that all ranks start at once, charged where only the evaluation needs it."""
        self.size, self.cluster, self.schedule = size, cluster, schedule
        self.step_time, self.final_average_s = step_time, final_average_s
        self.recorders = recorders
        self.times = [0.0] * size
        self.groups: list[_Group] = []
        self.evaluations: dict[int, list[_Snapshot]] = {}
        self.sites = [ClockSite(self, rank) for rank in range(size)]

    def run(self, runs: Sequence[Generator[None, None, None]]) -> None:
        """Until every rank's generator has ended. Stalled if they wait for one another."""
        running = set(range(self.size))

        def advance(rank: int) -> None:
            try:
                next(runs[rank])
            except StopIteration:
                running.discard(rank)

        for rank in range(self.size):
            advance(rank)
        while running:
            event = self.cluster.next()
            if event is None:
                ranks = ", ".join(map(str, sorted(running)[:8]))
                raise Stalled(f"virtual ranks {ranks} wait for what nobody sends")
            time, rank = event
            self.times[rank] = time
            advance(rank)

    def evaluate(self, worker: Worker) -> None:
        """Keep the rank's parameters of this step; with the last rank's, evaluate their mean."""
        snapshots = self.evaluations.setdefault(worker.step, [])
        snapshots.append(_Snapshot(worker, self.times[worker.rank]))
        if len(snapshots) < self.size:
            return
        del self.evaluations[worker.step]
        snapshots.sort(key=lambda snapshot: snapshot.worker.rank)
        failed = [(s.not_finite, s.worker.rank) for s in snapshots if s.not_finite]
        if failed and not worker.equal:
            raise not_finite(failed)
        mean = _mean([s.parameters for s in snapshots], self.schedule, equal=worker.equal)
        ema = None
        if worker.ema is not None:
            ema = _mean([s.ema for s in snapshots if s.ema is not None], self.schedule, equal=False)
        sums = [
            shard_sums(worker.model, worker.dataset, mean, ema, rank, self.size)
            for rank in range(self.size)
        ]
        for snapshot, vector in zip(snapshots, sums, strict=True):
            vector[TRAINING] = snapshot.training
        evaluate(_small(self.size), sums)
        average_s = 0.0 if worker.equal else self.final_average_s(mean.buffer.nbytes)
        time_s = max(snapshot.time for snapshot in snapshots) + average_s
        for recorder, vector in zip(self.recorders, sums, strict=True):
            recorder.evaluation(worker, vector, time_s)


class ClockSite:
    """One virtual rank's place."""

    asked_to_stop = False

    def __init__(self, clock: Clock, rank: int):
        self.clock, self.rank, self.size = clock, rank, clock.size
        self._plans = 0
        self._step, self._step_began = 0, 0.0
        self._counters = Counters()

    def now(self) -> float:
        return self.clock.times[self.rank]

    def begin_step(self, step: int) -> None:
        self._step, self._step_began = step, self.now()
        self._counters = Counters()

    def compute(self, work: Callable[[Callable[[float], object]], None], samples: int) -> Steps:
        looks: list[float] = []
        work(looks.append)
        seconds, began = self.clock.step_time(self.rank, self._step), self.now()
        self.clock.cluster.compute(self.rank, seconds, looks)
        yield
        self._counters.compute_s += seconds
        self._counters.poll_s += max(0.0, self.now() - began - seconds)  # sums done at looks
        self._counters.polls += len(looks)

    def updating(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def plan(self, source: np.ndarray, result: np.ndarray | None) -> "_VirtualFlight":
        return self._planned(source, source if result is None else result, mean=True)

    def wait(self, flight: "_VirtualFlight") -> Steps:
        began = self.now()
        self.clock.cluster.wait(self.rank, flight.key)
        yield
        self._counters.wait_s += self.now() - began

    def gather(self, value: int) -> Generator[None, None, list[int]]:
        values = np.zeros(self.size, np.int64)
        values[self.rank] = value
        flight = self._planned(values, values, mean=False)
        flight.start()
        yield from self.wait(flight)
        return values.tolist()

    def end_step(self, **columns: float) -> None:
        times = {"start_s": self._step_began, "step_s": self.now() - self._step_began}
        recorder = self.clock.recorders[self.rank]
        recorder.step(self._step, columns | times | vars(self._counters))

    def evaluate(self, worker: Worker) -> Steps:
        self.clock.evaluate(worker)
        yield from ()

    def _planned(self, source: np.ndarray, result: np.ndarray, mean: bool) -> "_VirtualFlight":
        groups, index = self.clock.groups, self._plans
        self._plans += 1
        if index == len(groups):
            groups.append(_Group(self.clock, index, mean))
        return _VirtualFlight(groups[index], self.rank, source, result)


class _Group:
    """The same plan of all ranks: evaluated as soon as the last one has started it."""

    def __init__(self, clock: Clock, index: int, mean: bool):
        self.clock, self.index, self.mean = clock, index, mean
        self.results: list[np.ndarray | None] = [None] * clock.size
        self.started = 0

    def start(self, rank: int, result: np.ndarray) -> None:
        assert self.results[rank] is None, f"rank {rank} starts what is in flight"
        self.results[rank] = result
        self.started += 1
        if self.started == self.clock.size:
            evaluate(
                self.clock.schedule, [r for r in self.results if r is not None], mean=self.mean
            )
            self.results, self.started = [None] * self.clock.size, 0


class _VirtualFlight:
    """One rank's end of a plan."""

    def __init__(self, group: _Group, rank: int, source: np.ndarray, result: np.ndarray):
        self.group, self.rank, self.source, self.result = group, rank, source, result
        self.times = 0

    @property
    def key(self) -> Hashable:
        return self.group.index, self.times

    def start(self) -> None:
        if self.source is not self.result:
            self.result[...] = self.source
        self.times += 1
        clock = self.group.clock
        clock.cluster.start(self.rank, self.key, clock.schedule, self.result.nbytes)
        self.group.start(self.rank, self.result)


class _Snapshot:
    """What the evaluation needs of one rank at one step; the others may come much later."""

    def __init__(self, worker: Worker, time: float):
        self.worker, self.time, self.not_finite = worker, time, worker.first_not_finite
        self.training = worker.loss_sum, worker.loss_samples
        self.parameters = _copy(worker.parameters, worker.parameters.flat)
        self.ema = None if worker.ema is None else _copy(worker.parameters, worker.ema.average)


def not_finite(failed: Sequence[tuple[int, int]]) -> NotFinite:
    """From the (step, rank) pairs where something was not finite."""
    step, rank = min(failed)
    return NotFinite(f"loss or gradient not finite on rank {rank} at step {step}")


def _copy(shape: Parameters, flat: np.ndarray) -> Parameters:
    twin = shape.like()
    twin.flat[...] = flat
    return twin


def _mean(parts: list[Parameters], schedule: Schedule, *, equal: bool) -> Parameters:
    """The mean over ranks, with a Plan's bits; equal parts are their own mean."""
    if not equal:
        evaluate(schedule, [part.buffer for part in parts], mean=True)
    return parts[0]


def _small(size: int) -> Schedule:
    """The schedule by which a communicator site sums small vectors."""
    from allreduce.algorithms import build

    return build("tree", size)
