"""Simulation against reality: all-reduces in the lab, and what the simulator said they would take.

    python benchmarks/lab_model.py --hosts 2,4,8 --output FILE.json

For each number of hosts: `mpisgd calibrate` measures messages between two hosts, nothing else; the
simulator prices the schedules on that network; `mpisgd bench allreduce` runs them, with --longest
cut in as many chunks as it takes for no message to be longer. The error is (simulated - measured)
/ measured, of medians.
Needs root, see `mpisgd lab`.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from lab_runs import command_python, run_in_lab

from allreduce.algorithms import build
from allreduce.network import Network, network
from allreduce.schedule import Schedule
from allreduce.simulate.events import Cluster
from mpisgd.mpi import mpiexec
from mpisgd.mpi.lab import Lab
from mpisgd.values import tables
from mpisgd.values.units import parse_size, parse_sizes

LONGEST_S = 600  # of a calibration, or of a run of the benchmark
REPEATED = 4  # all-reduces that are simulated in a row; the last counts
ALGORITHMS = ("tree", "butterfly", "halving-doubling", "ring")
COLUMNS = (
    "mpi", "hosts", "algorithm", "bytes", "chunks", "repetitions",
    tables.Column("measured_ms", ".3f"),
    tables.Column("p10_ms", ".3f"), tables.Column("p90_ms", ".3f"),
    tables.Column("simulated_ms", ".3f"), tables.Column("error", "+.1%"),
)  # fmt: skip


def main() -> int:
    options = _options()
    rows: list[dict[str, Any]] = []
    for hosts in map(int, options.hosts.split(",")):
        with Lab(hosts, options.rate, mpiexec=options.mpiexec) as lab:
            rows += _compare(lab, hosts, options)
        _write(rows, options)
    print(tables.render(COLUMNS, rows, "table"))
    print(_summary(rows))
    return 0


def _summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    errors = [abs(row["error"]) for row in rows]
    return {"median_error": statistics.median(errors), "worst_error": max(errors)}


def _write(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """What is known so far: a run that is cut off has lost nothing."""
    if options.output:
        found = {"method": __doc__, "options": vars(options), **_summary(rows), "rows": rows}
        Path(options.output).write_text(json.dumps(found, indent=1) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", default="2,4,8")
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--mpiexec", help="of the MPI to measure; its python runs the ranks")
    parser.add_argument("--sizes", default="64K:4M")
    parser.add_argument("--longest", default="inf", help="message [nothing is cut]")
    parser.add_argument("--budget", default="2", help="seconds a case")
    parser.add_argument("--output")
    return parser.parse_args()


def _compare(lab: Lab, hosts: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    python = command_python(options.mpiexec)
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "lab.toml")
        line = [python, "-m", "mpisgd", "calibrate", "--output", file]
        run_in_lab(lab, hosts, line, timeout=LONGEST_S)
        links = network(file)
    rows = []
    for case in _measure(lab, hosts, python, options):
        schedule = build(case["algorithm"], hosts)
        simulated = steady_s(schedule, case["bytes"], links, case["chunks"])
        rows.append({
            "mpi": mpiexec.find(options.mpiexec).kind, "hosts": hosts,
            "algorithm": case["algorithm"], "bytes": case["bytes"], "chunks": case["chunks"],
            "repetitions": case["repetitions"], "measured_ms": case["median_s"] * 1e3,
            "p10_ms": case["p10_s"] * 1e3, "p90_ms": case["p90_s"] * 1e3,
            "simulated_ms": simulated * 1e3, "error": simulated / case["median_s"] - 1,
        })  # fmt: skip
    return rows


def steady_s(schedule: Schedule, nbytes: int, links: Network, chunks: int) -> float:
    """Seconds of the all-reduce in a row of them, each begun when the one before is done
    everywhere, as a benchmark does it: wires have no time to be idle in between."""
    cluster, ends = Cluster(links, schedule.size), [0.0]
    for _ in range(REPEATED):
        collective = cluster.collective(schedule, nbytes, itemsize=4, chunks=chunks)
        for rank in range(schedule.size):
            cluster.compute(rank, ends[-1] - cluster.now(rank))
        while collective.unfinished:
            event = cluster.next()
            assert event is not None
            if not collective.started[event.rank]:
                cluster.start(event.rank, collective)
                cluster.wait(event.rank, collective)
        ends.append(max(time for time in collective.completion if time is not None))
    return ends[-1] - ends[-2]


def _measure(
    lab: Lab, hosts: int, python: str, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """What `mpisgd bench allreduce` says of each algorithm and size."""
    longest = math.inf if options.longest == "inf" else parse_size(options.longest, "--longest")
    by_chunks: dict[int, list[int]] = {}
    for size in parse_sizes(options.sizes, "--sizes"):
        by_chunks.setdefault(max(1, math.ceil(size / longest)), []).append(size)
    cases = []
    for chunks, sizes in by_chunks.items():
        bench = run_in_lab(lab, hosts, [
            python, "-m", "mpisgd", "bench", "allreduce", "--algorithms", ",".join(ALGORITHMS),
            "--sizes", ",".join(map(str, sizes)), "--chunks", str(chunks),
            "--in-place", "--time-budget", options.budget, "--format", "json",
        ], timeout=LONGEST_S)  # fmt: skip
        cases += [case for case in json.loads(bench) if case["algorithm"] in ALGORITHMS]
    return cases


if __name__ == "__main__":
    sys.exit(main())
