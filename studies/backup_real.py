"""Backup workers on real ranks: `python studies/backup_real.py run` trains, `figures` tabulates.

`run` starts 1 server and 8 workers with mpiexec, one worker slowed 5 times, keeps one line for each
launch in results/study-backup-real/runs.jsonl, and skips those. Files go to --files.

Synchronous, backup and async, one slow worker; the page shows medians and ranges of launches.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from command import Ledger, run_missing, study
from pages import fill_all, flat, middle, publish
from runs import last_evaluation, machine, significant, train

from mpisgd.mpi.mpiexec import Launcher, find
from mpisgd.store.reader import read

Cell = Mapping[str, Any]
Row = dict[str, Any]

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


def by_kind(ledger: Ledger, mpi: str) -> dict[str, list[Row]]:
    """The launches of each kind under one MPI library, in the order of KINDS."""
    lines = [line for line in ledger.lines.values() if line["cell"]["mpi"] == mpi]
    found = {kind: [line for line in lines if line["cell"]["kind"] == kind] for kind in KINDS}
    return {kind: rows for kind, rows in found.items() if rows}


def speeds(ledger: Ledger, mpi: str) -> list[Row]:
    """Used samples/s of each kind, and over those of the synchronous launch beside it."""
    found = by_kind(ledger, mpi)
    base = {x["cell"]["launch"]: x["used_samples_per_s"] for x in found.get("synchronous", [])}
    rows = []
    for kind, lines in found.items():
        ratios = [
            line["used_samples_per_s"] / base[line["cell"]["launch"]]
            for line in lines
            if line["cell"]["launch"] in base
        ]
        row: Row = {"algorithm": kind, "launches": len(lines)}
        row["used samples/s"] = middle((x["used_samples_per_s"] for x in lines), 0)
        row["computed samples/s"] = middle((x["computed_samples_per_s"] for x in lines), 0)
        row["over synchronous"] = middle(ratios, 2) if ratios else ""
        row["ms an update"] = middle((1e3 * x["time_s"] / x["updates"] for x in lines), 1)
        row["dropped, of which the slow worker's"] = (
            f"{sum(x['dropped'] for x in lines)}, {sum(x['dropped_of_slow'] for x in lines)}"
        )
        rows.append(row)
    return rows


def ages(ledger: Ledger, mpi: str) -> list[Row]:
    """Staleness of async, measured beside predicted."""
    lines = by_kind(ledger, mpi).get("async", [])
    if not lines:
        return []
    names = {"all": "all workers", "fast": "the seven fast", "slow": "the slow one"}
    return [
        {
            "gradients of": shown,
            "predicted": f"{predicted()[name]:.2f}",
            "measured": middle((line[f"staleness_{name}"] for line in lines), 2),
        }
        for name, shown in names.items()
    ]


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its tables from the ledger."""
    tables = {}
    for mpi in ("mpich", "openmpi"):
        tables |= {f"speeds-{mpi}": speeds(ledger, mpi), f"ages-{mpi}": ages(ledger, mpi)}
    return fill_all(text, tables)


def write(folder: Path) -> None:
    """summary.csv, and the page's tables."""
    publish(folder, page, flat, {})


def add(options: argparse.ArgumentParser) -> None:
    options.add_argument("--mpiexec", help="which mpiexec [the one beside this Python]")
    options.add_argument("--files", type=Path, help="folder of result files [a temporary one]")


def run(arguments: argparse.Namespace, ledger: Ledger) -> None:
    mpiexec = find(arguments.mpiexec)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.files or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        run_missing(cells(mpiexec.kind), ledger, lambda cell: run_cell(cell, mpiexec, folder))


def main() -> int:
    return study(__doc__, "study-backup-real", run, write, add)


if __name__ == "__main__":
    sys.exit(main())
