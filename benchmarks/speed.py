"""How fast the hand-written all-reduces are beside the MPI library's: 2 ranks, in place.

    python benchmarks/speed.py [--mpiexec PATH ...] [--launches 5] [--output speed.json]

Every launch measures all sizes in a random order, each rank bound to a core. At each size all
algorithms are called in turn, so that what else the machine does strikes all alike; with --alone
each is called by itself, as other benchmarks do, with its caches warm. The ratio of a launch is the
median of the algorithm over the median of MPI_Allreduce(MPI_IN_PLACE), called bare.
The table has the algorithm whose median ratio over launches is smallest, with its extremes.
Each --mpiexec is used with the Python that lies beside it.
"""

import argparse
import json
import os
import platform
import statistics
import sys
from pathlib import Path
from typing import Any

from mpisgd.mpi import mpiexec
from mpisgd.values import tables
from mpisgd.values.errors import UsageError

ALGORITHMS = ("butterfly", "halving-doubling", "ring", "tree")
SIZES = "4,1K,16K,64K,256K,1M,16M,64M"
LIMITS = {  # bytes from which the ratio should be at most so much
    "mpich": {4: 1.5, 1024: 1.0},
    "openmpi": {4: 2.5, 1024: 1.7, 16384: 1.1},
}
COLUMNS = (
    "library", "bytes", "algorithm", "chunks", tables.Column("native_us", ".2f"),
    tables.Column("ratio", ".2f"), tables.Column("lowest", ".2f"), tables.Column("highest", ".2f"),
    "limit", "launches",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mpiexec", action="append", help="may be given several times")
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--alone", action="store_true", help="one algorithm at a time")
    parser.add_argument("--chunks", default="1")
    parser.add_argument("--algorithms", default=",".join(ALGORITHMS))
    parser.add_argument("--time-budget", default="1s", help="of a size, in one launch")
    parser.add_argument("--output", help="JSON file")
    parser.add_argument("--format", choices=tables.FORMATS, default="table")
    arguments = parser.parse_args()
    try:
        rows, launches = [], []
        for path in arguments.mpiexec or [None]:
            found = mpiexec.find(path)
            measured = [_launch(found, arguments, seed) for seed in range(arguments.launches)]
            launches += measured
            rows += summarise(found.kind, [each["rows"] for each in measured])
    except UsageError as mistake:
        print(f"speed: error: {mistake}", file=sys.stderr)
        return 2
    print(tables.render(COLUMNS, rows, arguments.format))
    if arguments.output:
        _write(arguments, rows, launches)
    return 0


def summarise(kind: str, launches: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """One row for every size: the best algorithm by its median ratio over launches."""
    ratios: dict[tuple[int, str, int], list[float]] = {}
    native: dict[int, list[float]] = {}
    for rows in launches:
        base = {row["bytes"]: row["median_s"] for row in rows if row["algorithm"] == "mpi"}
        for octets, seconds in base.items():
            native.setdefault(octets, []).append(seconds)
        for row in rows:
            if not row["algorithm"].startswith("mpi"):
                key = row["bytes"], row["algorithm"], row["chunks"]
                ratios.setdefault(key, []).append(row["median_s"] / base[row["bytes"]])
    table = []
    for octets in sorted(native):
        key = min((k for k in ratios if k[0] == octets), key=lambda k: statistics.median(ratios[k]))
        table.append({
            "library": kind,
            "bytes": octets,
            "algorithm": key[1],
            "chunks": key[2],
            "native_us": statistics.median(native[octets]) * 1e6,
            "ratio": statistics.median(ratios[key]),
            "lowest": min(ratios[key]),
            "highest": max(ratios[key]),
            "limit": limit(kind, octets),
            "launches": len(ratios[key]),
        })  # fmt: skip
    return table


def limit(kind: str, octets: int) -> float | None:
    """The largest ratio wanted."""
    known = LIMITS.get(kind, {})
    return known[max(k for k in known if k <= octets)] if known else None


def _launch(found: mpiexec.Launcher, arguments: argparse.Namespace, seed: int) -> dict[str, Any]:
    python = Path(found.path).parent / "python"
    words = [
        str(python) if python.exists() else sys.executable, "-m", "mpisgd", "bench", "allreduce",
        "--algorithms", f"{arguments.algorithms},mpi", "--no-mock-ups", "--bind",
        *([] if arguments.alone else ["--in-turn"]),
        "--sizes", arguments.sizes, "--chunks", arguments.chunks, "--seed", str(seed),
        "--min-repetitions", "10", "--max-repetitions", "3000", "--tolerance", "0.005",
        "--time-budget", arguments.time_budget, "--format", "json",
    ]  # fmt: skip
    load = os.getloadavg()[0]
    done = found.run(2, words, timeout=600)
    if done.returncode:
        raise UsageError(found.path, None, f"exit code {done.returncode}: {done.stderr[-300:]}")
    rows = json.loads(done.stdout)
    wrong = [row for row in rows if row["wrong"]]
    assert not wrong, wrong
    return {"library": found.kind, "version": found.version, "load_1min": load, "rows": rows}


def _write(
    arguments: argparse.Namespace, rows: list[dict[str, Any]], launches: list[dict[str, Any]]
) -> None:
    kept = ("algorithm", "bytes", "chunks", "repetitions", "median_s", "ci_low_s", "ci_high_s")
    for launch in launches:
        launch["rows"] = [[row[name] for name in kept] for row in launch["rows"]]
    text = json.dumps({
        "method": " ".join((__doc__ or "").split("\n\n")[2].split()),
        "alone": arguments.alone,
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "table": rows,
        "columns": kept,
        "launches": launches,
    })  # fmt: skip
    Path(arguments.output).write_text(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
