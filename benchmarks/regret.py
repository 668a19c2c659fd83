"""How much slower `--allreduce auto` is than the fastest in hindsight, on launches of its own.

    python benchmarks/regret.py --places shared,2,4 --launches 5 --output FILE.json

For each place, 2 ranks in shared memory or a number of hosts in the lab: `mpisgd tune` makes a
table in a launch of its own, `mpisgd calibrate` a network in another; then `mpisgd bench allreduce
--in-turn` measures everything in launches of their own. The regret of a launch and a size is the
median of what was chosen over the smallest median of all, the library's calls included, less 1.
The smallest of many medians is small by chance, too: even a perfect choice has some. `fast`: of the
fastest tenths instead, which repeat themselves on a busy machine, where medians do not. `default`:
of always taking butterfly.
Hosts need root, see `mpisgd lab`.
"""

import argparse
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from lab_runs import run_in_lab

from allreduce.network import network
from mpisgd.bench.operations import MOCK_UPS
from mpisgd.mpi import mpiexec
from mpisgd.mpi.lab import Lab
from mpisgd.tuning import auto
from mpisgd.values import tables
from mpisgd.values.units import parse_sizes

SHARED = "shared"
LONGEST_S = 900
COLUMNS = (
    "place", "by", "launches", "sizes", tables.Column("median", ".1%"),
    tables.Column("p95", ".1%"), tables.Column("worst", ".1%"),
    tables.Column("fast_median", ".1%"), tables.Column("fast_p95", ".1%"), "library_calls",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--places", default="shared,2,4")
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--sizes", default="1K,16K,256K,1M")
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument("--budget", default="2s", help="of a race, and of a size")
    parser.add_argument("--output")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    samples: dict[str, Any] = {}
    for place in options.places.split(","):
        samples[place] = _measure(place, options)
        rows += _summaries(place, samples[place])
    print(tables.render(COLUMNS, rows, "table"))
    if options.output:
        found = {"method": __doc__, "options": vars(options), "load_1min": os.getloadavg()[0]}
        text = json.dumps(found | {"rows": rows, "samples": samples}, indent=1)
        Path(options.output).write_text(text + "\n", encoding="utf-8")
    return 0


def _measure(place: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One regret for each launch, size and way to choose."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        lab = None if place == SHARED else stack.enter_context(Lab(int(place), options.rate))

        def run(*words: str) -> str:
            line = [sys.executable, "-m", "mpisgd", *words]
            if lab is not None:
                return run_in_lab(lab, int(place), line, timeout=LONGEST_S)
            done = mpiexec.find().run(2, line, LONGEST_S)
            if done.returncode:
                raise SystemExit(f"{' '.join(line)}\n{done.stdout}{done.stderr}")
            return done.stdout

        table, links = str(folder / "t.toml"), str(folder / "n.toml")
        deep = ["--ranks-per-node", "2"] if lab is None else ["--nodes", place]
        run("tune", *deep, "--sizes", options.sizes, "--time-budget", options.budget,
            "--output", table)  # fmt: skip
        run("calibrate", "--batches", "8", "--output", links)
        chosen = _chosen(place, options, {"table": table, "network": links})
        found = []
        for launch in range(options.launches):
            text = run("bench", "allreduce", "--in-turn", "--sizes", options.sizes, "--chunks",
                       "1,8", "--min-repetitions", "8", "--time-budget", options.budget,
                       "--seed", str(launch), "--format", "json")  # fmt: skip
            found += _regrets(launch, json.loads(text), chosen)
    return found


def _chosen(
    place: str, options: argparse.Namespace, files: dict[str, str]
) -> dict[tuple[str, int], tuple[str, int]]:
    """(by what, bytes) -> (algorithm, chunks)."""
    nodes = [0, 0] if place == SHARED else list(range(int(place)))
    found = {}
    for by, file in files.items():
        source, _ = auto.read(file) if by == "table" else (network(file), file)
        assert source is not None
        for size in parse_sizes(options.sizes):
            best = auto.choose(source, file, auto.Load(size), nodes, lambda name: ":" not in name)
            found[by, size] = best.algorithm, best.chunks
            found["default", size] = "butterfly", 1
    return found


def _regrets(
    launch: int, rows: list[dict[str, Any]], chosen: dict[tuple[str, int], tuple[str, int]]
) -> list[dict[str, Any]]:
    found = []
    for (by, size), (name, chunks) in chosen.items():
        there = {
            (row["algorithm"], row["chunks"]): (row["median_s"], row["p10_s"])
            for row in rows
            if row["bytes"] == size and row["algorithm"] not in MOCK_UPS
        }
        best = min(there, key=lambda key: there[key])
        mine, fast = there[name, chunks], min(there, key=lambda key: there[key][1])
        found.append({
            "launch": launch, "by": by, "bytes": size, "algorithm": name, "chunks": chunks,
            "median_s": mine[0], "p10_s": mine[1], "best": best[0], "best_chunks": best[1],
            "best_s": there[best][0], "regret": mine[0] / there[best][0] - 1,
            "fast": fast[0], "fast_chunks": fast[1], "fast_regret": mine[1] / there[fast][1] - 1,
        })  # fmt: skip
    return found


def _summaries(place: str, samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for by in dict.fromkeys(each["by"] for each in samples):
        mine = [each for each in samples if each["by"] == by]
        regrets = [each["regret"] for each in mine]
        median, p95 = np.quantile(regrets, (0.5, 0.95)).tolist()
        fast = np.quantile([each["fast_regret"] for each in mine], (0.5, 0.95)).tolist()
        rows.append({
            "place": place, "by": by, "launches": len({each["launch"] for each in mine}),
            "sizes": len({each["bytes"] for each in mine}), "median": median, "p95": p95,
            "worst": max(regrets), "fast_median": fast[0], "fast_p95": fast[1],
            "library_calls": sum(each["algorithm"].startswith("mpi") for each in mine),
        })  # fmt: skip
    return rows


if __name__ == "__main__":
    sys.exit(main())
