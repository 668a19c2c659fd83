"""Runs on the virtual clock that are killed or stopped, and go on, for tests of checkpoints."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from virtual_runs import Rows, prepare

from mpisgd.checkpoint.file import Checkpoint
from mpisgd.checkpoint.identity import identity
from mpisgd.checkpoint.options import AUTO, Saving
from mpisgd.checkpoint.resume import choose
from mpisgd.checkpoint.writer import Checkpointing
from mpisgd.data import load
from mpisgd.drivers.virtual import VirtualRecorder, keep
from mpisgd.drivers.virtual_servers import Ledger, world
from mpisgd.drivers.virtual_servers import keep as keep_served
from mpisgd.experiment.building import algorithm_run, resolve_for
from mpisgd.experiment.experiment import Experiment
from mpisgd.servers.roles import Builder
from mpisgd.store.reader import read
from mpisgd.training.worker import Worker

DIGITS = load("digits", samples=53)
TINY = Experiment(
    model="mlp", hidden=(5,), data="digits", batch=3, steps=12, rate=0.1, evaluate_every=4
)
AVERAGING: dict[str, dict[str, Any]] = {
    "minibatch": {"ema": 0.9, "dtype": "float64"},
    "minibatch-overlap": {"algorithm": "minibatch-overlap", "nesterov": True},
    "local": {"algorithm": "local", "tau": 3, "optimiser": "rmsprop"},
    "dasgd": {"algorithm": "dasgd", "tau": 4, "delay": 2, "ema": 0.8},
    "dasgd-0": {"algorithm": "dasgd", "tau": 3, "delay": 0, "momentum": 0.0},
    "dasgd-tau": {"algorithm": "dasgd", "tau": 2, "delay": 2, "merge": "delta", "chunks": 2},
    "slowmo": {"algorithm": "slowmo", "tau": 3, "outer_momentum": 0.7, "outer_rate": 0.9},
    "stale": {"algorithm": "stale", "staleness": 3, "ramp": 4, "clip": 1.0},
}
SERVED: dict[str, dict[str, Any]] = {
    "async": {"algorithm": "async", "ema": 0.9},
    "async-shards": {"algorithm": "async", "servers": 3, "staleness_rate": True},
    "async-layers": {"algorithm": "async", "servers": 2, "push": "layerwise", "prefetch": True},
    "backup": {"algorithm": "backup", "backups": 1, "servers": 2, "requeue": True},
    "backup-abandon": {"algorithm": "backup", "backups": 2, "stale": "abandon"},
    "softsync": {"algorithm": "softsync", "group": 2, "servers": 2, "reads": "consistent"},
    "softsync-colocated": {"algorithm": "softsync", "group": 3, "servers": 2, "colocated": True},
    "timeout": {"algorithm": "timeout", "timeout_s": 2e-3, "servers": 2, "optimiser": "rmsprop"},
}
SLOW = "titanx-20g"  # a step of the tiny model is short on it


class Killed(BaseException):
    """As if the process had ended there; what it had gone on after, and recorded since."""


class Memory(Rows):
    """A recorder that outlives its process; `kill` says at which rows it ends."""

    def __init__(self, kill: Callable[[], bool]) -> None:
        super().__init__()
        self.kill = kill
        self.last_evaluation: dict[str, Any] = {}
        self.evaluated = 0

    def step(self, step: int, columns: dict[str, float]) -> None:
        if self.kill():
            raise Killed
        super().step(step, columns)

    def evaluation(self, worker: Worker, sums: np.ndarray, time_s: float) -> None:
        super().evaluation(worker, sums, time_s)
        self.evaluated += 1

    def flush(self) -> None:
        """All is kept at once."""


def go(
    experiment: Experiment, saving: Saving, rows: int | None = None, ranks: int = 3
) -> tuple[int, list[Memory]]:
    """Begin a run, or let it go on, until `rows` rows have been recorded.

    The step it went on after, and what was recorded since. Raises Killed.
    """
    clock, run = prepare(experiment, ranks, DIGITS)
    left = iter(range(rows if rows is not None else 10**9))
    memories = [Memory(lambda: next(left, None) is None) for _ in range(ranks)]
    clock.recorders = memories
    mine = identity(run.experiment, DIGITS, virtual=True)
    choice = choose(saving, run.experiment, mine, None)
    checkpointing = Checkpointing(saving, mine, choice.resumed)
    keep(checkpointing, run.experiment, clock, run.workers, memories, None)  # type: ignore[arg-type]
    step = choice.resumed.step if choice.resumed else 0
    try:
        clock.run([algorithm_run(run.experiment, worker) for worker in run.workers])
    except Killed:
        raise Killed(step, memories) from None
    return step, memories


def serve(
    experiment: Experiment, saving: Saving, updates: int | None = None, ranks: int = 5
) -> tuple[int, dict[str, Any]]:
    """As `go`, with servers: until they have told of so many gradients.

    How many they had told of where it went on, and the rows of both tables since.
    """
    experiment = resolve_for(experiment, DIGITS, ranks)
    mine = identity(experiment, DIGITS, virtual=True)
    resumed = choose(saving, experiment, mine, None).resumed
    builder = Builder(experiment, DIGITS)
    evaluator, ledger = builder.evaluator(), Ledger(None)
    recorders = {rank: VirtualRecorder(rank, None, {}, None) for rank in builder.roles.workers}
    rows: dict[str, Any] = {"updates": [], "steps": {}, "last": evaluator}
    virtual_servers = world(builder, evaluator, ledger, recorders)

    def update(row: dict[str, float]) -> None:
        if len(rows["updates"]) == updates:
            raise Killed(begun, rows)
        ledger.add(row)
        rows["updates"].append(row)

    def step(rank: int, number: int, columns: dict[str, float]) -> None:
        recorders[rank].step(number, columns)
        rows["steps"][rank, number] = columns

    virtual_servers.record_update, virtual_servers.record_step = update, step
    keep_served(
        Checkpointing(saving, mine, resumed), experiment, virtual_servers, ledger, recorders
    )
    begun = ledger.added
    virtual_servers.run()
    return begun, rows


def killed_and_resumed(
    experiment: Experiment, saving: Saving, kills: list[int]
) -> list[dict[str, Any]]:
    """What outlives: the rows up to each checkpoint gone on from, and those after it, by rank."""
    kept: list[dict[str, Any]] = [{"steps": {}, "evaluations": {}} for _ in range(3)]
    for attempt, rows in enumerate([*kills, None]):
        now = replace(saving, resume=AUTO if attempt else None)
        try:
            step, memories = go(experiment, now, rows)
        except Killed as end:
            step, memories = end.args
        for rank, memory in enumerate(memories):
            for table, new in (("steps", memory.steps), ("evaluations", memory.evaluations)):
                old = {at: row for at, row in kept[rank][table].items() if at <= step}
                kept[rank][table] = old | new
    return kept


def same(one: Any, other: Any) -> bool:
    """Equal to the bit, NaN with NaN; of numbers, arrays, tuples and dicts."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    return np.array_equal(one, other, equal_nan=True)


def states(path: Path) -> dict[str, np.ndarray]:
    """All states in a checkpoint."""
    assert Checkpoint(path)
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files if name not in ("meta", "sha256")}


def unlike(one: Path, other: Path, times: bool = True) -> Iterator[str]:
    """Where two complete result files, and the checkpoints beside them, are not the same bits.

    `times`: whether seconds count, as they do on the virtual clock.
    """
    mine, its = (states(path.with_name(f"{path.name}.checkpoint")) for path in (one, other))
    yield from mine.keys() ^ its.keys()
    for name in mine.keys() & its.keys():
        if (times or not name.endswith("_s")) and not same(mine[name], its[name]):
            yield name
    with read(one) as left, read(other) as right:
        assert left.complete
        assert right.complete
        for path in sorted(field.path for field, _ in left.arrays() if field.dims):
            timed = path.endswith(("_s", "polls")) or path.startswith(("events/", "rows/"))
            if path.startswith(("restarts/", "rows/restarts")) or (timed and not times):
                continue
            if not same(left.column(path), right.column(path)):
                yield path
