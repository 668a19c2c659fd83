"""Who is a server and who a worker, which part of the parameters is whose; and making both."""

import math
from collections.abc import Iterator, Mapping, Sequence
from inspect import signature
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from mpisgd.algorithms import OPTIONS, WORKING
from mpisgd.algorithms.policies import POLICIES, Policy
from mpisgd.checkpoint.rests import Rests
from mpisgd.data import Dataset
from mpisgd.data.device import there
from mpisgd.data.shards import Sampler
from mpisgd.experiment.building import (
    build_augment,
    build_memory,
    build_model,
    build_parameters,
    build_rate,
    build_rule,
    moved,
)
from mpisgd.experiment.experiment import Experiment
from mpisgd.models import Model
from mpisgd.servers.evaluation import Evaluator
from mpisgd.servers.rows import Layout, Rows
from mpisgd.servers.server import Server
from mpisgd.servers.worker import ServedWorker
from mpisgd.training.parameters import Parameters
from mpisgd.values.errors import UsageError
from mpisgd.values.registry import resolve

ALGORITHM = "--algorithm"
PULLS = ("start", "layerwise")  # when workers ask for parameters
ROWS = "sparse"  # what travels as rows
NEAR = 0.25  # of a shard: how far a cut moves to fall between two layers


class Roles(NamedTuple):
    """Ranks of the servers, and of the workers, by their numbers."""

    servers: Sequence[int]
    workers: Sequence[int]


def roles(experiment: Experiment) -> Roles:
    """The first ranks are servers and the rest workers; colocated, all are workers, and the first
    are servers as well. `experiment` is resolved."""
    count = experiment.servers or 1
    first = 0 if experiment.colocated else count
    return Roles(range(count), range(first, experiment.ranks))


def policy(experiment: Experiment) -> Policy:
    """The row of the experiment's algorithm, with its options. `experiment` is resolved."""
    function = resolve(POLICIES, experiment.algorithm, ALGORITHM)
    names = [name for name in OPTIONS[experiment.algorithm] if name not in WORKING]
    return function(experiment.workers, **{name: getattr(experiment, name) for name in names})


def shards_of_layers(shapes: Mapping[str, tuple[int, ...]], count: int) -> list[slice]:
    """`count` pieces of whole layers, cut where equal pieces would nearly be; one a layer where
    there are as many. A layer is all that is named alike to the last dot. Raises UsageError."""
    layers: dict[str, int] = {}
    for name, shape in shapes.items():
        layer = name.rpartition(".")[0]
        layers[layer] = layers.get(layer, 0) + math.prod(shape)
    if count > len(layers):
        raise UsageError(
            "--servers", count, f"with --cut layers at most one a layer: {len(layers)}"
        )
    edges = np.cumsum([0, *layers.values()])
    cuts = [0]
    for number in range(1, count):
        near = int(np.abs(edges - edges[-1] * number / count).argmin())
        cuts.append(min(max(near, cuts[-1] + 1), len(layers) - (count - number)))
    return [
        slice(int(edges[low]), int(edges[high])) for low, high in pairwise([*cuts, len(layers)])
    ]


def shards(sizes: Sequence[int], count: int) -> list[slice]:
    """`count` pieces of a flat buffer with layers of those sizes: as equal as can be, but cut
    between two layers where that is near. Raises UsageError if there are not enough elements."""
    edges = np.concatenate([[0], np.cumsum(sizes)]).astype(int)
    total = int(edges[-1])
    if count > total:
        raise UsageError("--servers", count, f"at most one a parameter; there are {total}")
    cuts = [0]
    for number in range(1, count):
        ideal = total * number / count
        near = int(edges[np.abs(edges - ideal).argmin()])
        cut = near if abs(near - ideal) <= NEAR * total / count else round(ideal)
        cuts.append(min(max(cut, cuts[-1] + 1), total - (count - number)))
    return [slice(low, high) for low, high in pairwise([*cuts, total])]


class Builder:
    """Makes the servers and workers of one resolved experiment, all from the same parameters.

    Raises UsageError for what does not fit the model or the number of ranks.
    """

    def __init__(self, experiment: Experiment, dataset: Dataset):
        self.experiment, self.dataset = experiment, dataset
        self.roles, self.policy = roles(experiment), policy(experiment)
        self.memory = build_memory(experiment)  # of workers; shards, as letters, are the host's
        self.model = self._model(0)
        self.parameters: Parameters = build_parameters(experiment, self.model)
        if experiment.cut == "layers":
            self.shards = shards_of_layers(self.model.shapes, len(self.roles.servers))
        else:
            sizes = [view.size for view in self.parameters.views.values()]
            self.shards = shards(sizes, len(self.roles.servers))
        if (
            experiment.pull == "layerwise"
            and "needs" not in signature(self.model.gradient).parameters
        ):
            allowed = f"answer or start: --model {experiment.model} wants all parameters at once"
            raise UsageError("--pull", "layerwise", allowed)
        self.rows = self._rows()

    def server(self, site: Any, index: int, rests: Rests | None = None) -> Server:
        """Server number `index` on its site. `rests`: when the run is saved."""
        experiment, steps = self.experiment, self.experiment.steps or 1
        flat = self.parameters.flat[self.shards[index]].copy()
        optimiser, ema = build_rule(experiment, flat)
        rate = build_rate(experiment)
        return Server(
            site, index, flat, len(self.roles.workers), optimiser, rate, steps, self.policy, ema,
            experiment.evaluate_every or 0, consistent=experiment.reads == "consistent",
            rests=rests, pulled=experiment.pull in PULLS and index > 0, rows=self.rows,
        )  # fmt: skip

    def worker(self, site: Any, number: int) -> ServedWorker:
        """Worker `number` on its site."""
        experiment, count = self.experiment, len(self.roles.workers)
        sampler = Sampler(self.dataset.samples, count, experiment.batch, experiment.seed)
        return ServedWorker(
            site, self._model(number), there(self.dataset, self.memory), sampler,
            self.parameters.to(self.memory).like(), self.shards,
            requeue=bool(experiment.requeue), layerwise=experiment.push == "layerwise",
            ahead=bool(experiment.prefetch), pull=experiment.pull or "answer",
            rows=self.rows, clip=experiment.clip,
            augment=build_augment(experiment, self.dataset),
        )  # fmt: skip

    def evaluator(self, store: Any = None, meta: Mapping[str, Any] | None = None) -> Evaluator:
        """What evaluates the shards together; `meta`: as of Evaluator."""
        ema = self.experiment.ema is not None
        dataset, parameters = there(self.dataset, self.memory), self.parameters.to(self.memory)
        return Evaluator(self.model, dataset, parameters, self.shards, ema, store, meta)

    def most(self, index: int) -> int:
        """Elements of the longest message to or from server number `index`."""
        shard = self.shards[index]
        return shard.stop - shard.start if self.rows is None else self.rows.most(index)

    def _rows(self) -> Rows | None:
        """What travels as rows of the model's embedding. UsageError if it has none."""
        ways = {"--push": self.experiment.push == ROWS, "--pull": self.experiment.pull == ROWS}
        if not any(ways.values()):
            return None
        model: Any = self.model
        if not (hasattr(model, "embedding") and hasattr(model, "rows")):
            flag = next(flag for flag, given in ways.items() if given)
            allowed = f"--model {self.experiment.model} has no embedding; bag does"
            raise UsageError(flag, ROWS, allowed)
        layouts = tuple(Layout(model.shapes, model.embedding, shard) for shard in self.shards)
        return Rows(model.rows, layouts, self.parameters.dtype, *ways.values())

    def _model(self, number: int) -> Model:
        model = build_model(self.experiment, self.dataset, number, len(self.roles.workers))
        return moved(model, self.memory)

    def places(self) -> Iterator[tuple[int, int, bool]]:
        """(rank, number, whether a server), servers first."""
        for number, rank in enumerate(self.roles.servers):
            yield rank, number, True
        for number, rank in enumerate(self.roles.workers):
            yield rank, number, False
