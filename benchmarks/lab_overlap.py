"""What delayed averaging hides, on hosts with a slow network: seconds per step over compute alone.

    python benchmarks/lab_overlap.py --hosts 2 --rate 200mbit --output FILE.json [--step-time 40ms]

Each algorithm is launched several times, in random order within each of the launches; the table
gives medians over launches, and the spread. Compute alone is a run of its own without communication
(Local SGD that never comes to its average). Needs root, see `mpisgd lab`.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from lab_runs import ALONE, AVERAGES, MODEL, RUNS, TAU, command_python, finished, words

from mpisgd import launcher, tables
from mpisgd.lab import Lab
from mpisgd.report.accounting import effective_share

COLUMNS = (
    "mpi", "hosts", "rate", "step_time", "algorithm", "launches",
    tables.Column("step_ms", ".2f"), tables.Column("spread_ms", ".2f"),
    tables.Column("over_alone", ".3f"), tables.Column("hidden_share", ".2f"),
    tables.Column("effective_steps", ".2f"), tables.Column("effective_step_ms", ".2f"),
)  # fmt: skip


def main() -> int:
    options = _options()
    samples: dict[str, list[float]] = {name: [] for name in RUNS}
    shares: dict[str, float] = {}
    shuffled = random.Random(options.seed)
    with Lab(options.hosts, options.rate, mpiexec=options.mpiexec) as lab:
        for launch in range(options.launches):
            for name in shuffled.sample(list(RUNS), len(RUNS)):
                step_s, shares[name] = _launch(lab, name, options)
                samples[name].append(step_s)
                print(f"launch {launch + 1} {name}: {step_s * 1e3:.2f} ms", file=sys.stderr)
    rows = _rows(samples, shares, options)
    print(tables.render(COLUMNS, rows, "table"))
    if options.output:
        method = {
            "method": __doc__, "options": vars(options), "model": MODEL, "runs": RUNS,
            "samples_s": samples, "rows": rows,
        }  # fmt: skip
        Path(options.output).write_text(json.dumps(method, indent=1) + "\n")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--mpiexec", help="of the MPI to measure; its python runs the ranks")
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--batch", type=int, default=1408)
    parser.add_argument("--step-time", default=None)
    parser.add_argument("--allreduce", default="halving-doubling")
    parser.add_argument("--chunks", type=int, default=1)
    parser.add_argument("--progress", default="poll")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output")
    return parser.parse_args()


def _launch(lab: Lab, name: str, options: argparse.Namespace) -> tuple[float, float]:
    """Seconds per step and the effective share of one run, its first rounds left out."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.h5"
        line = [command_python(options.mpiexec), "-m", "mpisgd", *words(name, options, file)]
        line += ["--progress", options.progress]
        done = lab.run(line, ranks=options.hosts, timeout=120)
        if done.returncode:
            raise SystemExit(f"{' '.join(line)}\n{done.stdout}{done.stderr}")
        with finished(file) as (run, step_s):
            return step_s, effective_share(run)


def _rows(
    samples: dict[str, list[float]], shares: dict[str, float], options: argparse.Namespace
) -> list[dict[str, Any]]:
    medians = {name: statistics.median(values) for name, values in samples.items()}
    alone, every_step = medians[ALONE], medians["minibatch"] - medians[ALONE]
    rows = []
    for name, median in medians.items():
        averages = AVERAGES.get(name, 1)  # in TAU steps
        # An average takes what mini-batch SGD loses at every step.
        exposed = (median - alone) * TAU / averages if averages else 0.0
        rows.append({
            "mpi": launcher.find(options.mpiexec).kind, "hosts": options.hosts,
            "rate": options.rate, "step_time": options.step_time or "real", "algorithm": name,
            "launches": len(samples[name]), "step_ms": median * 1e3,
            "spread_ms": (max(samples[name]) - min(samples[name])) * 1e3,
            "over_alone": median / alone,
            "hidden_share": 1 - exposed / every_step if averages else None,
            "effective_steps": shares[name] * (TAU if averages == 1 else 1),
            "effective_step_ms": median / shares[name] * 1e3,
        })  # fmt: skip
    return rows


if __name__ == "__main__":
    sys.exit(main())
