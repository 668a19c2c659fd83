"""The library's all-reduce as `bench allreduce` and as other benchmarks time it, on the same ranks.

    python benchmarks/imb.py --mpiexec .venv-impi/bin/mpiexec [--launches 9] [--output FILE.json]

The other is IMB-MPI1 beside the mpiexec (it comes with the wheel impi-rt), else osu_allreduce on
PATH. Launches of the two take turns, out of place. IMB and OSU give the mean of calls that follow
one another, on the slowest rank (IMB) or over ranks (OSU); ours the median of calls that follow a
barrier, on the slowest rank, and the slowest rank's mean. The table has medians over launches and
the least of any launch: what a busy machine disturbs least.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

from lab_runs import command_python

from mpisgd.mpi import mpiexec
from mpisgd.values import tables
from mpisgd.values.errors import UsageError
from mpisgd.values.options import whole

COLUMNS = (
    "other", "ranks", "bytes", "launches",
    *(tables.Column(key, ".2f") for key in
      ("other_us", "other_least_us", "ours_us", "ours_least_us", "ours_mean_least_us")),
    tables.Column("ratio", ".3f"), tables.Column("ratio_least", ".3f"),
    tables.Column("difference_us", ".2f"),
)  # fmt: skip
ROW = re.compile(r"^[ \t]*(\d+)((?:[ \t]+[\d.]+)+)[ \t]*$", re.MULTILINE)
Seconds = dict[int, float]  # of a call, by bytes


def main() -> int:
    options = _options()
    try:
        launcher = mpiexec.find(options.mpiexec)
        powers = range(options.low, options.high + 1)
        name, words, variables, column = other(launcher, powers, options.iterations)
        samples = []
        for launch in range(options.launches):
            done = launcher.run(options.ranks, words, 300, environment=variables)
            told = parsed(done.stdout, column)
            if not told:
                raise UsageError(name, None, f"no times: {(done.stdout + done.stderr)[-300:]}")
            medians, means = _ours(launcher, options, powers, launch)
            load = os.getloadavg()[0]
            samples.append({"other": told, "ours": medians, "ours_mean": means, "load_1min": load})
            print(f"launch {launch + 1} of {options.launches}", file=sys.stderr)
    except UsageError as mistake:
        print(f"imb: error: {mistake}", file=sys.stderr)
        return 2
    rows = [{"other": name, "ranks": options.ranks, **row} for row in compared(samples)]
    print(tables.render(COLUMNS, rows, "table"))
    if options.output:
        found = {"method": __doc__, "library": launcher.version, "rows": rows, "samples": samples}
        Path(options.output).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def _options() -> argparse.Namespace:
    made = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    made.add_argument("--mpiexec")
    for name, default, about in (
        ("ranks", 2, None), ("launches", 9, None), ("low", 10, "bytes of the least, a power of 2"),
        ("high", 22, "and of the most"), ("iterations", 50, "of each size in one launch"),
    ):  # fmt: skip
        made.add_argument(f"--{name}", default=str(default), help=about)
    made.add_argument("--output")
    options = made.parse_args()
    for name in ("ranks", "launches", "low", "high", "iterations"):
        number = whole(1, 28 if name in ("low", "high") else 10**6)
        setattr(options, name, number.read(f"--{name}", getattr(options, name)))
    return options


def other(
    launcher: mpiexec.Launcher, powers: range, iterations: int
) -> tuple[str, list[str], dict[str, str], int]:
    """Its name, its command, what its environment needs, and the column of its seconds."""
    scripts = Path(launcher.path).parent
    if (imb := scripts / "IMB-MPI1").exists():
        words = [str(imb), "Allreduce", "-msglog", f"{powers[0]}:{powers[-1]}", "-npmin", "1000",
                 "-iter", str(iterations), "-iter_policy", "off", "-time", "100"]  # fmt: skip
        libraries = os.pathsep.join(
            filter(None, (str(scripts.parent / "lib"), os.environ.get("LD_LIBRARY_PATH")))
        )
        return "IMB-MPI1", words, {"LD_LIBRARY_PATH": libraries}, 2
    if osu := shutil.which("osu_allreduce"):
        sizes = f"{2 ** powers[0]}:{2 ** powers[-1]}"
        return "osu_allreduce", [osu, "-m", sizes, "-i", str(iterations)], {}, 0
    raise UsageError("--mpiexec", launcher.path, "no IMB-MPI1 beside it, no osu_allreduce on PATH")


def parsed(text: str, column: int) -> Seconds:
    """Seconds by bytes: lines of numbers, the first is the bytes, microseconds in `column`."""
    found = ((int(octets), rest.split()) for octets, rest in ROW.findall(text))
    return {octets: float(rest[column]) / 1e6 for octets, rest in found if len(rest) > column}


def _ours(
    launcher: mpiexec.Launcher, options: argparse.Namespace, powers: range, seed: int
) -> tuple[Seconds, Seconds]:
    """Medians, and means, of `bench allreduce` in one launch."""
    words = [
        command_python(launcher.path), "-m", "mpisgd", "bench", "allreduce", "--algorithms", "mpi",
        "--no-mock-ups", "--out-of-place", "--osu", "--format", "json", "--seed", str(seed),
        "--sizes", ",".join(str(2**power) for power in powers), "--time-budget", "0.15s",
        "--min-repetitions", str(options.iterations), "--tolerance", "0.005",
    ]  # fmt: skip
    done = launcher.run(options.ranks, words, 300)
    if done.returncode:
        raise UsageError(launcher.path, None, f"exit code {done.returncode}: {done.stderr[-300:]}")
    rows = json.loads(done.stdout)
    return ({row["bytes"]: row["median_s"] for row in rows},
            {row["bytes"]: row["osu_max_s"] for row in rows})  # fmt: skip


def compared(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a size that both measured, in microseconds."""
    sizes = sorted(set.intersection(*(set(s["other"]) & set(s["ours"]) for s in samples)))
    rows = []
    for octets in sizes:
        theirs, ours, means = (
            [sample[key][octets] * 1e6 for sample in samples]
            for key in ("other", "ours", "ours_mean")
        )
        rows.append({
            "bytes": octets, "launches": len(samples),
            "other_us": statistics.median(theirs), "other_least_us": min(theirs),
            "ours_us": statistics.median(ours), "ours_least_us": min(ours),
            "ours_mean_least_us": min(means),
            "ratio": statistics.median(ours) / statistics.median(theirs),
            "ratio_least": min(ours) / min(theirs), "difference_us": min(ours) - min(theirs),
        })  # fmt: skip
    return rows


if __name__ == "__main__":
    sys.exit(main())
