"""Seconds from what was measured, a result file or a calibration: of steps and all-reduces, and of
the gradients of workers.

In a run of mini-batch SGD every step exposes one whole all-reduce. It lasts from when the last rank
has started it until the last rank has it, which the averages in flight (/events) tell.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from allreduce.algorithms import build
from allreduce.errors import AllreduceError
from allreduce.simulate import simulate
from mpisgd.experiment import step_times
from mpisgd.predict import networks
from mpisgd.store.schema import LANES
from mpisgd.values.errors import UsageError, named

PLACE = "--from"
LEAST_KNOWN = 0.05  # of the gradients may have been given up: they were the slow ones
FEWEST = 10  # gradients of a worker


class Found(NamedTuple):
    """Seconds of a step's computation and of an all-reduce, and for how many ranks."""

    step_s: float
    allreduce_s: float
    ranks: int
    batch: int
    allreduce: str
    step_is: str = "measured"  # or simulated: of a virtual clock
    allreduce_is: str = "measured"
    settings: tuple[str, ...] = ()  # options of `train` that the times belong to


@named(PLACE)
def from_run(path: str) -> Found:
    """From a result file of `mpisgd train --algorithm minibatch`. UsageError for any other."""
    import numpy as np

    from mpisgd.store.reader import read

    with read(path) as run:
        algorithm = run.config.get("algorithm")
        if run.kind != "train" or algorithm != "minibatch" or run.ranks < 2:
            allowed = "a run of minibatch on 2 ranks or more"
            raise UsageError(PLACE, path, f"{_is(run)}; needed: {allowed}")
        if not {"compute_s", "update_s"} <= set(run.steps):
            raise UsageError(PLACE, path, "holds no step that every rank has reported")
        busy = run.steps["compute_s"] + run.steps["update_s"]
        busy = busy[np.isfinite(busy).all(axis=1)]
        durations = _durations(run.events)
        if not {"batch", "allreduce"} <= set(run.config):
            raise UsageError(PLACE, path, "does not say with which batch and all-reduce it was run")
        if not len(busy) or not durations:
            raise UsageError(PLACE, path, "holds no step that every rank has reported")
        if min(durations) < 0:
            allowed = "needed: averages that end after they began; its recorder erred, run it anew"
            raise UsageError(PLACE, path, allowed)
        kind = "simulated" if run.virtual else "measured"
        return Found(
            float(np.median(busy.max(axis=1))),
            float(np.median(durations)),
            run.ranks,
            int(run.config["batch"]),
            str(run.config["allreduce"]),
            kind,
            kind,
            _settings(run.config, run.virtual, run.ranks),
        )


def _settings(config: Mapping[str, Any], virtual: bool, ranks: int) -> tuple[str, ...]:
    """The options that gave the run its step's seconds and, if virtual, its clock and network."""
    network, source = config.get("network"), config.get("step_time_from")
    given = source if source is not None else config.get("step_time_s")
    words: tuple[str, ...] = ("--virtual", str(ranks)) if virtual else ()
    if virtual and config.get("price_as") is not None:
        words += ("--price-as", str(config["price_as"]))
    if virtual and network is not None:
        words += ("--network", str(network))
    if given is not None and not (virtual and given == network):
        words += ("--step-time", f"{given!r}s" if isinstance(given, float) else str(given))
    return words


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
    return [ends[step] - begins[step] for step in ends]


@named(PLACE)
def from_calibration(path: str, ranks: int, batch: int, nbytes: int, allreduce: str) -> Found:
    """From a file of `mpisgd calibrate`: its step at `batch`, the schedule on its network."""
    links = networks.find(path, PLACE)
    try:
        ends = simulate(build(allreduce, ranks, links.nodes(ranks)), nbytes, links, itemsize=4)
    except AllreduceError as error:
        raise UsageError(PLACE, path, str(error)) from None
    step_s = step_times.seconds(path, batch)
    kind = step_times.outside(path, batch) or "measured"
    return Found(step_s, float(ends.max()), ranks, batch, allreduce, kind, "simulated")


@named(PLACE)
def gradient_seconds(path: str) -> list[Any]:
    """Seconds from a worker's fresh parameters to its gradient's arrival, an array a worker, from
    the result file of a run with parameter servers: messages and queues count, waiting does not.

    With several shards from the last answer to the last arrival; first steps are left out.
    UsageError for a file that does not tell.
    """
    from mpisgd.store.reader import read

    with read(path) as run:
        names = ("worker", "step", "samples", "arrived_s", "waited_s")
        columns = run.updates if run.kind == "train" else {}
        if not set(names) <= set(columns):
            raise UsageError(PLACE, path, f"{_is(run)}; needed: a run with parameter servers")
        rows = zip(*(columns[name].tolist() for name in names), strict=True)
        arrived: dict[tuple[int, int], float] = {}
        answered: dict[tuple[int, int], float] = {}
        given_up = set()
        for worker, step, samples, arrived_s, waited_s in rows:
            key = worker, step
            arrived[key] = max(arrived_s, arrived.get(key, arrived_s))
            answered[key] = max(arrived_s + waited_s, answered.get(key, arrived_s))
            if samples <= 0:
                given_up.add(key)
    return _pools(path, arrived, answered, given_up)


def cautions(path: str, machines: Sequence[int]) -> list[str]:
    """Why a measured run's seconds may not be those of `machines` machines. Raises DamagedFile."""
    from mpisgd.store.reader import read

    with read(path) as run:
        workers, found = len(set(run.updates["worker"].tolist())), []
        crowd = run.environment.get("ranks_per_core")
        if isinstance(crowd, int | float) and crowd > 1:
            found.append(f"measured with {crowd:g} ranks a core: workers slowed each other down")
        if run.restarts:
            found.append("measured in a run that was resumed: its parts may differ")
        if not run.complete:
            found.append("measured in a run that was not completed")
        others = [count for count in machines if count != workers]
        if others:
            found.append(f"measured with {workers} workers; of {', '.join(map(str, others))} "
                         "machines the servers' queues would be others")  # fmt: skip
        return found


def _is(run: Any) -> str:
    """What a result file holds, for messages."""
    if run.kind != "train":
        return f"holds benchmarks on {run.ranks} ranks, no training run"
    return f"a run of {run.config.get('algorithm')} on {run.ranks} ranks"


def _pools(
    path: str,
    arrived: dict[tuple[int, int], float],
    answered: dict[tuple[int, int], float],
    given_up: set[tuple[int, int]],
) -> list[Any]:
    import numpy as np

    if len(given_up) > LEAST_KNOWN * len(arrived):
        allowed = "most slow gradients were given up; measure with --stale finish"
        raise UsageError(PLACE, path, allowed)
    pools: dict[int, list[float]] = {}
    for worker, step in sorted(arrived.keys() - given_up):
        if (worker, step - 1) in answered:
            seconds = arrived[worker, step] - answered[worker, step - 1]
            pools.setdefault(worker, []).append(max(0.0, seconds))
    if not pools or min(map(len, pools.values())) < FEWEST:
        raise UsageError(PLACE, path, f"needs {FEWEST} gradients of each worker, or more")
    return [np.array(pools[worker]) for worker in sorted(pools)]
