"""The average of a buffer over pairs of ranks, with the run's signals told on from pair to pair.

No message goes to all, so that a signal takes rounds to get around. Who has one to tell knows from
the seed when all will have heard of it, and tells that: so all heed it at the end of one round.
"""

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from allreduce.pairs import heard_by_all, partners
from allreduce.wire import Wire
from mpisgd.training.mean import CONTROL, Mean, Steps
from mpisgd.training.parameters import Parameters

if TYPE_CHECKING:
    from mpisgd.training.worker import Worker

NOT_FINITE, STOP, REST = range(CONTROL)


class PairMean(Mean):
    """The average of `source` over this rank and another one in each round: `meet(round)`, later
    `yield from wait()`. Models count alike, whatever their batches: so the mean of all is kept.

    `due`: for each signal the round at whose end all ranks will have heard it, 0 for none.
    """

    def __init__(self, worker: "Worker", source: Parameters):
        self.round, self.due, self._told = 0, [0] * CONTROL, [0] * CONTROL
        super().__init__(worker, source, keep_started=True)
        worker.partner = -1

    def meet(self, number: int) -> None:
        """Begin round `number`, counted from 1 by all ranks alike."""
        self.round = number
        for pending in self._pending:
            pending.meet(number, self._met())
        self.start()

    def wait(self) -> Generator[None, None, Any]:
        """The average of both (flat); of a rank that meets nobody, what it began with. Raises
        NotFinite on every rank at the end of the same round."""
        flat = yield from super().wait()
        other = int(self._met()[self.worker.rank])
        self.worker.partner = -1 if other == self.worker.rank else other
        return flat

    def drain(self) -> Steps:
        """Here all ranks come together: who was told to stop says so to all, and what a rest was
        asked for is done."""
        yield from super().drain()
        told = yield from self.worker.site.gather(int(self.due[STOP] > 0))
        self.worker.stopping |= any(told)
        self.due = [0] * CONTROL

    def state(self) -> dict[str, Any]:
        return super().state() | {"round": self.round}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.round = state["round"]
        super().restore(state)

    def _met(self) -> np.ndarray:
        return partners(self.worker.sampler.seed, self.round, self.worker.size)

    def _make(self, part: Any, wire: Wire | None = None, error: Any = None) -> Any:
        return self.worker.site.plan(part, wire, error, pairs=True)

    def _sign(self, share: float) -> None:
        """For each signal, in how many rounds, this one included, all will have heard of it."""
        worker = self.worker
        for signal, asked in enumerate(worker.signals()):
            if asked and not self.due[signal]:
                self.due[signal] = heard_by_all(
                    worker.sampler.seed, self.round, worker.size, worker.rank
                )
        self._told = [due and due - self.round + 1 for due in self.due]
        self.source.memory.put(self._control, self._told)

    def _hear(self) -> Steps:
        for signal, mean in enumerate(self._aside.get(self._control).tolist()):
            told = (self._told[signal], round(2 * mean) - self._told[signal])
            left = min((rounds for rounds in told if rounds), default=0)
            self.due[signal] = left and self.round + left - 1
        if self.due[NOT_FINITE]:  # from now on nobody takes what others have
            self.result.flat[...] = self.started
        now = [due == self.round for due in self.due]
        self.due = [due * (due > self.round) for due in self.due]
        yield from self.worker.read_signals(now)
