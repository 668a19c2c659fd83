"""Do all-reduces fluctuate on large blocks? Their spread against block and chunk size.

    python benchmarks/large_blocks.py --hosts 4 --rate 200mbit [--launches 10] [--output FILE.json]

The DaSGD paper says that butterfly fluctuates on large blocks, where it uses bandwidth badly. Here
all algorithms are called in turn on hosts of the lab (`mpisgd lab`, needs root), --shared on as
many ranks in shared memory, at each block size and number of chunks. Spread is (p90 - p10) / median
over repetitions, median and largest over launches; launches differ by (largest - smallest) / median
of their medians. Busy is the time in which the busiest rank's bytes pass the link at its rate, over
the median: 1 is a link never idle.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from allreduce.algorithms import build
from mpisgd.mpi import mpiexec
from mpisgd.mpi.lab import Lab
from mpisgd.values import tables
from mpisgd.values.errors import UsageError
from mpisgd.values.units import parse_rate

ALGORITHMS = ("tree", "double-tree", "butterfly", "halving-doubling", "ring")
COLUMNS = (
    "mpi", "hosts", "algorithm", "bytes", "chunks", "launches", "repetitions",
    tables.Column("median_ms", ".2f"), tables.Column("spread", ".3f"),
    tables.Column("spread_largest", ".3f"), tables.Column("launches_differ", ".3f"),
    tables.Column("busy", ".2f"),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--mpiexec", help="of the MPI to measure; the python beside it runs")
    parser.add_argument("--sizes", default="64K,256K,1M,4M")
    parser.add_argument("--chunks", default="1,4,16")
    parser.add_argument("--repetitions", default="25")
    parser.add_argument("--launches", type=int, default=1)
    parser.add_argument("--shared", action="store_true", help="no lab: ranks in shared memory")
    parser.add_argument("--output", help="JSON file")
    parser.add_argument("--format", choices=tables.FORMATS, default="table")
    options = parser.parse_args()
    try:
        rows = _measure(options)
    except UsageError as mistake:
        print(f"large_blocks: error: {mistake}", file=sys.stderr)
        return 2
    print(tables.render(COLUMNS, rows, options.format))
    if options.output:
        method = " ".join((__doc__ or "").split("\n\n")[2].split())
        found = {"method": method, "rate": options.rate, "rows": rows}
        Path(options.output).write_text(json.dumps(found) + "\n")
    return 0


def _measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    rate = parse_rate(options.rate.replace("mbit", "Mbit").replace("gbit", "Gbit"), "--rate")
    found = mpiexec.find(options.mpiexec)
    python = Path(found.path).parent / "python"
    words = [
        str(python) if python.exists() else sys.executable, "-m", "mpisgd", "bench", "allreduce",
        "--algorithms", ",".join(ALGORITHMS), "--sizes", options.sizes, "--chunks", options.chunks,
        "--in-turn", "--min-repetitions", options.repetitions,
        "--max-repetitions", options.repetitions, "--format", "json",
    ]  # fmt: skip
    launches = [_launch(options, words, found.path) for _ in range(options.launches)]
    return [
        _row(found.kind, rows, None if options.shared else rate)
        for rows in zip(*launches, strict=True)
    ]


def _launch(options: argparse.Namespace, words: list[str], path: str) -> list[dict[str, Any]]:
    if options.shared:
        line = [path, "-n", str(options.hosts), *words]
        done = subprocess.run(line, capture_output=True, text=True, timeout=1800)
    else:
        with Lab(options.hosts, options.rate, mpiexec=options.mpiexec) as lab:
            done = lab.run(words, ranks=options.hosts, timeout=1800)
    if done.returncode:
        raise UsageError(path, None, f"exit code {done.returncode}: {done.stderr[-300:]}")
    return sorted(json.loads(done.stdout), key=lambda row: (row["bytes"], row["algorithm"]))


def _row(kind: str, rows: Sequence[dict[str, Any]], rate: float | None) -> dict[str, Any]:
    row = rows[0]
    medians = [each["median_s"] for each in rows]
    spreads = [(each["p90_s"] - each["p10_s"]) / each["median_s"] for each in rows]
    median = statistics.median(medians)
    least = busiest(row["algorithm"], row["ranks"]) * row["bytes"] / rate if rate else None
    return {
        "mpi": kind,
        "hosts": row["ranks"] if rate else "shared",
        "algorithm": row["algorithm"],
        "bytes": row["bytes"],
        "chunks": row["chunks"],
        "launches": len(rows),
        "repetitions": row["repetitions"],
        "median_ms": median * 1e3,
        "spread": statistics.median(spreads),
        "spread_largest": max(spreads),
        "launches_differ": (max(medians) - min(medians)) / median,
        "busy": least / median if least else None,
    }


def busiest(algorithm: str, ranks: int) -> float:
    """Vectors that the busiest rank sends or receives."""
    schedule = build(algorithm, ranks)
    moved = np.zeros((2, ranks))
    for part in schedule.rounds:
        share = (part["high"] - part["low"]) / schedule.segments
        np.add.at(moved[0], part["source"], share)
        np.add.at(moved[1], part["destination"], share)
    return float(moved.max())


if __name__ == "__main__":
    sys.exit(main())
