"""All ranks in one process, on a virtual clock: the same generators, the same bits.

Time and data are apart. A gradient is computed at once and its `progress` calls become *look
times*; an all-reduce is evaluated when the last rank has started it. What the ranks' actions cost,
and in which order they happen, is the cluster's affair (see `Cluster`).
"""

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import chain
from math import isinf
from typing import Any

import numpy as np

from allreduce.algorithms import build
from allreduce.compress import priced
from allreduce.errors import Stalled
from allreduce.evaluate import evaluate
from allreduce.network import Network
from allreduce.schedule import Schedule
from allreduce.simulate import simulate
from allreduce.simulate.events import Cluster
from allreduce.simulate.records import Collective
from allreduce.simulate.workload import Recorded, Workload
from allreduce.wire import Wire
from mpisgd.experiment.stragglers import StepTimer
from mpisgd.models.statistics import moments, pooled, remembered
from mpisgd.training.evaluation import TRAINING, shard_sums
from mpisgd.training.parameters import Parameters
from mpisgd.training.site import Interrupts, Ready, Work
from mpisgd.training.worker import Worker, first_not_finite
from mpisgd.worlds.marks import Marks
from mpisgd.worlds.notices import Interrupted, VirtualNotices, taken
from mpisgd.worlds.step import Counters, Recorder
from mpisgd.worlds.virtual_allreduces import Group, Pairing, VirtualAllreduce, VirtualPair

Steps = Generator[None, None, None]


class Clock:
    """A world of `size` virtual ranks; `sites[rank]` is each one's place in it."""

    def __init__(
        self,
        network: Network,
        schedule: Schedule,
        recorders: Sequence[Recorder],
        step_time: Callable[[int, int], float],
        *,
        chunks: int = 1,
        seed: int = 0,
        keep: Callable[[list[Worker]], object] | None = None,
        workload: Workload | None = None,
    ):
        """`step_time(rank, step)`: seconds of a gradient; `seed`: of the network's noise; `keep`
        saves the run, at a rest; `workload` is told what ranks do."""
        self.size, self.network, self.schedule = schedule.size, network, schedule
        self.step_time, self.chunks, self.recorders = step_time, chunks, recorders
        self.away = step_time.away if isinstance(step_time, StepTimer) else lambda rank, step: 0.0
        self.seed, self.collectives = seed, 0  # made so far: the noise of each has its number
        self._made = Cluster if workload is None else partial(Recorded, workload)
        self.cluster = self._made(network, self.size, seed)
        self.times = [0.0] * self.size
        self.asked_to_stop = False
        self.keep = keep
        self.evaluated: Parameters | None = None  # the mean that was evaluated last
        self.statistics: dict[str, np.ndarray] = {}  # and what its layers remembered
        self._resting: list[Worker] = []
        self._rested: deque[int] = deque()  # ranks that go on after a rest
        self.groups: list[Any] = []
        self.evaluations: dict[int, list[_Snapshot]] = {}
        self.sites = [ClockSite(self, rank) for rank in range(self.size)]

    def ask_to_stop(self) -> None:
        """As a signal does."""
        self.asked_to_stop = True

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
            if self._rested:
                advance(self._rested.popleft())
                continue
            event = self.cluster.next()
            if event is None:
                ranks = ", ".join(map(str, sorted(running)[:8]))
                raise Stalled(f"virtual ranks {ranks} wait for what nobody sends")
            self.times[event.rank] = event.time
            advance(event.rank)

    def collective(
        self, wire: Wire | None, buffer: np.ndarray, schedule: Schedule | None = None
    ) -> Collective:
        """An all-reduce of such a buffer that the cluster prices, to be started by every rank; by
        another `schedule` than all others."""
        self.collectives += 1
        schedule, carried = priced(wire, schedule or self.schedule, buffer.size, buffer.itemsize)
        return self.cluster.collective(schedule, **carried._asdict(), chunks=self.chunks)

    def rest(self, worker: Worker) -> None:
        """The rank has nothing in flight. With the last one all are saved, and go on at its time
        on a network where nothing is on its way: so does a run that is restored."""
        self._resting.append(worker)
        if len(self._resting) < self.size:
            return
        workers = sorted(self._resting, key=lambda worker: worker.rank)
        self._resting = []
        steps = [worker.first_not_finite for worker in workers]
        if any(steps):
            raise first_not_finite(steps)
        self.restore(self.state())
        if self.keep is not None:
            self.keep(workers)
        self._rested.extend(range(self.size))

    def state(self) -> dict[str, Any]:
        """The virtual time, and what decides the noise to come; at a rest."""
        time = max(self.cluster.now(rank) for rank in range(self.size))
        return {"time_s": time, "collectives": self.collectives}

    def restore(self, state: Mapping[str, Any]) -> None:
        """All ranks idle at that time."""
        self.collectives = state["collectives"]
        self.times = [state["time_s"]] * self.size
        for notices in chain.from_iterable(site.noticed for site in self.sites):
            notices.taken = 0
        self.cluster = self._made(
            self.network, self.size, self.seed, began=state["time_s"], made=self.collectives
        )

    def final_average_s(self, buffer: np.ndarray) -> float:
        """Seconds of an average that all ranks start at once, with nothing else to do."""
        ends = simulate(
            self.schedule, buffer.nbytes, self.network, itemsize=buffer.itemsize,
            chunks=self.chunks,
        )  # fmt: skip
        return float(ends.max())

    def evaluate(self, worker: Worker) -> None:
        """Keep the rank's parameters of this step; with the last rank's, evaluate their mean."""
        snapshots = self.evaluations.setdefault(worker.step, [])
        snapshots.append(_Snapshot(worker, self.times[worker.rank]))
        if len(snapshots) < self.size:
            return
        del self.evaluations[worker.step]
        snapshots.sort(key=lambda snapshot: snapshot.worker.rank)
        steps = [snapshot.not_finite for snapshot in snapshots]
        if any(steps) and not worker.equal:
            raise first_not_finite(steps)
        mean = _mean([s.parameters for s in snapshots], self.schedule, equal=worker.equal)
        self.evaluated = mean
        ema = None
        if worker.ema is not None:
            ema = _mean([s.ema for s in snapshots if s.ema is not None], self.schedule, equal=False)
        kept = [snapshot.moments for snapshot in snapshots]
        if kept[0].size:
            evaluate(build("tree", self.size), kept)
        with pooled(worker.model, kept[0]):
            self.statistics = remembered(worker.model)
            sums = [
                shard_sums(worker.model, worker.dataset, mean, ema, rank, self.size)
                for rank in range(self.size)
            ]
        for snapshot, vector in zip(snapshots, sums, strict=True):
            vector[TRAINING] = snapshot.training
        evaluate(build("tree", self.size), sums)
        average_s = 0.0 if worker.equal else self.final_average_s(mean.buffer)
        time_s = max(snapshot.time for snapshot in snapshots) + average_s
        for recorder, vector in zip(self.recorders, sums, strict=True):
            recorder.evaluation(worker, vector, time_s, worker.step)


class ClockSite:
    """One virtual rank's place."""

    def __init__(self, clock: Clock, rank: int):
        self.clock, self.rank, self.size = clock, rank, clock.size
        self._plans = 0
        self._step, self._step_began = 0, 0.0
        self._counters = Counters()
        self.interrupts: Interrupts | None = None
        self.abandoned, self._listens = False, False
        self.noticed: list[VirtualNotices] = []
        self._work: Interrupted | None = None

    @property
    def asked_to_stop(self) -> bool:
        return self.clock.asked_to_stop

    def now(self) -> float:
        return self.clock.times[self.rank]

    def begin_step(self, step: int) -> None:
        self._step, self._step_began = step, self.now()
        self._counters = Counters(sent_bytes=0)

    def compute(self, work: Work, samples: int, ready: Ready | None = None) -> Steps:
        marks = Marks()
        work(marks.progress, None if ready is None else marks.ready)
        seconds, began = self.clock.step_time(self.rank, self._step), self.now()
        while isinf(seconds):
            yield  # it has died, and nobody wakes it
        if self.interrupts is not None:
            yield from self._interruptible(self.interrupts, seconds, marks.looks)
            return
        done = 0.0
        for share, looks, lows in marks.pieces():
            piece = [(look - done) * seconds for look in looks]
            self.clock.cluster.compute(self.rank, (share - done) * seconds, piece)
            yield
            done = share
            for low in lows:
                assert ready is not None
                ready(low)
        self._counters.compute_s += seconds
        self._counters.poll_s += max(0.0, self.now() - began - seconds)  # sums done at looks
        self._counters.polls += len(marks.looks)

    def _interruptible(self, by: Interrupts, seconds: float, shares: Sequence[float]) -> Steps:
        network = self.clock.network
        look_s = 0.0 if network.progress == "perfect" else network.look_s
        away = self.clock.away(self.rank, self._step)
        looks = [away + share * (seconds - away) + number * look_s
                 for number, share in enumerate(shares, 1)]  # fmt: skip
        work = Interrupted(self, seconds + len(looks) * look_s, looks, away)
        self.abandoned, seen, early = False, 0, True
        while early:
            began, self._work = self.now(), work
            work.go_on()
            if by.due():
                work.interrupt(began)
            yield
            early, self._work = work.stop(), None
            polls = sum(look <= work.done for look in looks) - seen
            seen += polls
            self._counters.polls += polls
            self._counters.poll_s += polls * look_s
            self._counters.compute_s += self.now() - began - polls * look_s
            if early:
                yield from taken(self)
                if not (yield from by.answer()):
                    self.abandoned = True
                    return

    def notices(self, sources: Sequence[int], targets: Sequence[int]) -> VirtualNotices:
        self.noticed.append(VirtualNotices(self, sources))
        return self.noticed[-1]

    def hear(self, time: float) -> None:
        """A notice has come."""
        if self.interrupts is None or not self.interrupts.due():
            return
        if self._listens:
            self.clock.cluster.wake(self.rank)
        elif self._work is not None:
            self._work.interrupt(time)

    def attend(self) -> Steps:
        began = self.now()
        assert self.interrupts is not None
        if not self.interrupts.due():
            self._listens = True
            self.clock.cluster.listen(self.rank)
            yield
            self._listens = False
        yield from taken(self)
        self._counters.wait_s += self.now() - began

    def updating(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def plan(
        self, buffer: np.ndarray, wire: Wire | None = None, error: Any = None, pairs: bool = False
    ) -> VirtualAllreduce:
        return self._planned(buffer, True, wire, error, pairs)

    def wait(self, pending: VirtualAllreduce) -> Steps:
        began = self.now()
        if pending.collective is not None:
            self.clock.cluster.wait(self.rank, pending.collective)
            yield
            pending.ended_s = pending.collective.completion[self.rank] or self.now()
        counters = self._counters
        counters.wait_s += self.now() - began
        counters.pending(pending.began_s, pending.ended_s, pending.sent_bytes)

    def gather(self, value: int) -> Generator[None, None, list[int]]:
        values = np.zeros(self.size, np.int64)
        values[self.rank] = value
        pending = self._planned(values, mean=False)
        pending.start()
        yield from self.wait(pending)
        return values.tolist()

    def end_step(self, **columns: float) -> None:
        times = {"start_s": self._step_began, "step_s": self.now() - self._step_began}
        recorder = self.clock.recorders[self.rank]
        recorder.step(self._step, columns | times | vars(self._counters))

    def rest(self, worker: Worker) -> Steps:
        self.clock.rest(worker)
        yield

    def evaluate(self, worker: Worker) -> Steps:
        self.clock.evaluate(worker)
        yield from ()

    def _planned(
        self, buffer: np.ndarray, mean: bool, wire: Wire | None = None, error: Any = None,
        pairs: bool = False,
    ) -> VirtualAllreduce:  # fmt: skip
        groups, index = self.clock.groups, self._plans
        self._plans += 1
        if index == len(groups):
            groups.append((Pairing if pairs else Group)(self.clock, mean, wire))
        ends = VirtualPair if pairs else VirtualAllreduce
        return ends(groups[index], self.rank, buffer, error)


class _Snapshot:
    """What the evaluation needs of one rank at one step; the others may come much later."""

    def __init__(self, worker: Worker, time: float):
        self.worker, self.time, self.not_finite = worker, time, worker.first_not_finite
        self.training = worker.loss_sum, worker.loss_samples
        self.parameters = _copy(worker.parameters, worker.parameters.flat)
        self.moments = moments(worker.model)
        self.ema = None if worker.ema is None else _copy(worker.parameters, worker.ema.average)


def _copy(shape: Parameters, flat: np.ndarray) -> Parameters:
    twin = shape.like()
    twin.flat[...] = flat
    return twin


def _mean(parts: list[Parameters], schedule: Schedule, *, equal: bool) -> Parameters:
    """The mean over ranks, with a Plan's bits; equal parts are their own mean."""
    if not equal:
        evaluate(schedule, [part.buffer for part in parts], mean=True)
    return parts[0]
