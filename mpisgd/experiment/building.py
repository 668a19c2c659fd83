"""What an Experiment makes of a rank: its data, model, parameters, optimiser, worker, algorithm.

NumPy and the rest are imported where they are used: a command line is checked without them.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from mpisgd.experiment import own
from mpisgd.experiment.experiment import Experiment
from mpisgd.values.errors import affordable, named

if TYPE_CHECKING:
    from mpisgd.checkpoint.rests import Rests
    from mpisgd.data import Dataset
    from mpisgd.data.augment import Augment
    from mpisgd.models import Model
    from mpisgd.training.parameters import Parameters
    from mpisgd.training.worker import Worker


class Place(NamedTuple):
    """Where a worker would stand: enough to build one, which finds a user's mistakes before any
    message, and to time its computation."""

    rank: int
    size: int


def build_worker(
    experiment: Experiment, dataset: "Dataset", site: Any, rests: "Rests | None" = None
) -> "Worker":
    """The Worker of one rank: model, data, optimiser on its site. `experiment` is resolved;
    `rests`: when it is saved (checkpoint.rests)."""
    from mpisgd.data.device import there
    from mpisgd.data.shards import Sampler
    from mpisgd.training.mean import CONTROL
    from mpisgd.training.worker import Worker

    memory = build_memory(experiment)
    own = experiment.initial == "own"
    rank = site.rank if own else None
    with fitting(experiment):
        model = moved(build_model(experiment, dataset, site.rank, site.size), memory)
        parameters = build_parameters(experiment, model, CONTROL, rank).to(memory)
        optimiser, ema = build_rule(experiment, parameters.flat, parameters.shapes)
    steps = experiment.steps or 1
    return Worker(
        site, model, there(dataset, memory),
        Sampler(dataset.samples, site.size, experiment.batch, experiment.seed),
        optimiser, build_rate(experiment), steps,
        parameters, ema, experiment.evaluate_every or 0,
        clip=experiment.clip, augment=build_augment(experiment, dataset), rests=rests,
        equal=not own, wire=experiment.wire, feedback=experiment.error_feedback,
    )  # fmt: skip


def build_memory(experiment: Experiment) -> Any:
    """Where this rank's parameters lie (allreduce.arrays). UsageError if it cannot be had."""
    from mpisgd.mpi import devices

    return devices.memory(experiment.backend, experiment.device)


def fitting(experiment: Experiment) -> AbstractContextManager[None]:
    """UsageError where the model, or what belongs to each of its parameters, is too large."""
    hidden = experiment.hidden
    return affordable(*(("--model", experiment.model) if not hidden else ("--hidden", hidden)))


def build_model(experiment: Experiment, dataset: "Dataset", rank: int, size: int) -> "Model":
    """The model of rank `rank` of the `size` that train."""
    from mpisgd import models

    if (plugin := own.plugin(experiment, "model")) is not None:
        from mpisgd.models import plugged

        return plugged.build(plugin, dataset, own.given(experiment, "model"))
    options = {"hidden": experiment.hidden} if experiment.hidden is not None else {}
    return models.build(
        experiment.model, dataset, rank=rank, size=size, seed=experiment.seed, **options
    )


def build_augment(experiment: Experiment, dataset: "Dataset") -> "Augment | None":
    """What is done to each batch; None for nothing."""
    from mpisgd.data import augment

    return augment.build(experiment.augment, experiment.seed, dataset)


def build_rate(experiment: Experiment) -> Callable[[int], float]:
    """The learning rate as a function of the step; of a resolved experiment."""
    from mpisgd.training import learning_rates

    scaled, steps = experiment.scaled_rate, experiment.steps or 1
    rate = learning_rates.schedule(experiment.rate_schedule, scaled, steps)
    if not experiment.warm_up:
        return rate
    start = experiment.rate if experiment.linear_scaling else 0.0
    return learning_rates.warmed_up(rate, experiment.warm_up, start)


def build_parameters(
    experiment: Experiment, model: "Model", extra: int = 0, rank: int | None = None
) -> "Parameters":
    """Where every rank starts, or this `rank` alone."""
    import numpy as np

    from mpisgd.training.parameters import Parameters

    parameters = Parameters(model.shapes, experiment.dtype, extra)
    own = () if rank is None else (rank,)
    model.initialise(parameters, np.random.default_rng((experiment.seed, 1, *own)))
    return parameters


def moved(model: Any, memory: Any) -> Any:
    """The model, what it remembers in that memory."""
    if hasattr(model, "move"):
        model.move(memory)
    return model


def build_rule(
    experiment: Experiment, flat: Any, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> tuple[Any, Any]:
    """The optimiser of (a part of) the flat parameters, which are of such shapes, and their moving
    average, if any."""
    from mpisgd.training import optimisers

    decay, decoupled = experiment.weight_decay, experiment.decoupled
    layers = _layers(shapes) if experiment.optimiser == "lars" and shapes else None
    optimiser = optimisers.build(
        experiment.optimiser, flat,
        momentum=experiment.momentum, weight_decay=0.0 if decoupled else decay,
        nesterov=experiment.nesterov or None,
        decay=experiment.rmsprop_decay, epsilon=experiment.epsilon,
        trust=experiment.trust, layers=layers,
    )  # fmt: skip
    if decoupled:
        optimiser = optimisers.Decoupled(optimiser, decay)
    ema = None
    if experiment.ema is not None:
        ema = optimisers.EMA(flat, experiment.ema, experiment.ema_warm_up)
        ema.update(flat)
    return optimiser, ema


def _layers(shapes: Mapping[str, tuple[int, ...]]) -> list[tuple[slice, bool]]:
    """Where each lies in the flat parameters, and whether it is a layer's matrix or kernel."""
    ends = list(accumulate(map(prod, shapes.values()), initial=0))
    return [
        (slice(low, high), len(shape) > 1)
        for low, high, shape in zip(ends, ends[1:], shapes.values(), strict=False)
    ]


def algorithm_run(experiment: Experiment, worker: "Worker") -> Any:
    """The generator of the experiment's algorithm on `worker`."""
    from mpisgd.algorithms import ALGORITHMS
    from mpisgd.values.registry import resolve

    if worker.step >= worker.last:  # restored where its run had ended
        return worker.conclude()
    plugin = own.plugin(experiment, "algorithm")
    function = plugin or resolve(ALGORITHMS, experiment.algorithm, "--algorithm")
    options = {name: getattr(experiment, name) for name in own.takes(experiment.algorithm)}
    return function(worker, **options, **own.given(experiment, "algorithm"))


def load(experiment: Experiment) -> "Dataset":
    """The experiment's data set."""
    from mpisgd import data

    samples = experiment.data_samples
    large = ("--data", experiment.data) if samples is None else ("--data-samples", samples)
    if (plugin := own.plugin(experiment, "data")) is not None:
        from mpisgd.data import plugged

        with affordable(*large):
            return plugged.load(plugin, own.given(experiment, "data"), samples)
    with named("--data" if experiment.data_path is None else "--data-path"), affordable(*large):
        return data.load(
            experiment.data, experiment.data_path, samples=samples, seed=experiment.seed
        )


def resolve_for(experiment: Experiment, dataset: "Dataset", ranks: int) -> Experiment:
    """The experiment with what follows from the data and the number of ranks."""
    return experiment.resolved(ranks, dataset.samples)
