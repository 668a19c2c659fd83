"""The planner's number of backups against trying all: `python studies/planned_backups.py run`.

One server and 8 workers with mpiexec: a run without backups, what `mpisgd advise --backups` makes
of its step times, and runs with every number of backups. `figures` tabulates.

Two tails of step times: that of this machine, and a drawn one like that of Chen et al. 2016.
"""

import argparse
import csv
import io
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from command import Ledger, run_missing, study
from pages import fill_all, flat, middle, publish
from runs import last_evaluation, machine, significant, train

from mpisgd.mpi.mpiexec import Launcher, find
from mpisgd.values.processes import python

Cell = Mapping[str, Any]
Row = dict[str, Any]

WORKERS, BACKUPS, LAUNCHES, UPDATES = 8, (0, 1, 2, 3, 4), (1, 2, 3), 160
SHARED: dict[str, Any] = {
    "algorithm": "backup", "stale": "finish", "model": "mlp", "hidden": (64,), "data": "synthetic",
    "data_samples": 2048, "batch": 32, "rate": 0.02, "evaluate_every": 0, "step_time_s": 0.05,
}  # fmt: skip
TAILS = {"machine": {}, "drawn": {"straggler": "lognormal:0.06,pareto:1.5:0.05"}}
ITERATIONS = "1:8000,8:1000"  # as many gradients, however many make an update


def cells() -> list[Cell]:
    """All launches; numbers of backups take turns, so that a busy machine touches all of them."""
    return [
        {"tail": tail, "launch": launch, "backups": backups}
        for tail in TAILS
        for launch in LAUNCHES
        for backups in BACKUPS
    ]


def run_cell(cell: Cell, mpiexec: Launcher, folder: Path) -> dict[str, Any]:
    """Seconds an update; without backups the planner's seconds for each number of them, too."""
    backups, path = cell["backups"], folder / "run.h5"
    options = SHARED | TAILS[cell["tail"]] | {"seed": cell["launch"], "backups": backups}
    options["steps"] = UPDATES
    train(mpiexec, WORKERS + 1, options, path)
    last = last_evaluation(path)
    used = last["samples_used"] / (SHARED["batch"] * (WORKERS - backups))
    result: dict[str, Any] = {"update_s": significant(last["time_s"] / used)}
    if not backups:
        result["planned"] = planned(path)
    return result | machine(mpiexec)


def planned(path: Path) -> dict[str, list[float]]:
    """What `mpisgd advise --backups` expects of an update: [s, low, high] by backups."""
    words = ["advise", "--backups", "--from", str(path), "--iterations", ITERATIONS]
    done = subprocess.run(
        python("mpisgd", *words, "--format", "csv"), capture_output=True, text=True, check=True
    )
    rows = csv.DictReader(io.StringIO(done.stdout))
    names = ("update_s", "update_low_s", "update_high_s")
    return {row["backups"]: [significant(float(row[name])) for name in names] for row in rows}


def gradients_a_second(backups: int, update_s: float) -> float:
    return (WORKERS - backups) / update_s


def compared(ledger: Ledger, tail: str) -> list[Row]:
    """Each number of backups: planned and measured, medians over launches."""
    lines = [line for line in ledger.lines.values() if line["cell"]["tail"] == tail]
    plans = [line["planned"] for line in lines if "planned" in line]
    rows: list[Row] = []
    for backups in BACKUPS:
        times = [line["update_s"] for line in lines if line["cell"]["backups"] == backups]
        expected = [plan[str(backups)][0] for plan in plans]
        if not times or not expected:
            continue
        rows.append(
            {
                "workers": f"{WORKERS - backups} + {backups}",
                "planned ms an update": middle([1e3 * time for time in expected], 1),
                "measured ms an update": middle([1e3 * time for time in times], 1),
                "planned / measured": f"{median(expected) / median(times):.3f}",
                "planned gradients/s": f"{gradients_a_second(backups, median(expected)):.1f}",
                "measured gradients/s": f"{gradients_a_second(backups, median(times)):.1f}",
            }
        )
    return [row | _marked(row, rows) for row in rows]


def _marked(row: Row, rows: list[Row]) -> Row:
    """`best` beside the largest number of its column."""
    best = {}
    for name in ("planned gradients/s", "measured gradients/s"):
        most = max(float(other[name]) for other in rows)
        best[name] = row[name] + (" (best)" if float(row[name]) == most else "")
    return best


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its tables from the ledger."""
    return fill_all(text, {tail: compared(ledger, tail) for tail in TAILS})


def write(folder: Path) -> None:
    """summary.csv, and the page's tables."""
    publish(folder, page, lambda ledger: flat(ledger, without=("planned",)), {})


def run(arguments: argparse.Namespace, ledger: Ledger) -> None:
    mpiexec = find(arguments.mpiexec)
    with tempfile.TemporaryDirectory() as folder:
        run_missing(cells(), ledger, lambda cell: run_cell(cell, mpiexec, Path(folder)))


def main() -> int:
    return study(
        __doc__, "study-planned-backups", run, write,
        lambda options: options.add_argument("--mpiexec", help="which [the one beside Python]"),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
