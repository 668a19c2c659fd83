"""Runs on the virtual clock that are killed or stopped, and go on, for tests of checkpoints."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mpisgd.checkpoint.file import Checkpoint
from mpisgd.checkpoint.identity import identity
from mpisgd.checkpoint.options import AUTO, Saving
from mpisgd.checkpoint.resume import choose
from mpisgd.checkpoint.writer import Checkpointing
from mpisgd.data import load
from mpisgd.drivers.job import Job
from mpisgd.drivers.launch import averages
from mpisgd.drivers.rows import Recording
from mpisgd.drivers.virtual import begun
from mpisgd.experiment.building import resolve_for
from mpisgd.experiment.experiment import Experiment
from mpisgd.store.reader import read

DIGITS = load("digits", samples=53)
TINY = Experiment(
    model="mlp", hidden=(5,), data="digits", batch=3, steps=12, rate=0.1, evaluate_every=4
)
AVERAGING: dict[str, dict[str, Any]] = {
    "minibatch": {"ema": 0.9, "dtype": "float64"},
    "minibatch-overlap": {"algorithm": "minibatch-overlap", "nesterov": True},
    "partial": {"algorithm": "minibatch-partial", "straggler": "lognormal:0.5", "momentum": 0.9},
    "partial-add": {
        "algorithm": "minibatch-partial",
        "straggler": "lognormal:0.5",
        "late": "add",
        "quorum": 2,
    },
    "local": {"algorithm": "local", "tau": 3, "optimiser": "rmsprop"},
    "dasgd": {"algorithm": "dasgd", "tau": 4, "delay": 2, "ema": 0.8, "initial": "own"},
    "dasgd-0": {"algorithm": "dasgd", "tau": 3, "delay": 0, "momentum": 0.0},
    "dasgd-tau": {"algorithm": "dasgd", "tau": 2, "delay": 2, "merge": "delta", "chunks": 2},
    "local-partial": {
        "algorithm": "local",
        "tau": 3,
        "quorum": "majority",
        "straggler": "lognormal:0.5",
    },
    "dasgd-partial": {
        "algorithm": "dasgd",
        "tau": 3,
        "delay": 2,
        "quorum": 2,
        "late": "add",
        "merge": "delta",
        "straggler": "lognormal:0.5",
        "momentum": 0.9,
    },
    "slowmo": {"algorithm": "slowmo", "tau": 3, "outer_momentum": 0.7, "outer_rate": 0.9},
    "wire": {"algorithm": "dasgd", "tau": 3, "wire": "int8", "error_feedback": True},
    "topk": {"algorithm": "local", "tau": 3, "wire": "topk:0.1"},
    "powersgd": {"algorithm": "minibatch-overlap", "wire": "powersgd:2"},
    "diloco": {"algorithm": "diloco", "tau": 3},
    "streaming": {"algorithm": "streaming-diloco", "tau": 4, "delay": 2, "fragments": 3},
    "post-local": {"algorithm": "post-local", "tau": 2, "switch": 5},
    "easgd": {"algorithm": "easgd", "tau": 2, "elasticity": 0.7},
    "gossip": {"algorithm": "gossip", "tau": 3, "delay": 2, "momentum": 0.9},
    "gossip-tau": {"algorithm": "gossip", "tau": 2, "delay": 2, "wire": "int8", "ema": 0.9},
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
    """As if the process had ended there."""


class Memory(Recording):
    """Rows that outlive their process; `kill` says at which rows of that table it ends."""

    def __init__(self, job: Job, table: str, rows: int | None) -> None:
        super().__init__(None, None, job.experiment.ranks, job.resumed)
        self.table, self.begun = table, self.counts["updates"]
        self.after = job.resumed.step if job.resumed else 0
        self.left = iter(range(rows if rows is not None else 10**9))
        self.kept: dict[str, Any] = {"steps": {}, "evaluation": {}, "updates": []}

    def _lives(self, table: str) -> None:
        if table == self.table and next(self.left, None) is None:
            raise Killed

    def step(self, rank: int, step: int, columns: dict[str, float]) -> None:
        self._lives("steps")
        super().step(rank, step, columns)
        self.kept["steps"][rank, step] = dict(columns)

    def update(self, row: dict[str, float]) -> None:
        self._lives("updates")
        super().update(row)
        self.kept["updates"].append(row)

    def evaluation(self, **row: Any) -> None:
        super().evaluation(**row)
        self.kept["evaluation"][row["step"]] = row


def go(
    experiment: Experiment, saving: Saving, rows: int | None = None, ranks: int = 3
) -> tuple[Any, Memory]:
    """Begin a run, or let it go on, until `rows` rows have been recorded: of /updates with servers,
    of /steps without. It, and what it recorded; Killed with that."""
    experiment = resolve_for(experiment, DIGITS, ranks)
    mine = identity(experiment, DIGITS, virtual=True)
    resumed = choose(saving, experiment, mine, None).resumed
    job = Job(experiment, DIGITS, checkpointing=Checkpointing(saving, mine, resumed))
    memory = Memory(job, "steps" if averages(experiment) else "updates", rows)
    run = begun(job, memory)
    try:
        run.run()
    except Killed:
        raise Killed(memory) from None
    return run, memory


def serve(
    experiment: Experiment, saving: Saving, updates: int | None = None, ranks: int = 5
) -> tuple[int, dict[str, Any]]:
    """As `go`, with servers: how many gradients they had told of where it went on, and the rows of
    all tables since."""
    try:
        run, memory = go(experiment, saving, updates, ranks)
    except Killed as end:
        (memory,) = end.args
        raise Killed(memory.begun, memory.kept) from None
    return memory.begun, memory.kept | {
        "last": memory.last,
        "parameters": run.evaluator.parameters.flat,
    }


def killed_and_resumed(experiment: Experiment, saving: Saving, kills: list[int]) -> dict[str, Any]:
    """What outlives: the rows up to each checkpoint gone on from, and those after it."""
    kept: dict[str, Any] = {"steps": {}, "evaluation": {}}
    for attempt, rows in enumerate([*kills, None]):
        try:
            _, memory = go(experiment, replace(saving, resume=AUTO if attempt else None), rows)
        except Killed as end:
            (memory,) = end.args
        old = {at: row for at, row in kept["steps"].items() if at[1] <= memory.after}
        kept["steps"] = old | memory.kept["steps"]
        old = {at: row for at, row in kept["evaluation"].items() if at <= memory.after}
        kept["evaluation"] = old | memory.kept["evaluation"]
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
