"""What delayed averaging hides, on hosts with a slow network: seconds per step over compute alone.

    python benchmarks/lab_overlap.py --hosts 2 --rate 200mbit --output FILE.json [--step-time 40ms]

Each algorithm is launched several times, in random order within each of the launches; the table
gives medians over launches, and the spread. Compute alone is a run of its own without communication
(Local SGD that never comes to its average). Needs root, see `mpisgd lab`.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from lab_runs import (
    ALONE,
    AVERAGES,
    MODEL,
    RUNS,
    TAU,
    Samples,
    command_python,
    finish,
    finished,
    measured,
    medians,
    parser,
    run_in_lab,
    timing,
    words,
)

from mpisgd.mpi import mpiexec
from mpisgd.mpi.lab import Lab
from mpisgd.training.effective import effective_share
from mpisgd.values import tables

COLUMNS = (
    "mpi", "hosts", "rate", "step_time", "algorithm", "launches",
    tables.Column("step_ms", ".2f"), tables.Column("spread_ms", ".2f"),
    tables.Column("over_alone", ".3f"), tables.Column("hidden_share", ".2f"),
    tables.Column("effective_steps", ".2f"), tables.Column("effective_step_ms", ".2f"),
)  # fmt: skip


def main() -> int:
    options = _options()
    shares: dict[str, float] = {}

    def launch(lab: Lab, name: str) -> float:
        step_s, shares[name] = _launch(lab, name, options)
        return step_s

    samples = measured(RUNS, options, launch)
    rows = _rows(samples, shares, options)
    finish(COLUMNS, rows, samples, options, __doc__, model=MODEL, runs=RUNS)
    return 0


def _options() -> argparse.Namespace:
    made = parser(str(__doc__), batch=1408)
    made.add_argument("--step-time", default=None)
    made.add_argument("--chunks", type=int, default=1)
    made.add_argument("--progress", default="poll")
    return made.parse_args()


def _launch(lab: Lab, name: str, options: argparse.Namespace) -> tuple[float, float]:
    """Seconds per step and the effective share of one run, its first rounds left out."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.h5"
        line = [command_python(options.mpiexec), "-m", "mpisgd", *words(name, options, file)]
        run_in_lab(lab, options.hosts, [*line, "--progress", options.progress])
        with finished(file) as (run, step_s):
            rule = [run.config[key] for key in ("tau", "delay", "xi", "merge")]
            return step_s, effective_share(*rule) if name.startswith("dasgd") else 1.0


def _rows(
    samples: Samples, shares: dict[str, float], options: argparse.Namespace
) -> list[dict[str, Any]]:
    middle = medians(samples)
    alone, every_step = middle[ALONE], middle["minibatch"] - middle[ALONE]
    rows = []
    for name, median in middle.items():
        averages = AVERAGES.get(name, 1)  # in TAU steps
        # An average takes what mini-batch SGD loses at every step.
        exposed = (median - alone) * TAU / averages if averages else 0.0
        rows.append({
            "mpi": mpiexec.find(options.mpiexec).kind, "hosts": options.hosts,
            "rate": options.rate, "step_time": options.step_time or "real", "algorithm": name,
            **timing(samples[name]),
            "over_alone": median / alone,
            "hidden_share": 1 - exposed / every_step if averages else None,
            "effective_steps": shares[name] * (TAU if averages == 1 else 1),
            "effective_step_ms": median / shares[name] * 1e3,
        })  # fmt: skip
    return rows


if __name__ == "__main__":
    sys.exit(main())
