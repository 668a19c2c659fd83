"""Step and all-reduce seconds from what was measured: a result file, or a calibration.

In a run of mini-batch SGD every step exposes one whole all-reduce. It lasts from when the last rank
has started it until the last rank has it, which the averages in flight (/events) tell.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from allreduce.algorithms import build
from allreduce.errors import AllreduceError
from allreduce.network import network
from allreduce.simulate import simulate
from mpisgd import step_times
from mpisgd.errors import UsageError
from mpisgd.store.schema import LANES

PLACE = "--from"


class Found(NamedTuple):
    """Seconds of a step's computation and of an all-reduce, and for how many ranks."""

    step_s: float
    allreduce_s: float
    ranks: int
    batch: int
    allreduce: str


def from_run(path: str) -> Found:
    """From a result file of `mpisgd train --algorithm minibatch`. UsageError for any other."""
    import numpy as np

    from mpisgd.store.reader import read

    with read(path) as run:
        algorithm = run.config.get("algorithm")
        if run.kind != "train" or algorithm != "minibatch" or run.ranks < 2:
            what = f"{run.kind} of {algorithm} on {run.ranks} ranks"
            raise UsageError(PLACE, path, f"a run of minibatch on 2 ranks or more, not a {what}")
        busy = run.steps["compute_s"] + run.steps["update_s"]
        busy = busy[np.isfinite(busy).all(axis=1)]
        durations = _durations(run.events)
        if not len(busy) or not durations:
            raise UsageError(PLACE, path, "holds no step that every rank has reported")
        return Found(
            float(np.median(busy.max(axis=1))),
            float(np.median(durations)),
            run.ranks,
            int(run.config["batch"]),
            str(run.config["allreduce"]),
        )


def _durations(events: Mapping[str, Any]) -> list[float]:
    """Seconds of each step's average: its last end minus its last start."""
    if "lane" not in events:
        return []
    begins: dict[int, float] = {}
    ends: dict[int, float] = {}
    columns = (events[key].tolist() for key in ("lane", "step", "start_s", "end_s"))
    for lane, step, start_s, end_s in zip(*columns, strict=True):
        if lane == LANES.index("flight"):
            begins[step] = max(start_s, begins.get(step, start_s))
            ends[step] = max(end_s, ends.get(step, end_s))
    return [max(0.0, ends[step] - begins[step]) for step in ends]


def from_calibration(path: str, ranks: int, batch: int, nbytes: int, allreduce: str) -> Found:
    """From a file of `mpisgd calibrate`: its step at `batch`, the schedule on its network."""
    try:
        links = network(path)
        ends = simulate(build(allreduce, ranks, links.nodes(ranks)), nbytes, links, itemsize=4)
    except AllreduceError as error:
        raise UsageError(PLACE, path, str(error)) from None
    step_s = step_times.seconds(path, batch)
    return Found(step_s, float(ends.max()), ranks, batch, allreduce)
