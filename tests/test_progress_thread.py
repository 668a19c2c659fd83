"""A thread that moves averages on: what it does with plans, and with what goes wrong in them."""

import itertools
import threading

import pytest

from allreduce.errors import Stalled
from mpisgd.worlds.pending import ProgressThread, ThreadedAllreduce


class Plan:
    """Arrives at its `looks`-th test; notes who called what."""

    sent_bytes = 0

    def __init__(self, name, looks, log, error=None):
        self.name, self.looks, self.log, self.error = name, looks, log, error
        self.left = 0

    def note(self, what):
        self.log.append((what, self.name, threading.current_thread().name))

    def take(self):
        self.note("take")

    def post(self):
        self.left = self.looks
        self.note("post")

    def test(self):
        if self.error is not None:
            raise self.error
        self.left -= 1
        return self.left <= 0


@pytest.fixture
def thread():
    made = ProgressThread(comm=None)
    yield made
    made.close()


def pending(thread, plan):
    ticks = itertools.count()
    return ThreadedAllreduce(thread, plan, lambda: float(next(ticks)))


def test_inputs_are_copied_by_the_caller_and_posted_in_order_by_the_thread(thread):
    log: list[tuple[str, str, str]] = []
    flights = [pending(thread, Plan(name, 5, log)) for name in "abc"]
    for _ in range(2):
        log.clear()
        for each in flights:
            each.start()
        for each in reversed(flights):
            each.wait()
        mine = threading.current_thread().name
        assert [entry for entry in log if entry[0] == "take"] == [
            ("take", name, mine) for name in "abc"
        ]
        posts = [entry for entry in log if entry[0] == "post"]
        assert posts == [("post", name, "progress") for name in "abc"]
    for each in flights:
        assert each.began_s < each.ended_s


def test_who_waits_for_what_was_never_started_does_not_wait(thread):
    never = pending(thread, Plan("a", 5, []))
    never.wait()
    assert never.arrived.is_set()


def test_the_end_waits_for_what_is_in_flight():
    made = ProgressThread(comm=None)
    last = pending(made, Plan("a", 50, []))
    last.start()
    made.close()
    assert last.arrived.is_set()
    assert not made._thread.is_alive()


def test_what_the_thread_meets_is_raised_by_whoever_waits(thread):
    stall = Stalled("rank 1 has waited for rank 2")
    bad, good = pending(thread, Plan("bad", 1, [], stall)), pending(thread, Plan("good", 1, []))
    bad.start()
    for waits in (bad, good):  # also of what is started after it: nobody moves it on any more
        if waits is good:
            good.start()
        with pytest.raises(Stalled, match="rank 1 has waited for rank 2") as caught:
            waits.wait()
        assert caught.value is stall
