"""Does an all-reduce of the library overlap, with which setting, at what price: 2 ranks.

    python benchmarks/progress.py --mpiexec PATH [--mpiexec PATH ...] [--place lab] [--launches 3]

Each mpiexec is one library; SETTINGS are what it can be told. A launch measures one setting at one
size: ours, MPI_Iallreduce and MPI_Allreduce_init, polled and by a progress thread, beside matrix
products of a fixed time. Every launch is a line of launches.jsonl in --folder; what is there is
not measured again, so that a run that was stopped goes on. Then README.md and the figures beside
it are made from all lines; --page makes only these.

Of the repetitions of each of work alone, all-reduce alone and both together, the quietest quarter
is taken (those that took least) and of these the median: the machine does other work too. The
all-reduce alone is the least of the cases of a launch. The tables have medians over launches, with
the lowest and highest.
"""

import argparse
import json
import os
import random
import sys
import tempfile
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

import numpy as np
import progress_page
from lab_runs import command_python

from mpisgd.mpi import mpiexec
from mpisgd.mpi.lab import Lab
from mpisgd.store.reader import read
from mpisgd.values.errors import UsageError
from mpisgd.values.units import parse_size

FOLDER = Path(__file__).resolve().parent.parent / "results" / "progress"
ALGORITHMS = ("halving-doubling", "mpi-nonblocking", "mpi-persistent")
SINGLE = {"MPI4PY_RC_THREAD_LEVEL": "single"}
SETTINGS: dict[str, dict[str, dict[str, str]]] = {
    "mpich": {"default": {}, "single": SINGLE, "async": {"MPIR_CVAR_ASYNC_PROGRESS": "1"}},
    "impi": {"default": {}, "single": SINGLE, "async": {"I_MPI_ASYNC_PROGRESS": "1"}},
    "openmpi": {"default": {}, "single": SINGLE},
}
IN_LAB = {"openmpi": {"async": {"OMPI_MCA_btl_tcp_progress_thread": "1"}}}
# Size -> how long the work is, with room for all looks, and least repetitions.
WORK = {
    "shared": {"64K": ("1ms", 12), "1M": ("2ms", 12), "16M": ("25ms", 6)},
    "lab": {"64K": ("8ms", 12), "512K": ("50ms", 6)},
}
LOOKS = "0,1,4,16,64"
PARTS = ("compute", "communication", "together")
QUIET = 0.25  # of the repetitions
LIMIT_S = 120  # of a launch: one that takes longer is recorded as that
Line = dict[str, Any]


def main() -> int:
    options = _options().parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / "launches.jsonl"
    try:
        if not options.page:
            _measure(options, path)
    except UsageError as mistake:
        print(f"progress: error: {mistake}", file=sys.stderr)
        return 2
    progress_page.write(options.folder, lines_of(path), str(__doc__))
    return 0


def lines_of(path: Path) -> list[Line]:
    """The launches so far; a last line that was cut off is taken away."""
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        os.truncate(path, len(whole))
    return [json.loads(text) for text in whole.splitlines()]


def quiet(seconds: np.ndarray) -> np.ndarray:
    """Which repetitions of samples [repetition, rank] are the quietest quarter."""
    longest = seconds.max(axis=1)
    return np.argsort(longest, kind="stable")[: max(1, round(QUIET * len(longest)))]


def summary(samples: dict[str, np.ndarray]) -> dict[str, float]:
    """Seconds of the parts in their quietest quarter, of the longest rank, and what follows."""
    found = {
        part: float(np.median(samples[part][quiet(samples[part])].max(axis=1))) for part in PARTS
    }
    together = quiet(samples["together"])
    exposed = float(np.median(samples["exposed"][together].max(axis=1)))
    alone = found["communication"]
    return {
        **{f"{part}_s": seconds for part, seconds in found.items()},
        "exposed_s": exposed,
        "hidden": 1 - exposed / alone,
        "dilation": (found["together"] - exposed) / found["compute"],
        "repetitions": len(samples["together"]),
    }


def _options() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    made.add_argument("--mpiexec", action="append", help="may be given several times")
    made.add_argument("--place", choices=tuple(WORK), default="shared", help="where 2 ranks are: "
                      "in shared memory, or on 2 hosts of a lab at --rate")  # fmt: skip
    made.add_argument("--rate", default="200mbit")
    made.add_argument("--launches", type=int, default=3)
    made.add_argument("--sizes", help="some of them, as 64K,1M")
    made.add_argument("--settings", default="default,async", help="some of default, async, and "
                      "single (the thread level)")  # fmt: skip
    made.add_argument("--folder", type=Path, default=FOLDER)
    made.add_argument("--page", action="store_true", help="measure nothing")
    return made


def _measure(options: argparse.Namespace, path: Path) -> None:
    """All that is not in the file yet; a launch of every setting before the next of any."""
    works = WORK[options.place]
    sizes = options.sizes.split(",") if options.sizes else list(works)
    if unknown := set(sizes) - works.keys():
        raise UsageError("--sizes", options.sizes, f"some of {', '.join(works)}: not {unknown}")
    found = [mpiexec.find(name) for name in options.mpiexec or [None]]
    done = {_key(line) for line in lines_of(path)}
    with path.open("a", encoding="utf-8") as file:
        for launch in range(options.launches):
            cases = [(each, setting, size) for each in found
                     for setting in _settings(each.kind, options.place)
                     if setting in options.settings.split(",")
                     for size in sizes]  # fmt: skip
            for launcher, setting, size in random.Random(launch).sample(cases, len(cases)):
                line = {"place": options.place, "kind": launcher.kind, "setting": setting,
                        "bytes": parse_size(size), "launch": launch}  # fmt: skip
                if _key(line) not in done:
                    line |= _launch(launcher, line, works[size], options.rate)
                    file.write(json.dumps(line) + "\n")
                    file.flush()
                    print(*_key(line), line.get("failure", ""), file=sys.stderr, flush=True)


def _key(line: Line) -> tuple[Any, ...]:
    return tuple(line[key] for key in ("place", "kind", "setting", "bytes", "launch"))


def _settings(kind: str, place: str) -> dict[str, dict[str, str]]:
    known = SETTINGS.get(kind, {"default": {}})
    return known | IN_LAB.get(kind, {}) if place == "lab" else known


def _launch(launcher: mpiexec.Launcher, line: Line, amount: tuple[str, int], rate: str) -> Line:
    """One launch's line: its circumstances, and a row for each algorithm and way of progress."""
    variables = _settings(launcher.kind, line["place"])[line["setting"]]
    # A thread of ours needs threads; beside Intel's own progress threads it ends in a fault there.
    progress = "poll" if line["setting"] != "default" else "poll,thread"
    load = os.getloadavg()[0]
    work, repetitions = amount
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "overlap.h5"
        words = [
            command_python(launcher.path), "-m", "mpisgd", "bench", "overlap",
            "--algorithms", ",".join(ALGORITHMS), "--sizes", str(line["bytes"]),
            "--work-time", work, "--polls", LOOKS, "--progress", progress,
            "--seed", str(line["launch"]), "--min-repetitions", str(repetitions),
            "--max-repetitions", "400", "--time-budget", "0.4s", "--output", str(output),
        ]  # fmt: skip
        try:
            if line["place"] == "lab":
                with Lab(2, rate, mpiexec=launcher.path) as lab:
                    done = lab.run(words, 2, LIMIT_S, environment=variables)
            else:
                done = launcher.run(2, words, LIMIT_S, environment=variables)
        except TimeoutExpired:
            return {"load_1min": load, "failure": f"took more than {LIMIT_S} s"}
        if done.returncode:
            said = " ".join("".join(filter(str.isprintable, done.stderr)).split())[-200:]
            return {"load_1min": load, "failure": f"exit code {done.returncode}: {said}"}
        with read(output) as run:
            environment = {key: run.environment[key] for key in ("mpi_library", "thread_level")}
            rows = _rows(run.cases)
    return {"load_1min": load, "work": work, "variables": variables, **environment, "rows": rows}


def _rows(cases: Any) -> list[Line]:
    """One a case of `bench overlap`: its four parts belong together."""
    parts: dict[tuple[str, str, int], dict[str, np.ndarray]] = {}
    for case in cases:
        looks = case.row["polls_asked"] if case.row["progress"] == "poll" else 0
        key = case.row["algorithm"], case.row["progress"], looks
        parts.setdefault(key, {})[case.row["part"]] = case.seconds
    return [
        {"algorithm": name, "progress": progress, "looks": looks, **summary(samples)}
        for (name, progress, looks), samples in sorted(parts.items())
    ]


if __name__ == "__main__":
    sys.exit(main())
