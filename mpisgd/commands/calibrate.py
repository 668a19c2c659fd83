"""`mpisgd calibrate`: measure a network and a step, into a file for simulate, predict, --virtual.

Point to point only: nothing here runs an all-reduce. How links are measured: mpisgd.predict.links.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from allreduce.arrays import HOST, Device, Host
from allreduce.measure import gather
from mpisgd.experiment.arguments import add_arguments as add_options
from mpisgd.experiment.arguments import from_arguments
from mpisgd.experiment.experiment import Experiment
from mpisgd.models import HIDDEN
from mpisgd.predict import calibration, coding
from mpisgd.predict.links import (
    Measured,
    alone,
    copies,
    ended,
    habits,
    messages,
    network_of,
    seconds_of,
)
from mpisgd.store.lock import held_together
from mpisgd.store.target import check_not_read, check_target
from mpisgd.values import files, progress, tables
from mpisgd.values.errors import UsageError
from mpisgd.values.options import whole, wholes

CODED = 15  # of coding a message, at most: each takes milliseconds
DOUBTFUL = 2.0  # an interval that ends above so many times its beginning
COLUMNS = ("quantity", "value", "unit", "ci_low", "ci_high", "repetitions")
UNITS = {"latency_s": "s", "bandwidth_Bps": "B/s", "overhead_s": "s", "look_s": "s",
         "sum_s_per_B": "s/B", "eager_limit_B": "B", "node_latency_s": "s",
         "node_bandwidth_Bps": "B/s", "burst_B": "B", "copy_out_Bps": "B/s", "copy_in_Bps": "B/s",
         "copy_latency_s": "s"}  # fmt: skip


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
    memory = _memory(comm, experiment)
    where = cores.places(comm, experiment.deadline_s)
    hosts = where.hosts
    if rank == 0 and where.crowded:
        print(f"mpisgd calibrate: {where.crowded}", file=sys.stderr)
    with closing(_bar(rank, len(batches))) as bar:
        found = messages(comm, hosts, repetitions, experiment.deadline_s)
        bar.update()
        words = habits(comm, hosts, found, repetitions, experiment.deadline_s)
        found |= alone(comm, np.dtype(experiment.dtype), repetitions, memory)
        staged = copies(memory, repetitions) if isinstance(memory, Device) else {}
        coded = coding.measure(experiment.wire, min(repetitions, CODED))
        bar.update()
        own = []
        for batch in batches:
            own.append(_step_seconds(experiment, batch, rank, size, repetitions))
            bar.update()
    slowest = gather(comm, np.array(own).ravel(), experiment.deadline_s).max(axis=0)
    if rank == 0:
        per_batch = slowest.reshape(len(batches), repetitions)
        steps = {b: Measured.of(row.tolist()) for b, row in zip(batches, per_batch, strict=True)}
        rows = [
            *_rows(found | staged, steps),
            *({"quantity": k, "value": v} for k, v in words.items()),
            *_coding_rows(coded),
        ]
        print(tables.render(COLUMNS, rows, arguments.format))
        _warn(found | staged | {f"step at batch {batch}": each for batch, each in steps.items()})
        if arguments.output is not None:
            path = Path(arguments.output)
            links = network_of(path.stem, found, hosts).with_(**words)
            text = links.toml() + _notes(found, steps, experiment, hosts, staged) + _coding(coded)
            files.write(path, text.encode())
    return 0


def _bar(rank: int, batches: int) -> progress.Bar:
    """Of the parts: messages, what a rank does alone, a step at each batch."""
    return progress.Silent() if rank else progress.shown("calibrate", 2 + batches, unit="part")


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


def _memory(comm: Any, experiment: Experiment) -> Host:
    """Where a step computes. UsageError on all ranks where one has no such device."""
    from mpisgd.experiment.building import build_memory
    from mpisgd.mpi import session

    memory, error = HOST, None
    try:
        memory = build_memory(experiment)
    except UsageError as mistake:
        error = mistake
    session.agree(comm, error, experiment.deadline_s)
    return memory


def _step_seconds(
    experiment: Experiment, batch: int, rank: int, size: int, repetitions: int
) -> list[float]:
    """Seconds of gradient and update at one local batch, nothing in flight."""
    from mpisgd.experiment.building import Place, build_worker, load, resolve_for

    dataset = load(experiment)
    chosen = resolve_for(replace(experiment, batch=batch), dataset, size)
    worker = build_worker(chosen, dataset, Place(rank, size))
    inputs, targets = worker.dataset.batch(worker.sampler.indices(1, rank))

    def step() -> None:
        worker.model.gradient(worker.parameters, inputs, targets, worker.gradient, lambda s: None)
        worker.optimiser.step(worker.parameters.flat, worker.gradient.flat, 0.0)
        ended(worker.parameters.memory)

    step()
    return [seconds_of(step) for _ in range(repetitions)]


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


def _coding_rows(
    coded: Mapping[str, tuple[Measured, Measured]],
) -> list[dict[str, Any]]:
    return [
        {"quantity": f"{what} {wire}", "unit": "s/B", **_values(each)}
        for wire, pair in coded.items()
        for what, each in zip(("encode", "decode"), pair, strict=True)
    ]


def _coding(coded: Mapping[str, tuple[Measured, Measured]]) -> str:
    """The table of it: seconds to encode, and to decode, a byte of the values of each wire."""
    lines = [f"\n[calibration.{coding.CODING}]  # [encode, decode], s/B of the values"]
    lines += [
        f"{json.dumps(wire)} = {[each.value for each in pair]}" for wire, pair in coded.items()
    ]
    return "\n".join(lines) + "\n"


def _values(measured: Measured) -> dict[str, float]:
    value, low, high, repetitions = measured
    return {"value": value, "ci_low": low, "ci_high": high, "repetitions": repetitions}


def _notes(
    found: dict[str, Measured],
    steps: dict[int, Measured],
    experiment: Experiment,
    hosts: list[str],
    staged: Mapping[str, Measured] = MappingProxyType({}),
) -> str:
    """The table [calibration]: intervals and step times, which a network file may carry, and what
    is `staged` beside messages, which it does not price."""
    lines = ["", "[calibration]", f'created_utc = "{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"']
    lines.append(f"ranks = {len(hosts)}")
    lines.append(f"hosts = {len(set(hosts))}")
    lines.append(f'model = "{experiment.model}"')
    lines.append(f"hidden = {list(experiment.hidden or HIDDEN.get(experiment.model, ()))}")
    lines.append(f'data = "{experiment.data}"')
    lines.append(f'dtype = "{experiment.dtype}"')
    lines.append(f'backend = "{experiment.backend}"')
    lines.append(f"batches = {list(steps)}")
    lines.append(f"step_s = {[measured.value for measured in steps.values()]}")
    intervals = [[measured.low, measured.high] for measured in steps.values()]
    lines.append(f"{calibration.STEP}_interval = {intervals}")
    at = {str(batch): measured for batch, measured in steps.items()}
    doubtful = _doubtful(found) + ([calibration.STEP] if _doubtful(at) else [])
    if doubtful:
        why = f"their intervals begin at 0 or span more than a factor of {DOUBTFUL:g}"
        lines.append(f"doubtful = {json.dumps(doubtful)}  # {why}")
    lines += [f"{key} = {measured.value!r}" for key, measured in staged.items()]
    for key, measured in {**found, **staged}.items():
        lines.append(f"{key}_interval = [{measured.low!r}, {measured.high!r}]")
    return "\n".join(lines) + "\n"
