"""Real ranks on the wall clock: one site a process, over a communicator with mpi4py's names.

`poll`: the averages in flight move on whenever the model calls `progress` or somebody waits.
`thread`: a thread drives them, on a communicator of its own. This module imports no MPI.
"""

import math
import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from allreduce.algorithms import broadcast, build
from allreduce.arrays import Poll
from allreduce.collectives import Maker
from allreduce.pairs import Pairs
from allreduce.plan import Plan
from allreduce.schedule import Schedule
from allreduce.waiting import wait_for
from allreduce.wire import Wire
from mpisgd.experiment import stragglers
from mpisgd.models.statistics import pooled, remembered
from mpisgd.mpi import tags
from mpisgd.training.evaluation import TRAINING, shard_sums
from mpisgd.training.mean import CONTROL
from mpisgd.training.parameters import Parameters
from mpisgd.training.site import Interrupts, Ready, Work
from mpisgd.training.worker import Worker, first_not_finite
from mpisgd.worlds.copies import Copies, Snapshot, snapshot
from mpisgd.worlds.marks import Marks
from mpisgd.worlds.notices import RealNotices
from mpisgd.worlds.pending import PolledAllreduce, ProgressThread, ThreadedAllreduce
from mpisgd.worlds.step import Abandoned, Counters, Recorder

LOOK_EVERY = 1e-4  # s between looks while a step is padded
NOTICE_EVERY = 5e-4  # s between looks of a padded step that only something that interrupts wants
LOOK_BESIDE = 5e-5  # s between looks while a device computes, at least: 20 a millisecond

Steps = Generator[None, None, None]


class CommunicatorSite:
    """One process's place: clocks, plans in flight, and what it was asked by signals."""

    interrupts: Interrupts | None = None

    def __init__(
        self,
        comm: Any,
        allreduce: Maker,
        recorder: Recorder,
        *,
        chunks: int = 1,
        deadline: float = 60.0,
        step_time: float | None = None,
        step_timer: stragglers.StepTimer | None = None,
        thread_comm: Any = None,
        keep: Callable[[Worker], object] | None = None,
        during: bool = False,
        pairs: Any = Pairs,
    ):
        """`allreduce` makes the averages, `pairs` those of two. `step_time`, `step_timer`: how long
        to pad a computation. `thread_comm`: let a thread drive the averages on it. `keep` saves
        the run, at a rest. `during`: evaluate at once, not in `evaluate_kept`."""
        self.comm, self.allreduce, self.pairs, self.recorder = comm, allreduce, pairs, recorder
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.chunks, self.deadline = chunks, deadline
        self.step_timer = step_timer or stragglers.StepTimer(step_time, None)
        self.asked_to_stop = False
        self.evaluating = False  # which may take long, and ends by itself
        self.computing = False  # a gradient, for a server
        self.final_average_s = 0.0  # how long the last average took that only evaluation needs
        self.saving_s = 0.0  # how long checkpoints have stopped the run
        self.thread = ProgressThread(thread_comm) if thread_comm is not None else None
        self._in_flight: list[PolledAllreduce] = []
        self._allreduces: list[PolledAllreduce | ThreadedAllreduce] = []
        self._counters = Counters()
        self._origin, self._restored_s = time.perf_counter(), 0.0
        self.paused_s = 0.0  # seconds of evaluations so far, which do not count
        self._step, self._step_began = 0, 0.0
        self._copies, self.during = Copies(), during
        self._copied_s = math.inf  # when a copy was begun after the last step
        self._rested = False  # since the last step
        self._average: Any = None
        self.evaluated: Parameters | None = None  # the mean that was evaluated last
        self.statistics: dict[str, np.ndarray] = {}  # and what its layers remembered
        self.keep = keep
        self.abandoned = self._computes = False
        self._began, self._booked = 0.0, (0.0, 0.0)  # the computation; up to when it is booked
        self._notices: list[RealNotices] = []

    def now(self) -> float:
        """Seconds since the run began, evaluations left out."""
        return time.perf_counter() - self._origin - self.paused_s

    def broadcast(self, values: np.ndarray) -> None:
        """Rank 0's values to all, in place."""
        self._all_reduce(broadcast(self.size), values)

    def begin(self) -> None:
        """The run's zero of time, or that of a restored one, when all ranks have come so far."""
        self.sum(np.zeros(1))
        self._origin, self.paused_s = time.perf_counter() - self._restored_s, 0.0

    def state(self) -> dict[str, float]:
        """The run's time so far, at a rest."""
        return {"time_s": self.now(), "final_average_s": self.final_average_s}

    def restore(self, state: Mapping[str, float]) -> None:
        """Go on from there; before `begin`."""
        self._restored_s, self.final_average_s = state["time_s"], state["final_average_s"]
        self._rested = True

    def begin_step(self, step: int) -> None:
        self._step, self._step_began = step, min(self.now(), self._copied_s)
        counted = all(pending.plan.sent_bytes >= 0 for pending in self._allreduces)
        self._counters = Counters(rested=int(self._rested), sent_bytes=0 if counted else -1)
        self._copied_s, self._rested = math.inf, False

    def compute(self, work: Work, samples: int, ready: Ready | None = None) -> Steps:
        step, self._began, self.abandoned = self._step, time.perf_counter(), False
        self._booked, self._computes = (self._began, self._counters.poll_s), True
        marks = (
            Marks(self.progress)
            if ready is not None and self.step_timer.stretches(self.rank, step)
            else None
        )
        try:
            done = (
                work(self.progress, ready) if marks is None else work(marks.progress, marks.ready)
            )
            if done is not None:
                self._look_until(done)
            seconds = self.step_timer(self.rank, step, time.perf_counter() - self._began)
            if math.isinf(seconds):
                stragglers.die(f"rank {self.rank}", step)
            if marks is not None and ready is not None:
                self._deliver(marks, ready, seconds)
            self._pad(seconds)
        except Abandoned:
            self.abandoned = True
        self._computes = False
        self._book()
        yield from ()

    def _book(self) -> None:
        """What was computed since it was booked last is this step's."""
        began, looking = self._booked
        counters = self._counters
        counters.compute_s += time.perf_counter() - began - (counters.poll_s - looking)

    @contextmanager
    def updating(self):
        began = time.perf_counter()
        yield
        self._counters.update_s += time.perf_counter() - began

    def progress(self, share: float = 0.0) -> None:
        """Look at everything in flight, and whether something interrupts."""
        if self._in_flight:
            began = time.perf_counter()
            self._look()
            self._counters.look(time.perf_counter() - began)
        if self.interrupts is not None and self._computes and share < 1.0:
            began = time.perf_counter()
            due = self.interrupts.due()
            self._counters.look(time.perf_counter() - began)
            if due:
                self._interrupt(self.interrupts)

    def _interrupt(self, by: Interrupts) -> None:
        """Do it here and now; the computation goes on as if the time had stood still."""
        began, self._computes = time.perf_counter(), False
        self._book()
        answer = by.answer()
        try:
            while True:
                next(answer)
        except StopIteration as end:
            goes_on = end.value
        now = time.perf_counter()
        self._began += now - began
        self._booked, self._computes = (now, self._counters.poll_s), True
        if not goes_on:
            raise Abandoned

    def notices(self, sources: Sequence[int], targets: Sequence[int]) -> RealNotices:
        tag = tags.ROUNDS + len(self._notices)
        self._notices.append(RealNotices(self.comm, sources, targets, tag, self.deadline))
        return self._notices[-1]

    def attend(self) -> Steps:
        began, by = time.perf_counter(), self.interrupts
        assert by is not None
        wait_for(lambda: self._looked(by), by.awaited, self.deadline)
        self._counters.wait_s += time.perf_counter() - began
        yield from ()

    def plan(
        self, buffer: np.ndarray, wire: Wire | None = None, error: Any = None, pairs: bool = False
    ) -> Any:
        wired = {} if wire is None else {"wire": wire, "error": error}
        make: Any = self.pairs if pairs else self.allreduce
        plan = make(
            self.comm if self.thread is None else self.thread.comm, buffer, mean=True,
            tag=len(self._allreduces), chunks=self.chunks, deadline=self.deadline, **wired,
        )  # fmt: skip
        pending: PolledAllreduce | ThreadedAllreduce
        if self.thread is None:
            pending = PolledAllreduce(plan, self._begin, self._look, self.now)
        else:
            pending = ThreadedAllreduce(self.thread, plan, self.now)
        self._allreduces.append(pending)
        return pending

    def wait(self, pending: Any) -> Steps:
        began = time.perf_counter()
        pending.wait()
        counters = self._counters
        counters.wait_s += time.perf_counter() - began
        counters.pending(pending.began_s, pending.ended_s, pending.sent_bytes)
        yield from ()

    def gather(self, value: int) -> Generator[None, None, list[int]]:
        yield from ()
        return self.all_values(value)

    def all_values(self, value: int) -> list[int]:
        """Every rank's value, waited for."""
        return self.sum(np.where(np.arange(self.size) == self.rank, value, 0)).tolist()

    def sum(self, values: np.ndarray) -> np.ndarray:
        """The sum over ranks of a small vector, in place, waited for."""
        self._all_reduce(build("tree", self.size), values)
        return values

    def end_step(self, **columns: float) -> None:
        now = self.now()
        times = {"start_s": self._step_began, "step_s": now - self._step_began}
        self.recorder.step(self._step, columns | times | vars(self._counters))

    def rest(self, worker: Worker) -> Steps:
        steps = self.all_values(worker.first_not_finite)
        if any(steps):
            raise first_not_finite(steps)
        yield from self.evaluate_kept(worker)
        if self.keep is not None:
            began = time.perf_counter()
            with self._resting():
                self.keep(worker)
            self.saving_s += time.perf_counter() - began
        self._copied_s = math.inf

    def evaluate(self, worker: Worker) -> Steps:
        """Now, if `during`; else keep what it needs: the copy is how the next step begins."""
        now, fails = self.now(), worker.first_not_finite > 0
        if self.during:
            with self._resting():
                yield from self._evaluate(worker, snapshot(worker, now, worker.signals()))
        else:
            self._copies.add(snapshot(worker, now, (fails, False, False)))
            self._copied_s = now
        yield from ()

    def evaluate_kept(self, worker: Worker, told: Callable[[], object] = lambda: None) -> Steps:
        """All that was kept, in order, `told` after each; while nothing is in flight and the clock
        stands still. Raises NotFinite as it would have been raised during training."""
        with self._resting():
            if self._copies:
                self.sum(np.zeros(1))  # ranks begin together, so that none is waited for
            while self._copies:
                yield from self._evaluate(worker, self._copies.take())
                told()

    def _evaluate(self, worker: Worker, kept: Snapshot) -> Steps:
        """`worker` is asked for nothing that changes with its steps."""
        parameters, ema, sums_of_layers = kept.arrays
        if self.evaluated is None:
            self.evaluated = worker.parameters.like()
            self._average = self._own_mean(self.evaluated.buffer)
        mean, average_s = self.evaluated, 0.0
        mean.memory.put(mean.flat, parameters)
        if not kept.equal:
            average_s = yield from self._take_mean(worker, mean, kept.signals)
        averaged = None
        if worker.ema is not None:
            averaged = mean.like()
            averaged.memory.put(averaged.flat, ema)
            with self._own_mean(averaged.buffer) as plan:
                plan.start()
                plan.wait()
        if sums_of_layers.size:
            self.sum(sums_of_layers)
        with pooled(worker.model, sums_of_layers):
            self.statistics = remembered(worker.model)
            sums = shard_sums(worker.model, worker.dataset, mean, averaged, self.rank, self.size)
        sums[TRAINING] = kept.training
        self.recorder.evaluation(worker, self.sum(sums), kept.time_s + average_s, kept.step)

    def _take_mean(
        self, worker: Worker, mean: Parameters, signals: Sequence[bool]
    ) -> Generator[None, None, float]:
        """Of all ranks', in place; the seconds that it took, which a run needs for its result."""
        began = time.perf_counter()
        assert self._average is not None
        control = mean.extra[:CONTROL]
        mean.memory.put(control, signals)
        self._average.start()
        self._average.wait()
        self.final_average_s = time.perf_counter() - began
        yield from worker.read_signals(mean.memory.get(control))
        return self.final_average_s

    @property
    def kept(self) -> int:
        """Evaluations to come in `evaluate_kept`."""
        return len(self._copies)

    def drain(self) -> None:
        """Let everything in flight arrive, whoever still wants it: peers wait for it."""
        for pending in self._allreduces:
            pending.wait()

    def close(self) -> None:
        """Stop the thread, give all requests back."""
        if self.thread is not None:
            self.thread.close()
        self._copies.clear()
        for pending in self._allreduces:
            pending.plan.close()
        for notices in self._notices:
            notices.close()
        if self._average is not None:
            self._average.close()

    @contextmanager
    def _resting(self):
        """The clock stands still; the step that comes next is marked."""
        began, self.evaluating = time.perf_counter(), True
        try:
            yield
        finally:
            self.evaluating, self._rested = False, True
            self.paused_s += time.perf_counter() - began

    def _own_mean(self, buffer: np.ndarray) -> Any:
        return self.allreduce(
            self.comm, buffer, mean=True, tag=tags.OF_THE_SITE, deadline=self.deadline
        )

    def _all_reduce(self, schedule: Schedule, buffer: np.ndarray) -> None:
        with Plan(
            self.comm, schedule, buffer, tag=tags.OF_THE_SITE, deadline=self.deadline
        ) as plan:
            plan.start()
            plan.wait()

    def _begin(self, pending: PolledAllreduce) -> None:
        began = time.perf_counter()
        pending.plan.start()
        self._in_flight.append(pending)
        self._counters.look(time.perf_counter() - began)

    def _look(self) -> None:
        if self._in_flight:
            self._in_flight = [pending for pending in self._in_flight if not pending.landed()]

    def _looked(self, by: Interrupts) -> bool:
        self._look()
        return by.due()

    def _deliver(self, marks: Marks, ready: Ready, seconds: float) -> None:
        """Say what is ready when it would be in a step that takes `seconds`."""
        marks.deliver(lambda share: self._pad(share * seconds), ready)

    def _look_until(self, done: Poll) -> None:
        """Look at what is in flight while a device computes, at most once in LOOK_BESIDE."""
        looked = 0.0
        while not done():
            if self.thread is not None:
                time.sleep(LOOK_BESIDE)
            elif self._in_flight and (now := time.perf_counter()) - looked >= LOOK_BESIDE:
                self.progress()
                looked = now
            else:
                os.sched_yield()

    def _pad(self, seconds: float) -> None:
        """Stand in for an accelerator at work for so long in all: sleep, look now and then."""
        while (left := self._began + seconds - time.perf_counter()) > 0:
            self.progress()
            every = LOOK_EVERY if self._in_flight else NOTICE_EVERY if self.interrupts else left
            time.sleep(min(left, every))
