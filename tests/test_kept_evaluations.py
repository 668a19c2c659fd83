"""Evaluations that are kept disturb nothing: a run with them looks and merges as one without.

Ranks are threads that take turns, so that what they do, look by look, follows from the seed alone.
"""

import tempfile
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from virtual_runs import Rows

from allreduce.testing.loopback import World
from mpisgd.experiment.building import algorithm_run, build_worker, load, resolve_for
from mpisgd.experiment.experiment import Experiment
from mpisgd.values.schedules import maker
from mpisgd.worlds import copies
from mpisgd.worlds.copies import Copies, Snapshot
from mpisgd.worlds.mpi import CommunicatorSite

RANKS = 3
DASGD = Experiment(
    algorithm="dasgd", tau=4, delay=3, hidden=(5,), data_samples=90, batch=4, steps=17, ema=0.9
)
LOCAL = replace(DASGD, algorithm="local", tau=3, delay=None)


class Turns(World):
    """Ranks are threads, of which one runs: the next one's turn comes when a message is tested."""

    def __init__(self, size: int, seed: int):
        super().__init__(size, seed)
        self.turn, self.changed = 0, threading.Condition()
        self.running = list(range(size))

    def look(self) -> None:
        super().look()
        self.pass_on()

    def pass_on(self, ends: bool = False) -> None:
        rank = int(threading.current_thread().name)
        with self.changed:
            if ends:
                self.running.remove(rank)
            after = [other for other in self.running if other > rank] or self.running
            self.turn = after[0] if after else -1
            self.changed.notify_all()
            if not ends:
                self.wait_for(rank)

    def wait_for(self, rank: int) -> None:
        assert self.changed.wait_for(lambda: self.turn == rank, timeout=150)

    def run(self, work: Any) -> None:
        """`work(rank)` of all ranks, to the end."""
        failures: list[BaseException] = []

        def thread(rank: int) -> None:
            with self.changed:
                self.wait_for(rank)
            try:
                work(rank)
            except BaseException as failure:
                failures.append(failure)
            self.pass_on(ends=True)

        threads = [threading.Thread(target=thread, args=(r,), name=str(r)) for r in self.running]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
        assert not failures, failures


class Traced(CommunicatorSite):
    """Notes each start, look and update, in its step."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.trace: list[tuple[str, int, int]] = []

    def _begin(self, pending):
        self.trace.append(("start", self._step, 0))
        super()._begin(pending)

    def _look(self):
        super()._look()
        self.trace.append(("look", self._step, len(self._in_flight)))

    def updating(self):
        self.trace.append(("update", self._step, 0))
        return super().updating()


def run(experiment: Experiment, evaluate: str, seed: int = 0, **changes: Any):
    """The sites, and rank 0's rows."""
    experiment = replace(experiment, evaluate=evaluate, **changes)
    dataset = load(experiment)
    experiment = resolve_for(experiment, dataset, RANKS)
    world, rows, sites = Turns(RANKS, seed), [Rows() for _ in range(RANKS)], {}

    def work(rank: int) -> None:
        allreduce = maker(experiment.allreduce, RANKS)
        site = Traced(world.comm(rank), allreduce, rows[rank], during=evaluate == "during")
        worker = build_worker(experiment, dataset, site)
        sites[rank] = site
        site.broadcast(worker.parameters.buffer)
        site.begin()
        for _ in algorithm_run(experiment, worker):
            raise AssertionError
        site.drain()
        site.trace.append(("end", worker.step, 0))
        for _ in site.evaluate_kept(worker):
            raise AssertionError
        site.close()

    world.run(work)
    world.check_quiet()
    return [site.trace for _, site in sorted(sites.items())], rows


@pytest.mark.parametrize("experiment", [DASGD, LOCAL], ids=lambda each: each.algorithm)
@pytest.mark.parametrize("seed", range(3))
def test_a_run_with_evaluations_looks_and_merges_as_one_without(experiment, seed):
    without, rows = run(experiment, "after", seed, evaluate_every=0)
    kept, more = run(experiment, "after", seed, evaluate_every=2)
    assert kept == without
    assert [*rows[0].evaluations] == [17]
    assert [*more[0].evaluations] == [2, 4, 6, 8, 10, 12, 14, 16, 17]
    disturbed, _ = run(experiment, "during", seed, evaluate_every=2)
    assert disturbed != without


def test_what_is_evaluated_later_has_the_bits_of_what_is_evaluated_at_once(monkeypatch):
    """In memory, in a file, and with both."""
    for experiment in (DASGD, LOCAL, replace(LOCAL, algorithm="minibatch", tau=None)):
        _, (now, *_) = run(experiment, "during", evaluate_every=2)
        for limit in (1 << 28, 0, 60_000):
            monkeypatch.setattr(copies.Copies.__init__, "__defaults__", (limit,))
            _, (later, *_) = run(experiment, "after", evaluate_every=2)
            assert [*later.evaluations] == [*now.evaluations]
            for (mine, _), (its, _) in zip(
                later.evaluations.values(), now.evaluations.values(), strict=True
            ):
                assert mine.tolist() == its.tolist()


def test_the_step_after_an_evaluation_during_training_is_marked():
    _, (rows, *_) = run(DASGD, "during", evaluate_every=4)
    assert [step for step, row in rows.steps.items() if row["rested"]] == [5, 9, 13, 17]
    _, (rows, *_) = run(DASGD, "after", evaluate_every=4)
    assert not any(row["rested"] for row in rows.steps.values())


def test_a_copy_is_made_in_the_time_of_the_step_that_follows():
    """Its seconds are the run's, and those of an evaluation's row are of before it."""
    _, (rows, *_) = run(replace(DASGD, algorithm="minibatch", tau=None, delay=None), "after",
                        evaluate_every=4)  # fmt: skip
    for step in (4, 8, 12, 16):
        time_s = rows.evaluations[step][1]
        before, after = rows.steps[step], rows.steps[step + 1]
        assert before["start_s"] + before["step_s"] <= time_s == after["start_s"]


# --- copies ---------------------------------------------------------------------------------------


def snapshots(count: int) -> list[Snapshot]:
    random = np.random.default_rng(4)
    layouts = [(7, "f4"), (0, "f8"), (3, "f8")]
    return [
        Snapshot(step, 0.5 * step, True, (False,) * 3, (1.0, 2),
                 tuple(random.normal(size=size).astype(kind) for size, kind in layouts))
        for step in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("limit", [0, 51, 52, 110, 1 << 20])
def test_copies_come_back_in_order_wherever_they_were(limit):
    kept, plain = Copies(limit), snapshots(6)
    for _ in range(2):
        live = snapshots(6)
        taken = []
        for number, each in enumerate(live):
            kept.add(each)
            for array in each.arrays:
                array[:] = -1  # the run goes on
            if number == 3:
                taken.append(kept.take())
        taken += [kept.take() for _ in range(len(kept))]
        assert len(kept) == 0
        for mine, its in zip(taken, plain, strict=True):
            assert mine[:-1] == its[:-1]
            for one, other in zip(mine.arrays, its.arrays, strict=True):
                assert one.dtype == other.dtype
                assert one.tolist() == other.tolist()


def test_nothing_of_the_file_is_seen_and_no_room_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    kept = Copies(0)
    kept.add(snapshots(1)[0])
    assert kept._file is not None
    assert not [*tmp_path.iterdir()]
    kept.clear()
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "none"))
    with pytest.raises(OSError, match="--evaluate during keeps none"):
        kept.add(snapshots(1)[0])
