"""What the straggler study plays: 100 virtual workers with a tail like that of Chen et al. 2016.

Cells of part `run` are runs of servers and workers in the virtual world, of which only the times
are kept; cells of part `splits` are what `mpisgd advise --backups` says of every N of 100.
"""

import tempfile
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from virtual_run import Run, made_with, significant

from mpisgd.experiment.building import load
from mpisgd.experiment.experiment import Experiment
from mpisgd.predict import backups, measured
from mpisgd.predict.curves import curve
from mpisgd.report.servers import arrival_seconds
from mpisgd.store.writer import Writer

Cell = Mapping[str, Any]

WORKERS = 100
STEP_S = 1.6  # seconds
TAIL = "lognormal:0.06,pareto:1.5:0.015"
UPDATES = 300
SEED = 1
CURVE = "chen"
RULES = ({"backups": 0, "stale": "finish"}, {"backups": 4, "stale": "finish"},
         {"backups": 4, "stale": "abandon"})  # fmt: skip
DRAWS = 1 << 14  # gradients of a machine, for the splits
KEPT = ("needed", "update_s", "update_low_s", "update_high_s", "converge_s", "converge_low_s",
        "converge_high_s", "over_best", "over_best_low", "over_best_high", "best")  # fmt: skip
FEW = {
    "model": "quadratic", "data": "noise", "data_samples": 1000, "batch": 1, "rate": 0.01,
    "momentum": 0.0, "evaluate_every": 0,
}  # fmt: skip


def cells() -> list[Cell]:
    """All of them; what is measured comes right behind the run that it is measured from."""
    runs = [{"part": "run", **rule, "seed": SEED} for rule in RULES]
    splits = [
        {"part": "splits", "method": method, "stale": stale}
        for method in ("measured", "sampled")
        for stale in backups.STALE
    ]
    return [runs[0], *splits, *runs[1:]]


def values(cell: Cell, updates: int = UPDATES) -> dict[str, Any]:
    """The fields of a run's Experiment."""
    names = ("backups", "stale", "seed")
    own = {name: cell[name] for name in names}
    return {
        **FEW, **own, "algorithm": "backup", "straggler": TAIL, "step_time_s": STEP_S,
        "steps": updates, "servers": 1,
    }  # fmt: skip


def run_cell(cell: Cell) -> dict[str, Any]:
    """What the ledger keeps."""
    began = time.process_time()
    kept = times_of_run(cell) if cell["part"] == "run" else times_of_splits(cell)
    return kept | {"cpu_s": round(time.process_time() - began, 1)} | made_with()


def played(cell: Cell, updates: int = UPDATES) -> dict[str, np.ndarray]:
    """/updates of a run in the virtual world: 100 workers and a server."""
    return _played(tuple(cell.items()), updates)


@lru_cache(maxsize=1)
def _played(items: tuple[tuple[str, Any], ...], updates: int) -> dict[str, np.ndarray]:
    given = values(dict(items), updates)
    run = Run(given, WORKERS + 1, load(Experiment.read(given)))
    failure = run.finish()
    assert not failure, failure
    return dict(run.result.updates)


def times_of_run(cell: Cell) -> dict[str, Any]:
    """Seconds of an update, and to the k-th gradient: mean, and largest of all."""
    pushes = played(cell)
    place, seconds = arrival_seconds(pushes)
    used = pushes["used"] == 1
    made = (pushes["arrived_s"] + pushes["waited_s"])[used & (pushes["update"] == UPDATES)].max()
    counts = np.bincount(place)[1:]
    means = np.bincount(place, seconds)[1:] / counts
    whole = counts >= counts[0] / 2
    return {
        "update_s": significant(made / UPDATES),
        "used_share": significant(used.mean()),
        "largest_s": significant(seconds.max()),
        "arrivals_s": [significant(mean) for mean in means[whole].tolist()],
    }


def times_of_splits(cell: Cell) -> dict[str, Any]:
    """The advice: KEPT of each N."""
    if cell["method"] == "sampled":
        times = backups.of_distribution(TAIL, STEP_S, WORKERS, cell["stale"], 0, DRAWS)
    else:
        times = backups.of_measured(_pools(), WORKERS, cell["stale"], 0, DRAWS)
    rows = backups.rows(times, curve(CURVE, WORKERS).iterations)
    return {"how": times.method, **{name: [_short(row[name]) for row in rows] for name in KEPT}}


def _pools() -> list[np.ndarray]:
    """Gradients' seconds of the run without backups, by way of a result file."""
    pushes = played(cells()[0])
    names, columns = tuple(pushes), [column.tolist() for column in pushes.values()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.h5"
        with Writer(path, kind="train", config={}, environment={}, ranks=WORKERS + 1) as store:
            store.updates(dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
            store.complete({})
        return measured.gradient_seconds(str(path))


def _short(value: Any) -> Any:
    return significant(value) if isinstance(value, float) else value
