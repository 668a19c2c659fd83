"""Kill training runs at random moments, resume them, and see whether anything is lost.

    python benchmarks/kills.py --trials 200 --output FILE.json [--mpiexec OTHER/mpiexec ...]

Each trial draws an algorithm, a world (virtual ranks in one process, or MPI), a victim (a rank,
the process that writes results, mpiexec) and a moment: at random, or while a checkpoint is being
written. The victim gets SIGKILL, sometimes twice in a row of resumptions. Then it is checked that

- all its processes are gone within --patience seconds, and mpiexec has not said 0;
- the result file can be read, and has every step up to the newest checkpoint, on every rank;
- `--resume auto` goes on, and ends with a complete file: every step once;
- for algorithms whose numbers do not depend on time: with the losses of a run that nobody killed,
  bit for bit (asynchronous ones: in the virtual world).

The seed fixes all draws; the moments depend on the machine as well.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpisgd.mpi import mpiexec
from mpisgd.mpi.mpiexec import Job, Launcher, own
from mpisgd.store.reader import read
from mpisgd.values import tables
from mpisgd.values.errors import UsageError

STEPS, EVERY, RANKS = 60, 5, 3
COMMON = (
    f"train --data digits --data-samples 96 --hidden 16 --batch 8 --steps {STEPS} "
    f"--checkpoint-every {EVERY} --evaluate-every 20 --deadline 10s"
)
# So that a run lasts long enough to be hit.
MPI_STEP = "--step-time 20ms"
VIRTUAL = f"--virtual {RANKS} --steps {10 * STEPS} --checkpoint-every {5 * EVERY}"
AVERAGING = {
    "minibatch": "--algorithm minibatch --ema 0.9",
    "minibatch-overlap": "--algorithm minibatch-overlap --bucket 1K",
    "local": "--algorithm local --tau 3",
    "dasgd": "--algorithm dasgd --tau 4 --delay 2",
    "dasgd-tau": "--algorithm dasgd --tau 4 --delay 4 --merge delta",
    "gossip": "--algorithm gossip --tau 3 --delay 2",
    "stale": "--algorithm stale --staleness 3",
}
SERVED = {
    "async": "--algorithm async",
    "backup": "--algorithm backup --backups 1",
    "softsync": "--algorithm softsync --group 1",
    "timeout": "--algorithm timeout --timeout 50ms",
}
COLUMNS = (
    "world", "algorithm", "trials", "killed", "gone", "readable", "kept", "resumed", "equal",
    tables.Column("slowest_end_s", ".1f"),
)  # fmt: skip


class Trial(NamedTuple):
    """What is drawn."""

    number: int
    world: str
    algorithm: str
    victim: str
    moment: str
    share: float  # of an undisturbed run's time, when the moment is random
    kills: int


def main() -> int:
    options = _options()
    worlds: dict[str, Launcher | None] = {"virtual": None}
    if not options.virtual_only:
        worlds["mpi"] = mpiexec.find()
    worlds |= {f"mpi {i}": mpiexec.find(path) for i, path in enumerate(options.mpiexec, 1)}
    names = {w: w if found is None else found.kind for w, found in worlds.items()}
    draws = random.Random(options.seed)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), worlds, options.patience)
        for number in range(options.trials):
            trial = _draw(draws, number, list(worlds))
            row = bench.run(trial)
            rows.append(trial._asdict() | row | {"world": names[trial.world]})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(tables.render(COLUMNS, _summary(rows), "table"))
    bad = [row for row in rows if row["fault"]]
    print(f"{len(rows)} trials, {len(bad)} with a fault")
    if options.output:
        found = {"method": __doc__, "options": vars(options), "summary": _summary(rows)}
        text = json.dumps(found | {"trials": rows}, indent=1) + "\n"
        Path(options.output).write_text(text, encoding="utf-8")
    return bool(bad)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--patience", type=float, default=40.0, help="seconds from kill to end")
    parser.add_argument("--mpiexec", action="append", default=[], help="of another MPI as well")
    parser.add_argument("--virtual-only", action="store_true", help="no MPI")
    parser.add_argument("--output")
    return parser.parse_args()


def _draw(draws: random.Random, number: int, worlds: list[str]) -> Trial:
    world = draws.choice(worlds)
    victims = ["virtual"] if world == "virtual" else ["rank", "rank", "rank 0", "writer", "mpiexec"]
    return Trial(
        number, world, draws.choice([*AVERAGING, *SERVED]), draws.choice(victims),
        draws.choice(["any", "any", "writing"]), draws.random(), draws.choice([1, 1, 2]),
    )  # fmt: skip


class Bench:
    """Runs trials in `folder`."""

    def __init__(self, folder: Path, worlds: dict[str, Launcher | None], patience: float):
        self.folder, self.worlds, self.patience = folder, worlds, patience
        self._whole: dict[tuple[str, str], tuple[float, dict[str, Any]]] = {}

    def run(self, trial: Trial) -> dict[str, Any]:
        """What came out; `fault` says what went wrong, or is empty."""
        took_s, expected = self._undisturbed(trial)
        output = self.folder / f"{trial.number}.h5"
        words = [*self._words(trial), "--output", str(output), "--resume", "auto"]
        row: dict[str, Any] = {"killed": 0, "end_s": 0.0, "exit_codes": [], "fault": ""}
        for _ in range(trial.kills):
            end_s, code, hit = self._killed(trial, words, output, trial.share * took_s)
            row["exit_codes"].append(code)
            row["killed"] += hit
            row["end_s"] = max(row["end_s"], end_s)
            if end_s > self.patience:
                return row | {"fault": "not all gone in time"}
            if hit and code == 0 and trial.victim != "mpiexec":
                return row | {"fault": "exit code 0"}
            if fault := _lost(output, trial.algorithm in AVERAGING):
                return row | {"fault": fault}
        with self._start(trial.world, words) as job:
            done = job.wait(120)
        row["exit_codes"].append(done.returncode)
        if done.returncode:
            return row | {"fault": f"not resumed: {done.stderr.strip().splitlines()[-1:]}"}
        try:
            found = _numbers(output)
        except (UsageError, AssertionError) as problem:
            return row | {"fault": f"file of the resumed run: {problem}"}
        exact = trial.world == "virtual" or trial.algorithm in AVERAGING
        if exact and not _equal(found, expected):
            return row | {"fault": "other numbers than undisturbed"}
        return row | {"exact": exact}

    def _undisturbed(self, trial: Trial) -> tuple[float, dict[str, Any]]:
        key = trial.world, trial.algorithm
        if key not in self._whole:
            output = self.folder / f"whole-{len(self._whole)}.h5"
            began = time.monotonic()
            with self._start(trial.world, [*self._words(trial), "--output", str(output)]) as job:
                done = job.wait(120)
            if done.returncode:
                raise SystemExit(f"{trial}: {done.stdout}{done.stderr}")
            self._whole[key] = time.monotonic() - began, _numbers(output)
        return self._whole[key]

    def _words(self, trial: Trial) -> list[str]:
        kind = (AVERAGING | SERVED)[trial.algorithm]
        world = VIRTUAL if trial.world == "virtual" else MPI_STEP
        return own(["mpisgd", *COMMON.split(), *kind.split(), *world.split()])

    def _start(self, world: str, words: list[str]) -> Job:
        found = self.worlds[world]
        if found is None:  # a job of one process
            return Job(words, os.environ)
        python = str(Path(found.path).parent / "python")
        return found.start(RANKS, [python if os.path.exists(python) else words[0], *words[1:]])

    def _killed(
        self, trial: Trial, words: list[str], output: Path, after_s: float
    ) -> tuple[float, int, bool]:
        """(seconds from the kill until all were gone, mpiexec's exit code, whether it was hit)."""
        writing = output.with_name(output.name + ".checkpoint.writing")
        hit = False
        with self._start(trial.world, words) as job:
            began = time.monotonic()
            while job.process.poll() is None:
                now = time.monotonic() - began
                if (now >= after_s) if trial.moment == "any" else writing.exists():
                    hit = _kill(job, trial.victim, random.Random(trial.number))
                    break
                time.sleep(0.001)
            killed = time.monotonic()
            while job.process.poll() is None or job.processes():
                if time.monotonic() - killed > self.patience:
                    break
                time.sleep(0.02)
            end_s = time.monotonic() - killed
        return end_s, job.process.returncode, hit


def _kill(job: Job, victim: str, draws: random.Random) -> bool:
    """SIGKILL to one process of the job; whether there was one."""
    if victim in ("mpiexec", "virtual"):
        os.kill(job.process.pid, signal.SIGKILL)
        return True
    processes = dict(_processes(job))
    wanted = [pid for pid, kind in processes.items() if _is(kind, victim)]
    if not wanted:
        return False
    with suppress(ProcessLookupError):
        os.kill(draws.choice(wanted), signal.SIGKILL)
        return True
    return False


def _is(kind: str, victim: str) -> bool:
    if victim == "writer":
        return kind == "writer"
    return kind != "writer" and victim in ("rank", kind)


def _processes(job: Job) -> Iterator[tuple[int, str]]:
    """(pid, "rank 0" or "writer" and so on) of what mpiexec has started."""
    for pid in job.processes():
        with suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            values = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            found = dict(pair.partition(b"=")[::2] for pair in values)
            rank = found.get(b"PMI_RANK", found.get(b"OMPI_COMM_WORLD_RANK"))
            if b"mpisgd.store.remote" in line:
                yield pid, "writer"
            elif b"mpisgd" in line and rank is not None:
                yield pid, f"rank {rank.decode()}"


def _lost(output: Path, same_steps: bool) -> str:
    """What is wrong with what the dead run has left; empty if nothing is. `same_steps`: the
    checkpoint's steps are those of all ranks."""
    from mpisgd.checkpoint.place import newest

    found = newest(output.with_name(output.name + ".checkpoint")).checkpoint
    if found is None:
        return ""
    try:
        with read(output) as run:
            steps = run.reported.tolist()
    except UsageError as problem:
        return f"unreadable: {problem}"
    step = found.meta["step"] if same_steps else 0
    return "" if min(steps) >= step else f"rows up to {steps}, checkpoint {step}"


def _numbers(output: Path) -> dict[str, Any]:
    """The losses of all steps and evaluations of a complete run."""
    with read(output) as run:
        assert run.complete, "not complete"
        losses = np.asarray(run.steps["loss"])
        return {"steps": losses, "evaluation": np.asarray(run.evaluation["loss"])}


def _equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(np.array_equal(one[key], other[key], equal_nan=True) for key in one)


def _summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    groups = sorted({(row["world"], row["algorithm"]) for row in rows})
    summary = []
    for world, algorithm in groups:
        own_rows = [r for r in rows if (r["world"], r["algorithm"]) == (world, algorithm)]
        faults = Counter(str(row["fault"]).split(":")[0] for row in own_rows)
        fine = [row for row in own_rows if not row["fault"]]
        count = len(own_rows)
        summary.append({
            "world": world, "algorithm": algorithm, "trials": count,
            "killed": sum(row["killed"] for row in own_rows),
            "gone": count - faults["not all gone in time"],
            "readable": count - faults["unreadable"],
            "kept": count - sum(n for text, n in faults.items() if text.startswith("rows up to")),
            "resumed": len(fine), "equal": sum(row.get("exact", False) for row in fine),
            "slowest_end_s": max(row["end_s"] for row in own_rows),
        })  # fmt: skip
    return summary


if __name__ == "__main__":
    sys.exit(main())
