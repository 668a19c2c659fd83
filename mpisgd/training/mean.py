"""The average of a buffer over all ranks, whole or in buckets, with the run's signals beside it."""

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from allreduce import compress
from allreduce.compress import compresses
from allreduce.wire import Wire
from mpisgd.checkpoint.state import copy_into
from mpisgd.training.parameters import Parameters

if TYPE_CHECKING:
    from mpisgd.training.site import PendingAllreduce
    from mpisgd.training.worker import Worker

CONTROL = 3
"""Elements beside every averaged buffer, [not finite, asked to stop, asked to rest]: each mean
carries them, so that all ranks learn of a NaN, a signal or a checkpoint that is due at the same
merge, without a message of its own. Further extra elements say who took part, see `Mean`."""

Steps = Generator[None, None, None]


class Mean:
    """The average of `source` over all ranks: `start()`, later `yield from wait()`.

    `lows`: where its buckets begin in the flat values, falling, the last 0. `ready(low)` starts
    those that are final, all but the last, which carries the signals and leaves with `start()`.
    `started`: with `keep_started`, this rank's own values when it was started; `in_flight`:
    whether it was started and not waited for.

    Who took part: where the source has more extra elements than CONTROL, rank r's share is in the
    r-th of them (modulo their number: one is a count, one a rank a mask). The average is then over
    the sum of the shares, and `shares` says what came.

    How it travels is the worker's `wire`. With one that leaves most out, parameters travel as what
    they have moved from the worker's `anchor`, and all ranks have to go on from the average.
    """

    def __init__(
        self, worker: "Worker", source: Parameters, in_place: bool = False,
        keep_started: bool = False, lows: Sequence[int] = (0,),
    ):  # fmt: skip
        self.worker, self.source, self.lows = worker, source, lows
        self.result = result = source if in_place else source.like()
        memory = source.memory
        self.started = memory.empty(source.size, source.dtype) if keep_started else None
        self.in_flight = self._arrived = False
        self._control, self._places = result.extra[:CONTROL], result.extra[CONTROL:]
        self.shares = np.zeros(self._places.size, source.dtype)  # on the host
        assert len(lows) == 1 or result.leading, "the signals are not beside the last bucket"
        highs = [result.size, *lows]
        self._parts = [result.flat[a:b] for a, b in zip(lows[:-1], highs, strict=False)]
        self._parts.append(result.buffer[: result.extra.size + highs[-2]])
        extra = result.extra.size
        signed = (0, extra) if result.leading else (result.size, result.size + extra)
        number, last = len(worker.means), len(lows) - 1
        self._pending: list[PendingAllreduce] = [
            self._plan(f"error {number} {i}", low, high, part, signed if i == last else (0, 0))
            for i, (low, high, part) in enumerate(zip(lows, highs, self._parts, strict=False))
        ]
        self.anchored = compresses(worker.wire) and source is worker.parameters
        if self.anchored:
            worker.anchor = worker.keep("anchor", source.flat)
        self._left = 0  # buckets that are on their way
        self._aside = memory.beside()  # what has arrived is read beside what computes

    def ready(self, low: int) -> None:
        """`source.flat[low:]` is final."""
        while self._left < len(self.lows) - 1 and self.lows[self._left] >= low:
            self._send()

    def start(self, share: float = 1.0) -> None:
        """All is final; it may be changed at once unless the mean is in place. `share`: what this
        rank's values count, on average over ranks 1."""
        assert not self.in_flight, "a mean was started that is still in flight"
        assert self._left == len(self.lows) - 1, "the values were never said to be final"
        if share != 1.0 or self.result is not self.source:
            with self.worker.site.updating():
                self._take(share)
        self._sign(share)
        self.in_flight, self._arrived = True, False
        self._send()

    def wait(self) -> Generator[None, None, np.ndarray]:
        """The flat average. NotFinite on every rank if any of them was not finite when it
        started; `worker.stopping` is set on every rank if any was asked to stop."""
        yield from self._arrive()
        self.in_flight, self._left = False, 0
        self.worker.equal |= self.result is self.worker.parameters
        self.worker.mean_gradient |= self.result is self.worker.gradient
        return self.result.flat

    @property
    def arrived(self) -> bool:
        """Whether it was drained, and only has to be waited for."""
        return self.in_flight and self._arrived

    def drain(self) -> Steps:
        """Let it arrive, if it is in flight, and keep it until it is waited for; what its signals
        say is heard at once, and only once."""
        if self.in_flight:
            yield from self._arrive()
            for pending in self._pending:
                pending.restore(pending.state())

    def state(self) -> dict[str, Any]:
        """Of one that is in flight, and has been drained."""
        flights = {str(i): pending.state() for i, pending in enumerate(self._pending)}
        return {
            "result": self.result.flat, "started": self.started, "shares": self.shares,
            "flights": flights,
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """In flight and arrived, as it was saved. Raises BadState."""
        self.in_flight = self._arrived = True
        live = {"result": self.result.flat, "shares": self.shares}
        if self.started is not None:
            live["started"] = self.started
        copy_into(live, {n: state[n] for n in live if n in state}, "average in flight")
        for i, pending in enumerate(self._pending):
            pending.restore(state["flights"][str(i)])

    def _plan(
        self, name: str, low: int, high: int, part: Any, raw: tuple[int, int]
    ) -> "PendingAllreduce":
        """Of the flat values [low, high), in `part`; `raw` are its signals."""
        worker, left_out = self.worker, None
        if worker.wire is None:
            return self._make(part)
        wire = Wire(worker.wire, *raw, shapes=self.source.within(low, high))
        if compresses(worker.wire):
            left_out = compress.memory(wire, part.size, part.dtype)
        elif worker.feedback:
            left_out = 0 * part
        if left_out is not None:
            left_out = worker.keep(name, left_out)
        return self._make(part, wire, left_out)

    def _make(self, part: Any, *wired: Any) -> Any:
        return self.worker.site.plan(part, *wired)

    def _sign(self, share: float) -> None:
        """What goes beside the values: this rank's signals, and that it takes part."""
        put, count = self.source.memory.put, self.shares.size
        put(self._control, self.worker.signals())
        if count:
            own = self.worker.rank % count
            put(self._places, [share if place == own else 0.0 for place in range(count)])

    def _take(self, share: float) -> None:
        values = self.source.flat
        if self.started is not None:
            self.started[...] = values
        xp, result = self.source.memory.module, self.result.flat
        if self.anchored:
            assert self.worker.anchored, "a mean that leaves most out needs ranks to go on from it"
            self.worker.anchored = False
            values = xp.subtract(values, self.worker.anchor, out=result)
        if share != 1.0:
            xp.multiply(values, values.dtype.type(share), out=result)
        elif values is not result:
            result[...] = values

    def _send(self) -> None:
        self._pending[self._left].start()
        self._left += 1

    def _arrive(self) -> Steps:
        for pending in self._pending:
            yield from self.worker.site.wait(pending)
        if not self._arrived:
            self._arrived = True
            yield from self._hear()

    def _hear(self) -> Steps:
        """What came beside the values, once."""
        get = self._aside.get
        if self.shares.size:
            self._divide_by_shares(get(self._places))
        if self.anchored:
            self.result.flat += self.worker.anchor
        yield from self.worker.read_signals(get(self._control))

    def _divide_by_shares(self, means: np.ndarray) -> None:
        size, flat = self.worker.size, self.result.flat
        self.shares[:] = means * size
        total = float(self.shares.sum())
        if total not in (0.0, size):
            flat *= flat.dtype.type(size / total)
