"""What a user is told beside the results: what a run takes for granted, and how it was left."""

import argparse
import sys
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from allreduce import collectives
from allreduce.compress import INDEX, matrices
from allreduce.wire import Wire
from mpisgd.experiment import step_times, stragglers
from mpisgd.experiment.arguments import is_given
from mpisgd.experiment.experiment import Experiment
from mpisgd.experiment.virtual_time import virtual_network
from mpisgd.predict import calibration, coding
from mpisgd.training.effective import idle
from mpisgd.values.schedules import AUTO


def tell_assumptions(
    experiment: Experiment, dataset: Any, arguments: argparse.Namespace, rank: int | None = None
) -> None:
    """Before a run, on standard error: what looks like a mistake, or is easily forgotten.

    `rank`: the first tells it; None: of a virtual run.
    """
    if rank:
        return
    lines = [*_few_samples(experiment, dataset), *_high_rate(experiment, arguments)]
    lines += [*_idle(experiment), *_heavy_pairs(experiment), *_unmet(experiment)]
    lines += _vain_wire(experiment, dataset)
    if rank is None:
        lines += [*_free_time(experiment), *_calibrated(experiment)]
        if experiment.network is not None and experiment.ranks > 1:
            lines += coding.free(virtual_network(experiment), experiment.wire)
        unused = () if experiment.step_time_from == experiment.network else (calibration.STEP,)
        lines += calibration.doubts(experiment.network, unused)
    _tell(lines)


def tell_chosen(experiment: Experiment) -> None:
    """Once `--allreduce auto` is settled: what it takes, and by what."""
    name, chunks = experiment.allreduce, experiment.chunks
    library = "" if collectives.carrier(name).scheduled else ", a library's own call"
    cut = f" in {chunks} chunks" if chunks > 1 else ""
    _tell([f"--allreduce {AUTO} takes {name}{cut}{library} ({experiment.allreduce_from})"])


def tell_tuned(experiment: Experiment, rank: int | None = None) -> None:
    """Once `--delay auto` is settled: whether such a run still averages."""
    if not rank:
        _tell(_idle(experiment))


def tell_stopped(step: int, output: str | None) -> None:
    """After a run that a signal ended: how far it got, and where that is."""
    kept = f"; results so far: {output}.partial" if output else ""
    print(f"mpisgd: stopped by a signal after step {step}{kept}", file=sys.stderr)


def _tell(lines: Sequence[str]) -> None:
    for line in lines:
        print(f"mpisgd: note: {line}", file=sys.stderr)
    sys.stderr.flush()


def _idle(experiment: Experiment) -> list[str]:
    """It never averages, or throws away what it learns."""
    line = idle(experiment.config())
    return [] if line is None else [line]


def _heavy_pairs(experiment: Experiment) -> list[str]:
    """A gather of pairs in which a rank sends more than in a ring of all values."""
    name, _, share = (experiment.wire or "").partition(":")
    ranks, width = experiment.ranks, np.dtype(experiment.dtype).itemsize
    most = 2 * width / (width + INDEX.itemsize) / ranks
    if name != "topk" or ranks == 1 or float(share) <= most:
        return []
    return [
        f"--wire {experiment.wire} on {ranks} ranks: pairs of all of them are more bytes than a "
        f"ring sends in full; fewer below {most:.3g}"
    ]


def _unmet(experiment: Experiment) -> list[str]:
    """A straggler who never happens, or is never back."""
    steps, step_s = experiment.steps or 1, experiment.step_seconds
    found = stragglers.unmet(experiment.straggler, steps, step_s)
    more = f"; and {len(found) - 1} more" if found[1:] else ""
    return [f"--straggler {found[0]}{more}"] if found else []


def _vain_wire(experiment: Experiment, dataset: Any) -> list[str]:
    """A format of messages where there are none, factors that are no smaller than their matrix."""
    wire = experiment.wire or ""
    if wire and experiment.ranks == 1:
        return [f"--wire {wire}: one rank sends nothing"]
    if not wire.startswith("powersgd"):
        return []
    from mpisgd.experiment.building import build_model

    shapes = tuple(build_model(experiment, dataset, 0, experiment.ranks).shapes.values())
    if matrices(Wire(wire, shapes=shapes), sum(map(prod, shapes))):
        return []
    told = "no matrix of the model has fewer values as factors of that rank; all travel in full"
    return [f"--wire {wire}: {told}"]


def _few_samples(experiment: Experiment, dataset: Any) -> list[str]:
    """No step has whole batches."""
    if experiment.ranks * experiment.batch <= dataset.samples:
        return []
    return [
        f"{experiment.ranks} ranks times --batch {experiment.batch} are more than the "
        f"{dataset.samples} samples; every step is an epoch"
    ]


def _high_rate(experiment: Experiment, arguments: argparse.Namespace) -> list[str]:
    """Single gradients, stale by as many updates as there are other workers, at the rate and with
    the momentum that suit a mean over all of them: it learns nothing, and says nothing."""
    single = experiment.algorithm in ("async", "softsync") and experiment.update_gradients == 1
    if not single or experiment.workers < 2 or is_given(arguments, "rate", "momentum"):
        return []
    return [
        f"{experiment.algorithm} applies each gradient of {experiment.workers} workers by itself, "
        f"at the default --lr {experiment.rate:g} with --momentum {experiment.momentum:g}; that is "
        "much for stale gradients: try less of either"
    ]


def _calibrated(experiment: Experiment) -> list[str]:
    """Where a step's seconds come from if the network is a file, which may know them, and whether
    they were measured at the batch."""
    network, source = experiment.network, experiment.step_time_from
    beyond = step_times.outside(source, experiment.batch)
    if source is not None and (beyond or source == network):
        how = beyond or "as calibrated"
        return [f"a step takes {experiment.step_seconds:.3g} s, {how} in {source}"]
    if network is None or not network.endswith(".toml"):
        return []
    if experiment.step_seconds is not None:
        return []
    return [f"{network} has no step of this --model, --hidden, --data and --dtype"]


def _free_time(experiment: Experiment) -> list[str]:
    """What virtual time leaves out unless it is told."""
    found = []
    if experiment.price_as is not None:
        carried = f"--allreduce {experiment.allreduce}"
        found.append(f"{carried} is priced, and summed, as {experiment.price_as}")
    if experiment.network is None and experiment.ranks > 1:
        found.append("without --network messages take no virtual time")
    if experiment.step_seconds is None:
        found.append("without --step-time a step takes 1 ms of virtual time")
    return ["; ".join(found)] if found else []
