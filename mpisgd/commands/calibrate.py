"""`mpisgd calibrate`: measure a network and a step, into a file for simulate, predict, --virtual.

Point to point only: nothing here runs an all-reduce. Latency and bandwidth come from half round
trips between rank 0 and the first rank of another host, and the first of its own host; overhead is
the least that the call that starts a send takes, as one that is interrupted tells of other
programs; latency is the rest, so that latency + 2 overheads are a small message's measured time; a
sum is NumPy's; a look is a test of a message that does
not come.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from allreduce.measure import gather, median_interval
from allreduce.network import Network
from allreduce.point_to_point import (
    eager_limit,
    fan_out,
    look_seconds,
    ping_pong,
)
from mpisgd.experiment.arguments import add_arguments as add_options
from mpisgd.experiment.arguments import from_arguments
from mpisgd.experiment.experiment import Experiment
from mpisgd.models import HIDDEN
from mpisgd.mpi.lab import BURST
from mpisgd.predict import calibration
from mpisgd.store.lock import held_together
from mpisgd.store.target import check_not_read, check_target
from mpisgd.values import files, progress, tables
from mpisgd.values.errors import UsageError
from mpisgd.values.options import whole, wholes

SMALL, LARGE = 4, 4 << 20  # bytes of the messages that give latency and bandwidth
SUM_BYTES = 1 << 20
BURST_BYTES = 1 << 16  # of the messages that show what an idle wire lets pass at once
LEAST_BURST = 1500.0  # bytes, a frame: less is not told from noise
SHARED_BYTES = 1 << 20  # of two messages that one port sends at once
DOUBTFUL = 2.0  # an interval that ends above so many times its beginning
BETWEEN = 1.25  # of the time alone: later is shared, sooner is one after the other
COLUMNS = ("quantity", "value", "unit", "ci_low", "ci_high", "repetitions")
UNITS = {"latency_s": "s", "bandwidth_Bps": "B/s", "overhead_s": "s", "look_s": "s",
         "sum_s_per_B": "s/B", "eager_limit_B": "B", "node_latency_s": "s",
         "node_bandwidth_Bps": "B/s", "burst_B": "B"}  # fmt: skip
INSIDE = ("latency_s", "bandwidth_Bps")


class Measured(NamedTuple):
    """A median with its 95 % interval."""

    value: float
    low: float
    high: float
    repetitions: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Measured":
        return cls(statistics.median(samples), *median_interval(samples), len(samples))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `mpisgd calibrate`, and those of the step that it times."""
    add_options(parser)
    parser.add_argument("--output", metavar="FILE.toml", help="the network file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing --output")
    parser.add_argument("--repetitions", default="30", metavar="N", help="of each message [30]")
    parser.add_argument("--batches", default="8,16,32,64", help="local batches to time a step at")
    parser.add_argument("--blas-threads", metavar="N", help="BLAS threads of each rank [1]")
    parser.add_argument("--format", choices=tables.FORMATS, default="table", help="[table]")


def run(arguments: argparse.Namespace) -> int:
    """Measure on all ranks; rank 0 prints and writes."""
    from mpisgd.mpi import session

    repetitions = whole(6, 100000).read("--repetitions", arguments.repetitions)
    batches = wholes(1).read("--batches", arguments.batches)
    experiment = from_arguments(arguments)
    if arguments.output is not None:
        if not arguments.output.endswith(".toml"):
            raise UsageError("--output", arguments.output, "a name that ends in .toml")
        check_target(arguments.output, arguments.overwrite)
        told = (experiment.network, experiment.step_time_s, experiment.data_path)
        check_not_read(arguments.output, [str(file) for file in told if file is not None])
    comm = session.world()
    work = partial(_alone_there, comm, experiment, repetitions, batches, arguments)
    return session.guarded(comm, work)


def _alone_there(comm: Any, experiment: Experiment, *more: Any) -> int:
    """`_calibrate`, while nobody else writes --output."""
    with held_together(comm, more[-1].output, experiment.deadline_s):
        return _calibrate(comm, experiment, *more)


def _calibrate(
    comm: Any,
    experiment: Experiment,
    repetitions: int,
    batches: tuple[int, ...],
    arguments: argparse.Namespace,
) -> int:
    from mpisgd.mpi import cores

    rank, size = comm.Get_rank(), comm.Get_size()
    where = cores.places(comm, experiment.deadline_s)
    hosts = where.hosts
    if rank == 0 and where.crowded:
        print(f"mpisgd calibrate: {where.crowded}", file=sys.stderr)
    with closing(_bar(rank, len(batches))) as bar:
        found = _messages(comm, hosts, repetitions, experiment.deadline_s)
        bar.update()
        words = _habits(comm, hosts, found, repetitions, experiment.deadline_s)
        found |= _alone(comm, np.dtype(experiment.dtype), repetitions)
        bar.update()
        own = []
        for batch in batches:
            own.append(_step_seconds(experiment, batch, rank, size, repetitions))
            bar.update()
    slowest = gather(comm, np.array(own).ravel(), experiment.deadline_s).max(axis=0)
    if rank == 0:
        per_batch = slowest.reshape(len(batches), repetitions)
        steps = {b: Measured.of(row.tolist()) for b, row in zip(batches, per_batch, strict=True)}
        rows = [*_rows(found, steps), *({"quantity": k, "value": v} for k, v in words.items())]
        print(tables.render(COLUMNS, rows, arguments.format))
        _warn(found | {f"step at batch {batch}": each for batch, each in steps.items()})
        if arguments.output is not None:
            path = Path(arguments.output)
            links = _network(path.stem, found, hosts).with_(**words)
            text = links.toml() + _notes(found, steps, experiment, hosts)
            files.write(path, text.encode())
    return 0


def _bar(rank: int, batches: int) -> progress.Bar:
    """Of the parts: messages, what a rank does alone, a step at each batch."""
    return progress.Silent() if rank else progress.shown("calibrate", 2 + batches, unit="part")


def _messages(
    comm: Any, hosts: list[str], repetitions: int, deadline: float
) -> dict[str, Measured]:
    """What messages from rank 0 cost, to another host and inside its own; on rank 0."""
    found: dict[str, Measured] = {}
    near = next((r for r, host in enumerate(hosts) if r and host == hosts[0]), None)
    away = next((r for r, host in enumerate(hosts) if host != hosts[0]), None)
    pairs = [("", away), ("node_", near)] if away is not None else [("", near)]
    for prefix, other in pairs:
        if other is not None and comm.Get_rank() in (0, other):
            found |= _pair(comm, other, prefix, repetitions, deadline)
        gather(comm, [0.0], deadline)  # the others wait for the pair
    if away is not None and (known := os.environ.get(BURST, "")).isdecimal():
        found["burst_B"] = Measured(float(known), float(known), float(known), 1)  # of a lab's wires
    return found


def _pair(
    comm: Any, other: int, prefix: str, repetitions: int, deadline: float
) -> dict[str, Measured]:
    first = comm.Get_rank() == 0
    peer = other if first else 0
    small = ping_pong(comm, peer, first, SMALL, repetitions, deadline)
    large = ping_pong(comm, peer, first, LARGE, repetitions, deadline)
    limit = float(eager_limit(comm, peer, first, deadline))
    half = statistics.median(small.half_s)
    overhead = _overhead(small.call_s, half)
    latency = [max(0.0, seconds - 2 * overhead.value) for seconds in small.half_s]
    speeds = [(LARGE - SMALL) / max(seconds - half, 1e-9) for seconds in large.half_s]
    found = {
        f"{prefix}latency_s": Measured.of(latency),
        f"{prefix}bandwidth_Bps": Measured.of(speeds),
    }
    if not prefix:
        found |= {"overhead_s": overhead, "eager_limit_B": Measured(limit, limit, limit, 1)}
        middle = ping_pong(comm, peer, first, BURST_BYTES, repetitions, deadline)
        speed = found["bandwidth_Bps"].value
        saved = Measured.of([half * speed + BURST_BYTES - s * speed for s in middle.half_s])
        if saved.low > LEAST_BURST:
            found["burst_B"] = saved
    return found


def _overhead(calls: Sequence[float], half: float) -> Measured:
    """The shortest call: the rest of a longer one is the machine's other work. No more than half of
    the way, so that a latency is left."""
    usual = Measured.of([min(seconds, half / 2) for seconds in calls])
    least = min(*calls, half / 2)
    return Measured(least, least, usual.high, len(calls))


def _doubtful(found: Mapping[str, Measured]) -> list[str]:
    """The quantities whose intervals begin at 0 or span more than a factor of DOUBTFUL."""
    return [
        key
        for key, each in found.items()
        if (each.low <= 0 or each.high > DOUBTFUL * each.low) and key != "eager_limit_B"
    ]


def _warn(found: Mapping[str, Measured]) -> None:
    """Say which those are: whoever reads the file takes the medians."""
    for key in _doubtful(found):
        value, low, high, _ = found[key]
        print(
            f"mpisgd calibrate: warning: {key} is {calibration.known(low)}: {value:.3g}, 95 % "
            f"interval {low:.3g} to {high:.3g}; give it more --repetitions, or an idle machine",
            file=sys.stderr,
        )


def _habits(
    comm: Any, hosts: list[str], found: dict[str, Measured], repetitions: int, deadline: float
) -> dict[str, str]:
    """How messages between hosts get in each other's way; on rank 0, which alone has `found`."""
    words: dict[str, str] = {}
    rank, away = comm.Get_rank(), [r for r, host in enumerate(hosts) if host != hosts[0]]
    others = list({hosts[r]: r for r in reversed(away)}.values())[::-1][:2]
    if len(others) == 2 and rank in (0, *others):
        ends_of_both = fan_out(comm, 0, others, SHARED_BYTES, repetitions, deadline)
        if rank == 0:
            alone = SHARED_BYTES / found["bandwidth_Bps"].value
            first = statistics.median(min(ends) for ends in ends_of_both)
            words["sharing"] = "fair" if first > BETWEEN * alone else "fifo"
    gather(comm, [0.0], deadline)  # the others wait
    return words


def _alone(comm: Any, dtype: np.dtype, repetitions: int) -> dict[str, Measured]:
    """What a rank does by itself: adding what has come, and looking in vain."""
    count = SUM_BYTES // dtype.itemsize
    target, other = np.zeros(count, dtype), np.zeros(count, dtype)
    add = partial(np.add, target, other, out=target)
    add()
    sums = [_seconds(add) / SUM_BYTES for _ in range(repetitions)]
    return {
        "sum_s_per_B": Measured.of(sums),
        "look_s": Measured.of(look_seconds(comm, repetitions)),
    }


def _step_seconds(
    experiment: Experiment, batch: int, rank: int, size: int, repetitions: int
) -> list[float]:
    """Seconds of gradient and update at one local batch, nothing in flight."""
    from mpisgd.experiment.building import Place, build_worker, load, resolve_for

    dataset = load(experiment)
    chosen = resolve_for(replace(experiment, batch=batch), dataset, size)
    worker = build_worker(chosen, dataset, Place(rank, size))
    inputs, targets = dataset.batch(worker.sampler.indices(1, rank))

    def step() -> None:
        worker.model.gradient(worker.parameters, inputs, targets, worker.gradient, lambda s: None)
        worker.optimiser.step(worker.parameters.flat, worker.gradient.flat, 0.0)

    step()
    return [_seconds(step) for _ in range(repetitions)]


def _seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _network(name: str, found: dict[str, Measured], hosts: list[str]) -> Network:
    """The model with the medians; ranks of a host share its way out."""
    values: dict[str, Any] = {key: measured.value for key, measured in found.items()}
    per_node = max(hosts.count(host) for host in hosts)
    if len(set(hosts)) == 1:  # all that was measured is inside the host
        values |= {f"node_{key}": values[key] for key in INSIDE if key in values}
    if per_node > 1 and len(set(hosts)) > 1:
        values["uplink_Bps"] = values["bandwidth_Bps"]
    return Network(name, ranks_per_node=per_node, **values)


def _rows(found: dict[str, Measured], steps: dict[int, Measured]) -> list[dict[str, Any]]:
    rows = [
        {"quantity": key, "unit": UNITS[key], **_values(measured)}
        for key, measured in found.items()
    ]
    for batch, measured in steps.items():
        rows.append({"quantity": f"step at batch {batch}", "unit": "s", **_values(measured)})
        value, low, high, repetitions = measured
        speed = Measured(batch / value, batch / high, batch / low, repetitions)
        rows.append({"quantity": f"speed at batch {batch}", "unit": "samples/s", **_values(speed)})
    return rows


def _values(measured: Measured) -> dict[str, float]:
    value, low, high, repetitions = measured
    return {"value": value, "ci_low": low, "ci_high": high, "repetitions": repetitions}


def _notes(
    found: dict[str, Measured], steps: dict[int, Measured], experiment: Experiment, hosts: list[str]
) -> str:
    """The table [calibration]: intervals and step times, which a network file may carry."""
    lines = ["", "[calibration]", f'created_utc = "{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"']
    lines.append(f"ranks = {len(hosts)}")
    lines.append(f"hosts = {len(set(hosts))}")
    lines.append(f'model = "{experiment.model}"')
    lines.append(f"hidden = {list(experiment.hidden or HIDDEN.get(experiment.model, ()))}")
    lines.append(f'data = "{experiment.data}"')
    lines.append(f'dtype = "{experiment.dtype}"')
    lines.append(f"batches = {list(steps)}")
    lines.append(f"step_s = {[measured.value for measured in steps.values()]}")
    intervals = [[measured.low, measured.high] for measured in steps.values()]
    lines.append(f"{calibration.STEP}_interval = {intervals}")
    at = {str(batch): measured for batch, measured in steps.items()}
    doubtful = _doubtful(found) + ([calibration.STEP] if _doubtful(at) else [])
    if doubtful:
        why = f"their intervals begin at 0 or span more than a factor of {DOUBTFUL:g}"
        lines.append(f"doubtful = {json.dumps(doubtful)}  # {why}")
    for key, measured in found.items():
        lines.append(f"{key}_interval = [{measured.low!r}, {measured.high!r}]")
    return "\n".join(lines) + "\n"
