"""What a driver is told, and what it answers, whichever world it is."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from mpisgd.data import Dataset
from mpisgd.experiment.experiment import Experiment
from mpisgd.store.recording import Store
from mpisgd.store.weights import Weights

if TYPE_CHECKING:  # a run that saves nothing does without: memory counts, times ranks
    from allreduce.simulate.workload import Workload
    from mpisgd.checkpoint.resume import Resumed
    from mpisgd.checkpoint.writer import Checkpointing
    from mpisgd.values.progress import Bar


class Job(NamedTuple):
    """A run. `experiment`: resolved, its delay a number; `store`, `bar`: on rank 0, if at all;
    `until(row of /evaluation)`: whether that is enough, and the run is to stop; asked on rank 0;
    `keep_parameters`: whether the store gets what was learned; `workload` is told what virtual
    ranks do."""

    experiment: Experiment
    dataset: Dataset
    store: Store | None = None
    bar: "Bar | None" = None
    checkpointing: "Checkpointing | None" = None
    until: Callable[[Mapping[str, Any]], bool] | None = None
    keep_parameters: bool = False
    workload: "Workload | None" = None

    @property
    def resumed(self) -> "Resumed | None":
        """What it goes on from."""
        return None if self.checkpointing is None else self.checkpointing.resumed


class Outcome(NamedTuple):
    """`code`: the exit code; `reason`: why the run ended early; `step`: where.

    `experiment`: as it ran; `evaluation`: the last row, on rank 0; `weights`: those of the last
    evaluation, where it was made; `evaluate(dataset)`: their loss and accuracy on the test
    samples of another data set, of virtual ranks; `lost`: ranks that went silent.
    """

    experiment: Experiment
    code: int = 0
    reason: str | None = None
    step: int = 0
    evaluation: Mapping[str, Any] = {}
    weights: Weights | None = None
    evaluate: Callable[[Dataset], tuple[float, float]] | None = None
    lost: tuple[int, ...] = ()
