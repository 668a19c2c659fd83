"""Step and all-reduce seconds from what was measured: a result file, or a calibration.

In a run of mini-batch SGD every step exposes one whole all-reduce. The last rank to start it waits
for nothing but communication, so the all-reduce takes what the rank that waits least has waited.
"""

from typing import NamedTuple

from allreduce.algorithms import build
from allreduce.errors import AllreduceError
from allreduce.network import network
from allreduce.simulate import simulate
from mpisgd import step_times
from mpisgd.errors import UsageError

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
        steps = run.steps
        busy = steps["compute_s"] + steps["update_s"]
        exposed = steps["wait_s"] + steps["poll_s"]
        whole = np.isfinite(busy).all(axis=1) & np.isfinite(exposed).all(axis=1)
        if not whole.any():
            raise UsageError(PLACE, path, "holds no step that every rank has reported")
        return Found(
            float(np.median(busy[whole].max(axis=1))),
            float(np.median(exposed[whole].min(axis=1))),
            run.ranks,
            int(run.config["batch"]),
            str(run.config["allreduce"]),
        )


def from_calibration(path: str, ranks: int, batch: int, nbytes: int, allreduce: str) -> Found:
    """From a file of `mpisgd calibrate`: its step at `batch`, the schedule on its network."""
    try:
        links = network(path)
        ends = simulate(build(allreduce, ranks, links.nodes(ranks)), nbytes, links, itemsize=4)
    except AllreduceError as error:
        raise UsageError(PLACE, path, str(error)) from None
    step_s = step_times.seconds(path, batch)
    return Found(step_s, float(ends.max()), ranks, batch, allreduce)
