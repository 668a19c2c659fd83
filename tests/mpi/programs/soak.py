"""`soak.py plans COUNT [leak]` or `soak.py train STEPS`: what grows as long as a job goes on.

Rank 0 prints JSON: for each case how much memory (MiB), how many file handles, threads, Python
objects and communicators there are more at the end than after the first fifth.
"""

import gc
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from allreduce import plan
from allreduce.algorithms import build
from allreduce.plan import Plan
from mpisgd.drivers import mpi
from mpisgd.drivers.job import Job
from mpisgd.experiment.building import build_worker, load, resolve_for
from mpisgd.experiment.experiment import Experiment

COMM = MPI.COMM_WORLD
COMMON = {
    "model": "mlp", "hidden": "16,8", "data": "digits", "batch": 2, "evaluate-every": 0,
    "straggler": "shifted:0.5",
}  # fmt: skip
TRAININGS: dict[str, dict[str, Any]] = {
    "minibatch": {"algorithm": "minibatch"},
    "minibatch-overlap": {"algorithm": "minibatch-overlap", "bucket": 1},
    "overlap-thread": {"algorithm": "minibatch-overlap", "bucket": 1, "progress": "thread"},
    "local": {"algorithm": "local", "tau": 4, "allreduce": "ring"},
    "dasgd": {"algorithm": "dasgd", "tau": 4, "delay": 3},
    "stale": {"algorithm": "stale", "staleness": 3, "ramp": 4},
}


def held() -> dict[str, float]:
    """What this process has."""
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "mebibytes": resident * os.sysconf("SC_PAGESIZE") / 2**20,
        "handles": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "objects": len(gc.get_objects()),
    }


def communicators() -> int:
    """A number that the next communicator gets: the same as before if none was left."""
    copy = COMM.Dup()
    number = copy.py2f()
    copy.Free()
    return number


def more(after: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    return {key: after[key] - before[key] for key in after}


def plans(count: int, leak: bool) -> dict[str, float]:
    """Plans that are created, used once and closed; `leak`: not closed."""
    schedules = [build(name, COMM.size) for name in ("tree", "ring", "butterfly")]
    kept, before, first = [], held(), communicators()
    for number in range(count):
        if number == count // 5:
            before = held()
        one = Plan(COMM, schedules[number % 3], np.ones(64), chunks=1 + number % 2)
        one.start()
        assert one.wait()[0] == COMM.size
        if leak:
            kept.append(one)
        else:
            one.close()
    grown = more(held(), before) | {"communicators": communicators() - first}
    assert not plan._in_flight
    return grown


def train(options: dict[str, Any], steps: int) -> dict[str, float]:
    """One training run of `steps` steps."""
    seen: list[dict[str, float]] = []

    def watched(experiment: Any, dataset: Any, site: Any, *more: Any) -> Any:
        begin = site.begin_step

        def begin_step(step: int) -> None:
            if step in (steps // 5, steps):
                seen.append(held())
            begin(step)

        site.begin_step = begin_step
        return build_worker(experiment, dataset, site, *more)

    mpi.build_worker = watched
    experiment = Experiment.read(COMMON | options | {"steps": steps})
    dataset = load(experiment)
    first = communicators()
    job = Job(resolve_for(experiment, dataset, COMM.size), dataset)
    assert mpi.train(COMM, job).code == 0
    assert not plan._in_flight
    return more(seen[1], seen[0]) | {"communicators": communicators() - first}


def main() -> None:
    what, count = sys.argv[1], int(sys.argv[2])
    cases: dict[str, Callable[[], dict[str, float]]] = {
        "plans": lambda: plans(count, "leak" in sys.argv)
    }
    if what == "train":
        cases = {
            name: lambda options=options: train(options, count)  # type: ignore[misc]
            for name, options in TRAININGS.items()
        }
    for name, case in cases.items():
        grown = COMM.gather(case())
        if grown is not None:
            worst = {key: max(each[key] for each in grown) for key in grown[0]}
            print("GROWN", json.dumps({"case": name, **worst}), flush=True)


if __name__ == "__main__":
    main()
