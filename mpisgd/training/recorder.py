"""What a rank tells of its steps and evaluations, on its way to the result file."""

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from allreduce.communicator import Communicator
from mpisgd.mpi import tags
from mpisgd.store.recording import WIDTH, Rows, Store, packed, store_rows
from mpisgd.training import evaluation

if TYPE_CHECKING:
    from mpisgd.training.worker import Worker


class Recorder:
    """One rank's rows. Rank 0 holds the `store`, or None to keep nothing.

    `config`: the run's settings. `on_step`: called on rank 0 at each step.
    `meta`: what the checkpoint says that the run goes on from.
    """

    def __init__(
        self,
        comm: Communicator,
        store: Store | None,
        config: Mapping[str, Any],
        *,
        deadline: float = 60.0,
        on_step: Callable[[], object] | None = None,
        meta: Mapping[str, Any] | None = None,
    ):
        self.store, self.config, self.on_step = store, config, on_step
        self.last_evaluation: dict[str, Any] = meta["evaluation"] if meta else {}
        self.evaluated = meta["keep"]["evaluation"] if meta else 0  # rows, with those before
        self.rows = Rows(
            comm, WIDTH, tags.ROWS, self._store, deadline=deadline,
            after=lambda: None if store is None else store.flush(),
        )  # fmt: skip

    def step(self, step: int, columns: Mapping[str, float]) -> None:
        """Take one row of /steps."""
        self.rows.add(packed(step, columns))
        if self.on_step is not None:
            self.on_step()

    def evaluation(self, worker: "Worker", sums: np.ndarray, time_s: float, step: int) -> None:
        """Take the sums over all ranks of one evaluation."""
        self.last_evaluation = evaluation.row(sums, worker, self.config, time_s, step)
        self.evaluated += 1
        if self.store is not None:
            self.store.evaluation(**self.last_evaluation)

    def finish(self, without: Collection[int] = ()) -> None:
        """Ship what is left; on rank 0, until every rank's last row is there."""
        self.rows.finish(without)

    def _store(self, rank: int, rows: np.ndarray) -> None:
        if self.store is not None and len(rows):
            store_rows(self.store, rank, rows)
