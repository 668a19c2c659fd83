"""What the study of backups on real ranks runs: synchronous, backup and async, one slow worker."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from real_run import last_evaluation, machine, train
from virtual_run import significant

from mpisgd.mpi.mpiexec import Launcher
from mpisgd.store.reader import read

Cell = Mapping[str, Any]

LAUNCHES = (1, 2, 3)
WORKERS, SLOW, FACTOR = 8, 7, 5
STEP_S = 0.1  # of a worker that is not slow: it sleeps, as beside an accelerator
SAMPLES, BATCH = 2048, 32
SHARED: dict[str, Any] = {
    "model": "mlp", "hidden": (64,), "data": "synthetic", "data_samples": SAMPLES, "batch": BATCH,
    "rate": 0.02, "momentum": 0.0, "evaluate_every": 0, "step_time_s": STEP_S,
    "straggler": f"{SLOW}:{FACTOR}x",
}  # fmt: skip
# `steps` so that each launch takes about 8 s.
KINDS: dict[str, dict[str, Any]] = {
    "synchronous": {"algorithm": "backup", "backups": 0, "steps": 16},
    "backup, finish": {"algorithm": "backup", "backups": 1, "stale": "finish", "steps": 75},
    "backup, abandon": {"algorithm": "backup", "backups": 1, "stale": "abandon", "steps": 75},
    "async": {"algorithm": "async", "steps": 70},
}


def cells(mpi: str) -> list[Cell]:
    """All launches; the kinds take turns, so that a busy machine touches all of them."""
    return [
        {"kind": kind, "mpi": mpi, "launch": launch, "step_time_s": STEP_S}
        for launch in LAUNCHES
        for kind in KINDS
    ]


def run_cell(cell: Cell, mpiexec: Launcher, folder: Path) -> dict[str, Any]:
    """What the ledger keeps of one launch; its result file stays in `folder`."""
    name = cell["kind"].replace(", ", "-")
    path = folder / f"{name}-{cell['mpi']}-{cell['launch']}.h5"
    train(mpiexec, WORKERS + 1, SHARED | KINDS[cell["kind"]] | {"seed": cell["launch"]}, path)
    last = last_evaluation(path)
    result: dict[str, Any] = {
        "time_s": significant(last["time_s"]),
        "used_samples_per_s": significant(last["samples_used"] / last["time_s"]),
        "computed_samples_per_s": significant(last["samples_computed"] / last["time_s"]),
    }
    return result | staleness(path) | machine(mpiexec)


def staleness(path: Path) -> dict[str, Any]:
    """Updates, drops, and the staleness of used gradients once every worker has been read twice.

    The first gradients are younger than all later ones: nothing has been updated before them.
    """
    with read(path) as run:
        rows = {name: np.asarray(run.updates[name]) for name in
                ("worker", "step", "staleness", "used", "update")}  # fmt: skip
    used = rows["used"] == 1
    settled = used & (rows["step"] > 1) & (rows["update"] > WORKERS * FACTOR)
    if not settled.any():  # a synchronous run has few updates, all of them alike
        settled = used
    slow = rows["worker"] == SLOW
    result: dict[str, Any] = {
        "updates": int(rows["update"].max()),
        "gradients": len(used),
        "dropped": int((~used).sum()),
        "dropped_of_slow": int((~used & slow).sum()),
    }
    for name, chosen in (("all", settled), ("fast", settled & ~slow), ("slow", settled & slow)):
        values = rows["staleness"][chosen]
        result[f"staleness_{name}"] = significant(float(values.mean())) if len(values) else None
    return result


def predicted() -> dict[str, float]:
    """Staleness of async, and used samples/s of synchronous over backups, from the step times.

    While the slow worker computes once, each of the N - 1 others makes FACTOR updates.
    """
    slow = (WORKERS - 1) * FACTOR
    fast = WORKERS - 2 + 1 / FACTOR
    share = 1 / (1 + slow)  # of the updates, that are the slow worker's
    ideal = (WORKERS - 1) * FACTOR / WORKERS
    return {"fast": fast, "slow": slow, "all": share * slow + (1 - share) * fast, "speed-up": ideal}
