"""DaSGD on the library's collectives against our all-reduces: which hides more, at how many looks.

    python benchmarks/carriers.py --mpiexec PATH [--hosts 2] [--rate 200mbit] [--step-time 40ms]

The same run with each carrier, on hosts of a lab, or with `--rate none` in shared memory:
mini-batch SGD, which hides nothing, gives what an average costs; DaSGD (tau = 4, d = 3) what is
left of it. `hidden` is 1 - (wait of an average under DaSGD) / (wait of one under mini-batch SGD),
waits on the slowest rank, as the runs record them; looks at what is in flight are no wait:
`poll_ms` is what they take in a step. Runs come in random order in each of the launches; the table
has medians over launches, and the lowest and highest share. A call adds one line to --output.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from lab_runs import (
    FIRST,
    LONGEST_S,
    MODEL,
    RUNS,
    TAU,
    command_python,
    data_words,
    finished,
    parser,
    run_in_lab,
    training_words,
)

from mpisgd.mpi import mpiexec
from mpisgd.mpi.lab import Lab
from mpisgd.store.reader import Run
from mpisgd.values import tables

CARRIERS = ("halving-doubling", "mpi-nonblocking", "mpi-persistent")
KINDS = ("minibatch", "dasgd")
COLUMNS = (
    "mpi", "hosts", "rate", "step_time", "carrier", "launches",
    *(tables.Column(key, ".2f") for key in
      ("minibatch_ms", "dasgd_ms", "average_ms", "exposed_ms")),
    *(tables.Column(key, ".2f") for key in ("hidden", "lowest", "highest")),
    tables.Column("looks", ".0f"), tables.Column("poll_ms", ".2f"),
)  # fmt: skip
Row = dict[str, Any]


def main() -> int:
    options = _options()
    launcher = mpiexec.find(options.mpiexec)
    samples: dict[str, list[Row]] = {name: [] for name in CARRIERS}
    shuffled = random.Random(options.seed)
    for turn in range(options.launches):
        for name in shuffled.sample(CARRIERS, len(CARRIERS)):
            found = {kind: _launch(launcher, kind, name, options) for kind in KINDS}
            samples[name].append(found | {"load_1min": os.getloadavg()[0]})
            print(f"launch {turn + 1} {name}", file=sys.stderr, flush=True)
    said = {
        "mpi": launcher.kind, "hosts": options.hosts, "rate": options.rate,
        "step_time": options.step_time or "real",
    }  # fmt: skip
    rows = [{**said, "carrier": name, **summary(found)} for name, found in samples.items()]
    print(tables.render(COLUMNS, rows, "table"), flush=True)
    if options.output:
        line = {**said, "steps": options.steps, "model": MODEL, "rows": rows, "samples": samples}
        with Path(options.output).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    return 0


def _options() -> argparse.Namespace:
    made = parser(str(__doc__).split("\n")[0], batch=1408)
    made.add_argument("--step-time", default=None)
    return made.parse_args()


def _launch(launcher: mpiexec.Launcher, kind: str, name: str, options: argparse.Namespace) -> Row:
    """What one run tells of its steps."""
    options.allreduce = name
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.h5"
        line = [
            command_python(launcher.path), "-m", "mpisgd", "train", *RUNS[kind].split(),
            *MODEL.split(), *training_words(options), *data_words(options), "--output", str(file),
            *(["--step-time", options.step_time] if options.step_time else []),
        ]  # fmt: skip
        if options.rate == "none":
            done = launcher.run(options.hosts, line, LONGEST_S)
            if done.returncode:
                raise SystemExit(f"{' '.join(line)}\n{done.stdout}{done.stderr}")
        else:
            with Lab(options.hosts, options.rate, mpiexec=launcher.path) as lab:
                run_in_lab(lab, options.hosts, line)
        with finished(file) as (run, step_s):
            return {"step_s": step_s, **told(run, 1 if kind == "minibatch" else TAU)}


def told(run: Run, every: int) -> Row:
    """Of the steps from FIRST on, an average every so many: seconds that the slowest rank waits for
    an average (waits of a round together), and looks, and their seconds, of a step."""
    steps = run.steps
    wait = steps["wait_s"][FIRST:]
    rounds = wait[: len(wait) // every * every].reshape(-1, every, wait.shape[1]).sum(axis=1)
    return {
        "wait_s": float(statistics.median(rounds.max(axis=1).tolist())),
        "looks": float(steps["polls"][FIRST:].mean()),
        "poll_s": float(steps["poll_s"][FIRST:].mean()),
    }


def summary(launches: list[Row]) -> Row:
    """One row of the table, from both runs of each launch."""

    def median(kind: str, key: str) -> float:
        return statistics.median(launch[kind][key] for launch in launches)

    shares = [1 - each["dasgd"]["wait_s"] / each["minibatch"]["wait_s"] for each in launches]
    return {
        "launches": len(launches),
        **{f"{kind}_ms": median(kind, "step_s") * 1e3 for kind in KINDS},
        "average_ms": median("minibatch", "wait_s") * 1e3,
        "exposed_ms": median("dasgd", "wait_s") * 1e3,
        "hidden": statistics.median(shares), "lowest": min(shares), "highest": max(shares),
        "looks": median("dasgd", "looks"), "poll_ms": median("dasgd", "poll_s") * 1e3,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
