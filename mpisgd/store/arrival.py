"""When ranks came to the averages of a recorded run: from the columns of /steps.

A rank comes to an average when it has done the gradient of the step, its looks, and its own update
where parameters are averaged. Ranks count time from when they began together: what their clocks
have drifted apart since is in it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mpisgd.algorithms.policies import POLICIES
from mpisgd.values.errors import UsageError, named

if TYPE_CHECKING:
    from mpisgd.store.reader import Run

OPTION = "--arrival"


def late_s(run: "Run") -> np.ndarray:
    """Seconds [average, rank] after the first that each rank came to each average; of a run
    without averages among all ranks, or of one rank, no rows."""
    config, algorithm = run.config, run.config.get("algorithm")
    if (
        "start_s" not in run.steps
        or run.kind != "train"
        or run.ranks < 2
        or algorithm in POLICIES
        or algorithm == "stale"
        or "partner" in run.steps  # averages of pairs, who come when they come
    ):
        return np.zeros((0, run.ranks))
    come = _computed(run)
    if config.get("tau"):
        gradients = np.arange(len(come)) < (config.get("switch") or 0)
        come = np.where(gradients[:, None], come, come + run.steps["update_s"])
        come = come[gradients | _begins(config, len(come))]
    come = come[np.isfinite(come).all(axis=1)]
    return come - come.min(axis=1, keepdims=True)


def late_s_of_pairs(run: "Run") -> np.ndarray:
    """Seconds [average, rank] after the first of the two that each rank came to its averages of
    pairs; NaN of one that met nobody. Of a run without such averages no rows."""
    if "start_s" not in run.steps or "partner" not in run.steps:
        return np.zeros((0, run.ranks))
    delay, tau = (run.config.get(key) or 0 for key in ("delay", "tau"))
    come = _computed(run) + run.steps["update_s"]
    if delay == tau:  # it meets when it has merged
        come = come + run.steps["wait_s"]
    partner = run.steps["partner"][delay:]  # in the row of the merge
    come = come[: len(partner)]
    met = (partner >= 0) & (partner < run.ranks)
    other = np.where(met, partner, np.arange(run.ranks))
    late = come - np.minimum(come, np.take_along_axis(come, other, axis=1))
    return np.where(met, late, np.nan)[met.any(axis=1)]


def _computed(run: "Run") -> np.ndarray:
    """When each rank has done the gradient of each step, and its looks [step, rank]."""
    return run.steps["start_s"] + run.steps["compute_s"] + run.steps["poll_s"]


def _begins(config: Mapping[str, Any], steps: int) -> np.ndarray:
    """Whether an average of parameters, or of a fragment of them, begins after each step."""
    tau, parts = config["tau"], config.get("fragments") or 1
    after = np.arange(1, steps + 1) - (config.get("switch") or 0)
    begins = np.zeros(steps, bool)
    for part in range(parts):
        phase = after - part * tau // parts
        begins |= (phase > 0) & (phase % tau == 0)
    return begins


@named(OPTION)
def skews(path: str, ranks: int | None = None) -> np.ndarray:
    """`late_s` of a file. UsageError if that is no run with averages, or not of so many `ranks`."""
    from mpisgd.store.reader import read

    with read(path) as run:
        if run.kind != "train":
            raise UsageError(OPTION, path, "a result of mpisgd train")
        found = late_s(run)
        if not len(found):
            raise UsageError(OPTION, path, "a run whose ranks average: it has no averages")
        if ranks is not None and run.ranks != ranks:
            raise UsageError(OPTION, path, f"is of {run.ranks} ranks, and these are {ranks}")
    return found


def order(late: np.ndarray) -> list[int]:
    """The ranks, by how late they usually come: who comes first first."""
    return np.argsort(np.median(late, axis=0), kind="stable").tolist()
