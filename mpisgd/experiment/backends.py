"""What goes with which `--backend`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from allreduce import collectives
from mpisgd.values.errors import UsageError

if TYPE_CHECKING:
    from mpisgd.experiment.experiment import Experiment

HOST = "numpy"
BACKENDS = (HOST, "cupy")


def unfitting(experiment: "Experiment") -> Iterator[UsageError]:
    """A device where there is none, and what a device cannot do."""
    if experiment.backend == HOST:
        if experiment.device != "auto":
            yield UsageError("--device", experiment.device, "--backend numpy has none; cupy does")
        if experiment.cuda_aware != "auto":
            allowed = "--backend numpy has no memory of a device; cupy does"
            yield UsageError("--cuda-aware", experiment.cuda_aware, allowed)
        if not collectives.carrier(experiment.allreduce).host:
            allowed = "with --backend cupy only: it takes arrays of devices alone"
            yield UsageError("--allreduce", experiment.allreduce, allowed)
        return
    here = f"not with --backend {experiment.backend}; numpy can"
    if experiment.model in ("quadratic", "bag"):
        yield UsageError("--model", experiment.model, here)
    if experiment.wire is not None:
        yield UsageError("--wire", experiment.wire, here)
    if experiment.pull not in (None, "answer"):
        yield UsageError("--pull", experiment.pull, f"{here}: parameters come with answers")
    if experiment.partial:
        flag = "algorithm" if experiment.algorithm == "minibatch-partial" else "quorum"
        yield UsageError(
            f"--{flag}", getattr(experiment, flag), f"{here}: rounds begin at its looks"
        )
    if experiment.push not in (None, "whole"):
        yield UsageError("--push", experiment.push, f"{here}: a gradient leaves whole")


def check_world(experiment: "Experiment", virtual: bool) -> None:
    """UsageError for virtual ranks, which share one process and its memory, on a device."""
    if virtual and experiment.backend != HOST:
        raise UsageError("--backend", experiment.backend, "only without --virtual")
