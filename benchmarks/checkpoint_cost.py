"""What checkpoints cost: seconds per step between them, with and without, and seconds of each.

    python benchmarks/checkpoint_cost.py [--mpiexec PATH] [--ranks 2] [--launches 7]

Launches with a checkpoint every 100 steps and without any take turns, so that what else the
machine does strikes both alike. A launch counts by the median of its steps on rank 0, its first 50
left out, and by their 10th percentile, which a busy machine moves less; the table has the medians
over launches and the ratios. Time that checkpoints stop the run is no step's: it is told apart, as
the mean over the checkpoints of a launch.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from mpisgd.mpi import mpiexec
from mpisgd.store.reader import read
from mpisgd.values import tables
from mpisgd.values.errors import UsageError

EVERY, WARM_UP, LIMIT = 100, 50, 1.02
OPTIONS = "--model mlp --data digits --batch 32 --evaluate-every 0"
COLUMNS = (
    "mpi", "ranks", "hidden", "launches", tables.Column("without_us", ".1f"),
    tables.Column("with_us", ".1f"), tables.Column("ratio", ".3f"),
    tables.Column("ratio_p10", ".3f"), tables.Column("limit", ".2f"),
    tables.Column("saving_ms", ".1f"),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mpiexec")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--launches", type=int, default=7, help="of each kind")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--hidden", default="64")
    parser.add_argument("--output", help="JSON file")
    arguments = parser.parse_args()
    try:
        found = mpiexec.find(arguments.mpiexec)
    except UsageError as mistake:
        print(f"checkpoint_cost: error: {mistake}", file=sys.stderr)
        return 2
    measured: dict[bool, list[np.ndarray]] = {False: [], True: []}
    saving: list[float] = []
    for number in range(arguments.launches):
        for kind in (False, True) if number % 2 else (True, False):
            seconds, saved = _launch(found, arguments, kind)
            measured[kind].append(seconds)
            if kind:
                saving.append(saved)
    (without_s, quick_s), (with_s, quick_with_s) = (
        np.median(measured[kind], axis=0).tolist() for kind in (False, True)
    )
    row = {
        "mpi": found.kind, "ranks": arguments.ranks, "hidden": arguments.hidden,
        "launches": arguments.launches, "without_us": without_s * 1e6, "with_us": with_s * 1e6,
        "ratio": with_s / without_s, "ratio_p10": quick_with_s / quick_s, "limit": LIMIT,
        "saving_ms": statistics.median(saving) * 1e3,
        "without_all_us": [(each[0] * 1e6).item() for each in measured[False]],
        "with_all_us": [(each[0] * 1e6).item() for each in measured[True]],
    }  # fmt: skip
    print(tables.render(COLUMNS, [row], "table"))
    if arguments.output:
        text = json.dumps({"method": __doc__, "rows": [row]}, indent=1)
        Path(arguments.output).write_text(text + "\n", encoding="utf-8")
    return 0


def _launch(
    found: mpiexec.Launcher, arguments: argparse.Namespace, checkpoints: bool
) -> tuple[np.ndarray, float]:
    """(median, 10th percentile) of the steps, and the mean of the checkpoints; seconds."""
    python = str(Path(found.path).with_name("python"))
    with tempfile.TemporaryDirectory() as folder:
        output = str(Path(folder) / "run.h5")
        words: list[Any] = [
            python, "-m", "mpisgd", "train", *OPTIONS.split(), "--hidden", arguments.hidden,
            "--steps", arguments.steps, "--output", output,
        ]  # fmt: skip
        words += ["--checkpoint-every", EVERY] if checkpoints else []
        one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        done = found.run(arguments.ranks, [*map(str, words)], 600, environment=os.environ | one)
        if done.returncode:
            raise SystemExit(f"failed: {' '.join(map(str, words))}\n{done.stderr[-2000:]}")
        with read(output) as run:
            quantiles = np.quantile(run.steps["step_s"][WARM_UP:, 0], [0.5, 0.1])
            return quantiles, run.summary["saving_s"] / (arguments.steps // EVERY)


if __name__ == "__main__":
    sys.exit(main())
