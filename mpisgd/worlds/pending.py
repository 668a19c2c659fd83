"""Who moves an all-reduce on: the rank itself when it looks, or a thread beside it."""

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from allreduce.plan import Runner, wait_until
from mpisgd.worlds.flights import Flight

PAUSE = 5e-5  # s a thread sleeps between looks while its rank computes: it needs the same core


Clock = Callable[[], float]  # seconds since the run began


class _Pending(Flight):
    """Of a plan."""

    plan: Any

    def meet(self, number: int, met: Any) -> None:
        """Of pairs: whom each rank meets from the next start on, which is of round `number`."""
        self.plan.meet(met)


class PolledAllreduce(_Pending):
    """A plan that its rank moves on; `look` looks at everything in flight there.

    `began_s`, `ended_s`: when it was started last, and when its arrival was noticed; between the
    two it is `in_flight`.
    """

    in_flight = False

    def __init__(
        self,
        plan: Runner,
        begin: Callable[["PolledAllreduce"], None],
        look: Callable[[], None],
        now: Clock,
    ):
        self.plan, self._begin, self._look, self._now = plan, begin, look, now

    def start(self) -> None:
        self.began_s, self.in_flight = self._now(), True
        self._begin(self)

    def landed(self) -> bool:
        """Move on; whether it has arrived. Its end is the time of the look that found it there."""
        if self.in_flight and self.plan.test():
            self.ended_s, self.in_flight = self._now(), False
            self.sent_bytes = self.plan.sent_bytes
        return not self.in_flight

    def wait(self) -> None:
        wait_until(self._arrived, lambda: self.plan.position)

    def _arrived(self) -> bool:
        self._look()
        return not self.in_flight


class ThreadedAllreduce(_Pending):
    """A plan that a ProgressThread moves on. The input is copied on the caller's thread."""

    def __init__(self, thread: "ProgressThread", plan: Runner, now: Clock):
        self.plan, self._thread, self._now = plan, thread, now
        self.arrived = threading.Event()
        self.arrived.set()
        self.awaited = False

    def start(self) -> None:
        self.began_s = self._now()
        self.plan.take()
        self.arrived.clear()
        self._thread.submit(self)

    def landed(self) -> bool:
        """Move on, on the thread; whether it has arrived."""
        if not self.plan.test():
            return False
        self.ended_s, self.sent_bytes = self._now(), self.plan.sent_bytes
        self.arrived.set()
        return True

    def wait(self) -> None:
        """Raises what the thread met, such as Stalled."""
        self.awaited = True
        while not self.arrived.wait(0.5):
            self._thread.check()
        self.awaited = False
        self._thread.check()


class ProgressThread:
    """Drives the plans of one communicator, which is its own: nobody else may call it."""

    def __init__(self, comm: Any):
        self.comm = comm
        self._condition = threading.Condition()
        self._new: list[ThreadedAllreduce] = []
        self._closing = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()

    def submit(self, pending: ThreadedAllreduce) -> None:
        with self._condition:
            self._new.append(pending)
            self._condition.notify()

    def check(self) -> None:
        """Raise what stopped the thread."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Let what is in flight arrive, then end."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join()

    def _run(self) -> None:
        in_flight: list[ThreadedAllreduce] = []
        try:
            while True:
                with self._condition:
                    while not (self._new or in_flight or self._closing):
                        self._condition.wait()
                    new, self._new = self._new, []
                if not (new or in_flight):
                    return
                for pending in new:
                    pending.plan.post()
                in_flight = [pending for pending in in_flight + new if not pending.landed()]
                if any(pending.awaited for pending in in_flight):
                    os.sched_yield()
                elif in_flight:
                    time.sleep(PAUSE)
        except BaseException as error:  # handed to whoever waits
            self._error = error
