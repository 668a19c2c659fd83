"""Whether the states in a checkpoint are those of the run that is to go on from it.

A checksum tells damage, not origin: what a file holds may have other names, shapes or types. It is
tried on objects made for that, before anyone is told from where the run goes on.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from mpisgd.algorithms.policies import POLICIES
from mpisgd.checkpoint.file import Checkpoint
from mpisgd.checkpoint.state import BadState
from mpisgd.data import Dataset
from mpisgd.experiment.building import Place, algorithm_run, build_worker
from mpisgd.experiment.experiment import Experiment
from mpisgd.training.worker import is_finite
from mpisgd.values.errors import UsageError

UNFIT = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)


class Begun(Exception):
    """A step would begin."""


class Trial(Place):
    """A place where an algorithm names what it needs, and goes no further."""

    def plan(self, *how: Any, pairs: bool = False) -> Any:
        return self

    def restore(self, state: Mapping[str, Any]) -> None:
        """Of a pending all-reduce."""

    def begin_step(self, step: int) -> None:
        raise Begun


def misfit(
    experiment: Experiment, dataset: Dataset, virtual: bool, checkpoint: Checkpoint
) -> str | None:
    """Why the run of that resolved experiment cannot take its states; None if it can.

    With a part for each rank, only rank 0's is in the file: see `unlike`.
    """
    if experiment.algorithm not in POLICIES:
        ranks = 1 if "parts" in checkpoint.meta else experiment.ranks
        return _reason(lambda: _check_workers(experiment, dataset, checkpoint, ranks))
    return _reason(lambda: _check_served(experiment, dataset, virtual, checkpoint))


def unlike(
    experiment: Experiment, dataset: Dataset, rank: int, state: Mapping[str, Any]
) -> str | None:
    """As `misfit`, of the part that a rank wrote itself."""
    worker = build_worker(experiment, dataset, Trial(rank, experiment.ranks))
    return _reason(lambda: _check_worker(experiment, worker, state["worker"]))


def _reason(check: Callable[[], object]) -> str | None:
    try:
        check()
    except UsageError as mistake:
        return str(mistake)
    except UNFIT as error:
        return f"its states are not this run's: {error!r:.80}"
    return None


def _check_workers(
    experiment: Experiment, dataset: Dataset, checkpoint: Checkpoint, ranks: int
) -> None:
    """One after the other, on the same objects."""
    worker = build_worker(experiment, dataset, Trial(0, experiment.ranks))
    for rank in range(ranks):
        _check_worker(experiment, worker, checkpoint.state(str(rank))["worker"])


def _check_worker(experiment: Experiment, worker: Any, state: Mapping[str, Any]) -> None:
    """The algorithm itself says what it needs of the state, up to where it would begin a step."""
    worker.means.clear()
    worker.kept.clear()
    _restore(worker, state)
    if worker.step < worker.last:
        with suppress(Begun):
            next(algorithm_run(experiment, worker))
        if worker.kept.keys() != state.get("kept", {}).keys():
            raise BadState(f"the algorithm keeps {', '.join(worker.kept) or 'nothing'}")


def _restore(role: Any, state: Mapping[str, Any]) -> None:
    role.restore(state)
    if not is_finite(state):
        raise BadState("its parameters, or what goes with them, are not finite")


def _check_served(
    experiment: Experiment, dataset: Dataset, virtual: bool, checkpoint: Checkpoint
) -> None:
    from mpisgd.servers.roles import Builder

    builder = Builder(experiment, dataset)
    roles = builder.roles
    alone = not virtual and len(roles.servers) == 1  # whose workers begin anew
    for number, rank in enumerate(roles.servers):
        state = checkpoint.state(f"server{number}" if virtual else str(rank))
        own = state if virtual else state["server"]
        _restore(builder.server(None, number), own if alone else own["own"])
    for number, rank in enumerate([] if alone else roles.workers):
        state = checkpoint.state(f"worker{number}" if virtual else str(rank))
        own = state if virtual else state["worker"]
        _restore(builder.worker(Place(number, len(roles.workers)), number), own["own"])
