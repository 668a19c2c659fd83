"""Rows of all ranks reach rank 0's store, in order, whenever they were handed over."""

from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from allreduce.errors import Stalled
from mpisgd.data import load
from mpisgd.data.shards import Sampler
from mpisgd.store import recording
from mpisgd.store.recording import NAMES
from mpisgd.training.recorder import Recorder
from mpisgd.values.errors import UsageError


class Sent:
    """A request that is done once its message was taken."""

    def __init__(self) -> None:
        self.taken = False

    def Test(self) -> bool:  # noqa: N802
        return self.taken


class Comm:
    """Rank `rank` of `size`, in one process; messages lie in `post` until they are taken."""

    def __init__(self, rank: int, size: int, post: dict[Any, deque]):
        self.rank, self.size, self.post = rank, size, post

    def Get_rank(self) -> int:  # noqa: N802
        return self.rank

    def Get_size(self) -> int:  # noqa: N802
        return self.size

    def Isend(self, buffer: np.ndarray, rank: int, tag: int) -> Sent:  # noqa: N802
        """Rendezvous: the buffer is read when it is received, so it must not change before."""
        sent = Sent()
        self.post.setdefault((self.rank, rank, tag), deque()).append((buffer, sent))
        return sent

    def Iprobe(self, rank: int, tag: int) -> bool:  # noqa: N802
        return bool(self.post.get((rank, self.rank, tag)))

    def Recv(self, buffer: np.ndarray, rank: int, tag: int) -> None:  # noqa: N802
        sent_buffer, sent = self.post[rank, self.rank, tag].popleft()
        buffer[...] = sent_buffer
        sent.taken = True


class Store:
    """What a writer was given: {rank: {column: values}}, each rank's rows without a gap."""

    def __init__(self) -> None:
        self.columns: dict[int, dict[str, list[float]]] = {}
        self.evaluations: list[dict[str, Any]] = []
        self.flushes = 0

    def steps(self, rank: int, first: int, columns: dict[str, np.ndarray]) -> None:
        mine = self.columns.setdefault(rank, {})
        for name, values in columns.items():
            assert len(mine.setdefault(name, [])) == first - 1
            mine[name] += values.tolist()

    def evaluation(self, **row: Any) -> None:
        self.evaluations.append(row)

    def flush(self) -> None:
        self.flushes += 1


def recorders(size: int, **options: Any) -> tuple[Store, list[Recorder]]:
    post: dict[Any, deque] = {}
    store = Store()
    return store, [
        Recorder(Comm(rank, size, post), None if rank else store, {}, **options)
        for rank in range(size)
    ]


def fill(recorder: Recorder, rank: int, steps: range) -> None:
    for step in steps:
        columns = dict.fromkeys(NAMES, step + rank / 8)
        recorder.step(step, columns | {"rate": 0.5 / step})


@pytest.mark.parametrize("steps", [0, 1, recording.ROWS, recording.ROWS + 1, 200])
@pytest.mark.parametrize("size", [1, 3])
def test_every_row_arrives_once_and_in_order(size, steps):
    store, all_of_them = recorders(size)
    for rank in reversed(range(size)):  # rank 0, which waits for the others, is last
        fill(all_of_them[rank], rank, range(1, steps + 1))
        if rank:  # a first look finds its rows not taken yet
            assert not all_of_them[rank].rows._open
    ends = [recorder for recorder in all_of_them if recorder is not all_of_them[0]]
    for recorder in ends:
        recorder.rows.deadline = 0.0
        with pytest.raises(Stalled):  # nobody takes them yet
            recorder.finish()
    all_of_them[0].finish()
    assert sorted(store.columns) == (list(range(size)) if steps else [])
    for rank, columns in store.columns.items():
        for name in ("loss", "wait_s", "samples"):
            assert columns[name] == [step + rank / 8 for step in range(1, steps + 1)]
        assert ("rate" in columns) == (rank == 0)
    if steps:
        assert store.columns[0]["rate"] == [0.5 / step for step in range(1, steps + 1)]
    assert store.flushes


def test_rows_are_on_their_way_before_the_end():
    store, (first, second) = recorders(2)
    fill(second, 1, range(1, recording.ROWS + 1))
    fill(first, 0, range(1, recording.ROWS + 1))
    assert [len(store.columns[rank]["loss"]) for rank in (0, 1)] == 2 * [recording.ROWS]
    assert store.flushes == 1


def test_a_rank_that_hands_nothing_over_is_named():
    _, (first, second, _) = recorders(3, deadline=0.02)
    second.rows.deadline = 0.0
    with pytest.raises(Stalled):
        second.finish()
    with pytest.raises(Stalled, match=r"rank 0 waited .* for rank 2 to hand over its records"):
        first.finish()


def test_a_column_that_the_schema_lacks_is_refused_and_not_dropped():
    _, (recorder,) = recorders(1)
    with pytest.raises(UsageError, match="/steps column 'gradient_norm'"):
        recorder.step(1, {"step_s": 1.0, "gradient_norm": 2.0})


def test_someone_may_watch_the_steps():
    seen: list[int] = []
    _, (recorder,) = recorders(1, on_step=lambda: seen.append(len(seen)))
    fill(recorder, 0, range(1, 4))
    assert seen == [0, 1, 2]


def test_an_evaluation_is_sums_over_samples_divided_once():
    dataset = load("digits", samples=53)
    sampler = Sampler(53, 3, 4, seed=0)
    worker: Any = SimpleNamespace(
        step=7, sampler=sampler, samples_until=sampler.samples_until, dataset=dataset, ema=None
    )
    store, (recorder, *_) = recorders(3)
    recorder.evaluation(
        worker, np.array([180.0, 90, 360, 0, 0, 21.0, 42]), time_s=2.5, step=worker.step
    )
    row = store.evaluations[0]
    assert row == recorder.last_evaluation
    expected = {
        "step": 7, "time_s": 2.5, "loss": 0.5, "accuracy": 0.25, "train_loss": 0.5,
        "samples_computed": 53 + 24, "samples_used": 53 + 24,
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected
    assert "ema_loss" not in row


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ((0, 1, 1), "samples 0: a whole number >= 1"),
        ((9, 0, 1), "ranks 0: a whole number >= 1"),
        ((9, 1, 0), "--batch 0: a whole number >= 1"),
        ((9, 1, 1, -1), "--seed -1: a whole number >= 0"),
    ],
)
def test_nothing_is_dealt_to_nobody(sizes, told):
    with pytest.raises(UsageError, match=told):
        Sampler(*sizes)
