"""Whether evaluations disturb the time of training on a slow network: seconds per step with none,
with one every two steps after training, and with one every two steps during it.

    python benchmarks/evaluations.py --output FILE.json [--step-time 6ms --batch 32]

DaSGD on two hosts whose average takes longer than the steps that it has time for: during an
evaluation the clock stands still, and an average goes on for nothing. Each run is launched several
times, in random order within each of the launches; medians over launches, and the spread. Needs
root, see `mpisgd lab`.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from lab_runs import (
    Samples,
    command_python,
    finish,
    finished,
    measured,
    medians,
    parser,
    run_in_lab,
    timing,
)

from mpisgd.mpi.lab import Lab
from mpisgd.validation.steps import DELAY, TAU
from mpisgd.values import tables

MODEL = "--model mlp --hidden 450,450 --data digits"  # 237,000 parameters: 0.95 MB
DASGD = f"--algorithm dasgd --tau {TAU} --delay {DELAY}"
NONE = "dasgd, no evaluations"
RUNS = {
    "compute alone": "--algorithm local --tau 1000000 --evaluate-every 0",
    NONE: f"{DASGD} --evaluate-every 0",
    "dasgd, evaluated after": f"{DASGD} --evaluate-every 2",
    "dasgd, evaluated during": f"{DASGD} --evaluate-every 2 --evaluate during",
}
COLUMNS = (
    "hosts", "rate", "step_time", "run", "launches", tables.Column("step_ms", ".2f"),
    tables.Column("spread_ms", ".2f"), tables.Column("over_none", ".3f"),
)  # fmt: skip


def main() -> int:
    """Measure, print the table, write --output."""
    made = parser(str(__doc__), batch=512)
    made.add_argument("--step-time", help="pad steps to this, the host idle as beside a device")
    made.set_defaults(steps=80, allreduce="butterfly")
    options = made.parse_args()
    samples = measured(RUNS, options, lambda lab, name: _launch(lab, name, options))
    finish(COLUMNS, _rows(samples, options), samples, options, __doc__, model=MODEL, runs=RUNS)
    return 0


def _launch(lab: Lab, name: str, options: argparse.Namespace) -> float:
    """Seconds per step of one run, its first rounds left out."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.h5"
        line = [
            command_python(options.mpiexec), "-m", "mpisgd", "train", *RUNS[name].split(),
            *MODEL.split(), "--batch", str(options.batch), "--steps", str(options.steps),
            "--allreduce", options.allreduce, "--output", str(file),
        ]  # fmt: skip
        line += ["--step-time", options.step_time] if options.step_time else []
        run_in_lab(lab, options.hosts, line)
        with finished(file) as (_, step_s):
            return step_s


def _rows(samples: Samples, options: argparse.Namespace) -> list[dict[str, Any]]:
    middle = medians(samples)
    return [
        {
            "hosts": options.hosts, "rate": options.rate,
            "step_time": options.step_time or "real", "run": name, **timing(samples[name]),
            "over_none": median / middle[NONE],
        }
        for name, median in middle.items()
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
