"""The averaged model of a checkpoint, as an evaluation at that step has it: to the same bits."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from allreduce import algorithms, collectives
from allreduce.evaluate import evaluate
from mpisgd.algorithms.policies import POLICIES
from mpisgd.checkpoint import place
from mpisgd.checkpoint.file import Checkpoint, DamagedCheckpoint
from mpisgd.checkpoint.fitting import UNFIT
from mpisgd.checkpoint.state import copy_into
from mpisgd.data import Dataset
from mpisgd.experiment.building import build_model, load
from mpisgd.experiment.experiment import Experiment
from mpisgd.experiment.recorded import recorded
from mpisgd.models.statistics import estimated, moments, pooled, remembered
from mpisgd.store.weights import Weights
from mpisgd.training.mean import CONTROL
from mpisgd.training.parameters import Parameters
from mpisgd.values import schedules

PLACED = "hierarchical"  # whose order of sums depends on where ranks were


def weights(checkpoint: Checkpoint, data_path: str | None = None) -> Weights:
    """What its ranks, or servers, hold together. The names are those of the run's model, which is
    built anew: that takes its data set, or `data_path`, and the files of its plug-ins.

    Raises DamagedCheckpoint where the states are not those of that model, UsageError.
    """
    experiment = recorded(checkpoint.meta["config"], str(checkpoint.path))
    if data_path is not None:
        experiment = replace(experiment, data_path=data_path)
    dataset = load(experiment)
    combine = _of_servers if experiment.algorithm in POLICIES else _of_ranks
    try:
        return combine(checkpoint, experiment, dataset)
    except UNFIT as error:
        reason = f"its states are not those of its model: {error!r:.80}"
        raise DamagedCheckpoint(str(checkpoint.path), None, reason) from None


def other_order(config: dict[str, Any]) -> bool:
    """Whether the run may have summed in another order than `weights` does."""
    name = config.get("allreduce")
    return name == PLACED or not collectives.carrier(str(name)).scheduled


def _of_ranks(checkpoint: Checkpoint, experiment: Experiment, dataset: Dataset) -> Weights:
    model: Any = build_model(experiment, dataset, 0, experiment.ranks)
    statistics = getattr(model, "statistics", None)
    parts: list[Parameters] = []
    sums: list[np.ndarray] = []
    for state in _states(checkpoint, experiment.ranks):
        if not (parts and state["equal"]):  # else they are the first rank's
            parts.append(Parameters(model.shapes, experiment.dtype, CONTROL))
            copy_into({"it": parts[-1].flat}, {"it": state["parameters"]}, "parameters")
        if statistics is not None:
            copy_into({"it": statistics.buffer}, {"it": state["statistics"]}, "statistics")
            sums.append(moments(model))
    if len(parts) > 1:
        known = collectives.carrier(experiment.allreduce).scheduled
        name = experiment.allreduce if known else "butterfly"
        evaluate(schedules.build(name, len(parts)), [part.buffer for part in parts], mean=True)
    if sums:
        evaluate(algorithms.build("tree", len(sums)), sums)
    with pooled(model, sums[0] if sums else np.zeros(0)):
        return Weights(parts[0].views, remembered(model))


def _states(checkpoint: Checkpoint, ranks: int) -> Iterator[dict[str, Any]]:
    """Of each rank's worker, one at a time."""
    for rank in range(ranks):
        source = checkpoint
        if rank and (parts := checkpoint.meta.get("parts")) is not None:
            path = place.part(place.base(checkpoint.path), checkpoint.meta["step"], rank)
            try:
                source = Checkpoint(path)
            except FileNotFoundError:
                raise DamagedCheckpoint(str(path), None, "is missing") from None
            if source.digest != parts.get(str(rank)):
                raise DamagedCheckpoint(str(path), None, "is of another checkpoint")
        yield source.state(str(rank))["worker"]


def _of_servers(checkpoint: Checkpoint, experiment: Experiment, dataset: Dataset) -> Weights:
    from mpisgd.servers.roles import Builder

    builder = Builder(experiment, dataset)
    whole, virtual = builder.parameters, checkpoint.meta["virtual"]
    for number, rank in enumerate(builder.roles.servers):
        state = checkpoint.state(f"server{number}" if virtual else str(rank))
        state = state if virtual else state["server"]
        copy_into({"it": whole.flat[builder.shards[number]]},
                  {"it": state.get("own", state)["parameters"]}, "shard")  # fmt: skip
    with estimated(builder.model, dataset, whole):
        return Weights(whole.views, remembered(builder.model))
