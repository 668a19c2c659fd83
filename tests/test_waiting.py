"""How a rank waits: soon enough for a round of many, and not at the cost of those it waits for."""

import os
import threading
import time

import pytest

from allreduce import plan


class Machine:
    """A clock that runs while a rank sleeps or yields its core, and counts how often it does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, share: float = 1.0):
        """share: of the core, that this rank gets while it looks."""
        self.now, self.ran, self.share = 0.0, 0.0, share
        self.slept: list[float] = []
        self.yields = 0
        self._thread, self._real_sleep = threading.get_ident(), time.sleep
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(time, "thread_time", lambda: self.ran)
        monkeypatch.setattr(time, "sleep", self.sleep)
        monkeypatch.setattr(os, "sched_yield", self.give_way)

    def sleep(self, seconds: float) -> None:
        if threading.get_ident() != self._thread:  # of a thread that another test has left
            self._real_sleep(seconds)
            return
        self.slept.append(seconds)
        self.now += seconds

    def give_way(self) -> None:
        self.yields += 1
        self.ran += 1e-6
        self.now += 1e-6 / self.share

    def wait(self, until: float, *moves: float) -> None:
        """For a plan that moves on at those seconds, and is ready at `until`."""
        plan.wait_until(
            lambda: self.now >= until, lambda: sum(self.now >= moment for moment in moves)
        )


def test_what_comes_soon_is_looked_for_at_once(monkeypatch):
    machine = Machine(monkeypatch)
    machine.wait(0.0)
    assert machine.yields == 0
    machine.wait(1e-4)
    assert machine.yields in (100, 101)  # 1e-6 has no exact sum
    assert machine.slept == []


def test_a_long_wait_sleeps_for_a_64th_of_it(monkeypatch):
    machine = Machine(monkeypatch)
    machine.wait(1.0)
    assert machine.yields == plan.YIELDS
    assert max(machine.slept) == pytest.approx(5e-3)
    assert machine.now <= 1.005
    machine.slept.clear()
    machine.wait(machine.now + 0.1)
    assert max(machine.slept) == pytest.approx(0.1 / 64, rel=0.05)


def test_a_wait_begins_anew_when_something_has_moved(monkeypatch):
    """Twenty rounds of 10 ms: none of them is noticed later than the first."""
    machine = Machine(monkeypatch)
    moves = [0.01 * i for i in range(1, 20)]
    machine.wait(0.2, *moves)
    assert max(machine.slept) < 0.012 / 64


@pytest.mark.parametrize(("share", "crowded"), [(0.5, True), (0.75, True), (0.9, False)])
def test_who_shares_a_core_sleeps_instead_of_looking(share, crowded, monkeypatch):
    """Others need the core to send what is waited for."""
    machine = Machine(monkeypatch, share)
    machine.wait(1.0)
    assert machine.yields == (plan.CROWDED_LOOKS if crowded else plan.YIELDS)
    assert machine.slept
