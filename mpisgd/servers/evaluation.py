"""Evaluating what servers hold: each hands in its shard, the whole is evaluated on the test set.

Shards that decide alone reach a step at different times and in their own order of gradients; the
evaluation of a step takes each shard as it was when it had used the gradients of that step.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from allreduce.arrays import HOST
from mpisgd.data import Dataset
from mpisgd.models import Model
from mpisgd.models.statistics import described, estimate_of, estimated, remembered
from mpisgd.servers.worker import not_finite
from mpisgd.store.weights import Weights
from mpisgd.training.evaluation import TRAINING, figures, shard_sums
from mpisgd.training.parameters import Parameters, digest

if TYPE_CHECKING:
    from mpisgd.servers.server import Server

FINAL = -1  # the label of the last evaluation, instead of a step
FACTS = (
    "step", "time_s", "samples_computed", "samples_used", "train_loss_sum", "train_samples",
    "failed_step", "failed_worker",
)  # fmt: skip


class Evaluator:
    """Collects shards by label, evaluates and stores. `last`: the last row; `parameters`,
    `statistics`: the whole of the last evaluation; `failed`: (step, worker) where something was not
    finite, if any server has heard of it: then the end is not evaluated."""

    def __init__(
        self,
        model: Model,
        dataset: Dataset,
        parameters: Parameters,
        shards: Sequence[slice],
        ema: bool,
        store: Any = None,
        meta: Mapping[str, Any] | None = None,
    ):
        """`meta`: what the checkpoint says that the run goes on from."""
        self.model, self.dataset, self.shards, self.store = model, dataset, shards, store
        self.parameters = parameters.like()
        self.average = parameters.like() if ema else None
        self.statistics: dict[str, np.ndarray] = {}
        self.last: dict[str, Any] = meta["evaluation"] if meta else {}
        self.evaluated = meta["keep"]["evaluation"] if meta else 0  # rows, with those before
        self.failed: tuple[int, int] | None = None
        self._parts: dict[int, dict[int, tuple[np.ndarray, np.ndarray | None, Mapping]]] = {}

    def add(
        self, label: int, index: int, flat: np.ndarray, ema: np.ndarray | None, facts: Mapping
    ) -> None:
        """Shard `index` at `label`, a step or FINAL; the arrays are the evaluator's from now on."""
        parts = self._parts.setdefault(label, {})
        parts[index] = flat, ema, facts
        if facts["failed_step"]:
            failed = int(facts["failed_step"]), int(facts["failed_worker"])
            self.failed = failed if self.failed is None else min(failed, self.failed)
        if len(parts) == len(self.shards):
            del self._parts[label]
            if self.failed is None:
                self._evaluate(parts)

    @property
    def pending(self) -> bool:
        """Whether the last evaluation waits for other shards. A run that is stopped may leave
        earlier ones without theirs."""
        return FINAL in self._parts

    def state(self) -> dict[str, Any]:
        """The shards that wait for others."""
        return {
            str(label): {
                str(index): {"flat": flat, "ema": ema, "facts": dict(facts)}
                for index, (flat, ema, facts) in parts.items()
            }
            for label, parts in self._parts.items()
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """They wait again."""
        self._parts = {
            int(label): {
                int(index): (part["flat"], part.get("ema"), part["facts"])
                for index, part in parts.items()
            }
            for label, parts in state.items()
        }

    @property
    def weights(self) -> Weights:
        """What was evaluated last."""
        return Weights(self.parameters.to(HOST).views, self.statistics)

    def _evaluate(self, parts: Mapping[int, tuple]) -> None:
        for index, (flat, ema, _) in parts.items():
            put, shard = self.parameters.memory.put, self.shards[index]
            put(self.parameters.flat[shard], flat)
            if self.average is not None:
                put(self.average.flat[shard], ema)
        with estimated(self.model, self.dataset, self.parameters):
            self.statistics = remembered(self.model)
            sums = shard_sums(self.model, self.dataset, self.parameters, self.average, 0, 1)
        facts = parts[0][2]
        sums[TRAINING] = facts["train_loss_sum"], facts["train_samples"]
        used = facts["samples_used"]
        self.last = {
            "step": int(facts["step"]),
            "samples_computed": facts["samples_computed"],
            "samples_used": used,
            "samples_effective": used,
            "steps_effective": facts["step"],
            "time_s": max(part["time_s"] for _, _, part in parts.values()),
            **figures(sums, self.dataset.classes > 0, self.average is not None),
        }
        self.evaluated += 1
        if self.store is not None:
            self.store.evaluation(**self.last)
            self.store.flush()


def facts(server: "Server") -> dict[str, float]:
    """What a row of /evaluation says beside losses; the counts of shard 0 are taken."""
    failed_step, failed_worker = server.failed or (0, 0)
    return {
        "failed_step": failed_step,
        "failed_worker": failed_worker,
        "step": server.step,
        "time_s": server.now(),
        "samples_computed": server.samples_computed,
        "samples_used": server.samples_used,
        "train_loss_sum": server.loss_sum,
        "train_samples": server.loss_samples,
    }


def check_finite(servers: Sequence["Server"], evaluator: Evaluator | None = None) -> None:
    """Raise NotFinite if a worker met what was not."""
    told = [*(server.failed for server in servers), evaluator.failed if evaluator else None]
    failures = [failed for failed in told if failed is not None]
    if failures:
        raise not_finite(*min(failures))


def summary(servers: Sequence["Server"], evaluator: Evaluator) -> dict[str, Any]:
    """What a result file says of the whole run."""
    return {
        "parameters_sha256": digest(evaluator.parameters.flat),
        **described(evaluator.model, estimate_of(evaluator.dataset)),
        "lost_workers": sorted(set().union(*(server.lost for server in servers))),
    }
