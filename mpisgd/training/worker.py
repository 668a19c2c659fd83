"""What an averaging algorithm may ask for, whichever world it runs in."""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mpisgd.checkpoint.rests import Rests
from mpisgd.checkpoint.state import copy_into
from mpisgd.data import Dataset
from mpisgd.data.augment import Augment
from mpisgd.data.shards import Sampler
from mpisgd.models import Model
from mpisgd.training.gradient import GradientWorker, NotFinite
from mpisgd.training.optimisers import EMA, Optimiser
from mpisgd.training.parameters import Parameters
from mpisgd.training.site import PendingAllreduce, Site

if TYPE_CHECKING:
    from mpisgd.training.buckets import Buckets

CONTROL = 3
"""Elements behind every averaged buffer, [not finite, asked to stop, asked to rest]: each mean
carries them, so that all ranks learn of a NaN, a signal or a checkpoint that is due at the same
merge, without a message of its own."""

Steps = Generator[None, None, None]


class Worker(GradientWorker):
    """One rank's model, data and optimiser.

    `parameters`, `gradient`: Parameters with CONTROL extra elements. `last`: where to stop.
    """

    site: Site

    def __init__(
        self,
        site: Site,
        model: Model,
        dataset: Dataset,
        sampler: Sampler,
        optimiser: Optimiser,
        rate: Callable[[int], float],
        steps: int,
        parameters: Parameters,
        ema: EMA | None = None,
        evaluate_every: int = 0,
        *,
        clip: float | None = None,
        augment: Augment | None = None,
        rests: Rests | None = None,
    ):
        """`rests`: when the run is saved; `clip`, `augment`: as of GradientWorker."""
        super().__init__(site, model, dataset, sampler, parameters, clip, augment)
        self.optimiser, self.rate, self.ema = optimiser, rate, ema
        self.last, self.evaluate_every, self.rests = steps, evaluate_every, rests
        self.equal = True  # all ranks hold the same parameters, by construction
        self.mean_gradient = False  # `gradient` holds the mean over ranks
        self.past: deque[Parameters] = deque()  # earlier parameters, see `remember`
        self.age = 0  # of the last gradient, in updates
        self.means: list[Mean] = []  # in the order in which they were named
        self._saved_means: Mapping[str, Any] = {}  # by that order, until they are named again

    def steps(self) -> Iterator[int]:
        """The numbers of the steps to do."""
        while self.step < self.last and not self.stopping:
            self.step += 1
            self.site.begin_step(self.step)
            yield self.step

    def compute_gradient(
        self, weighted: bool = False, age: int = 0, ready: Callable[[int], object] | None = None
    ) -> Steps:
        """The mean gradient of this step's batch, at `parameters`, into `gradient`.

        `weighted`: times this batch's share of the global one, so that the mean over ranks is the
        mean over samples. `age`: at the parameters of so many updates ago, see `remember`.
        `ready`: see `compute`.
        """
        parameters = self.past[-1 - age] if age else self.parameters
        share = self._share() if weighted else 1.0
        yield from self.compute(parameters, ready, share)
        self.mean_gradient, self.age = False, age

    def remember(self, most: int) -> None:
        """Keep the parameters as they are, and those of the `most` times before."""
        copy = self.past.popleft() if len(self.past) > most else self.parameters.like()
        copy.flat[...] = self.parameters.flat
        self.past.append(copy)

    def update(self, gradient: np.ndarray) -> None:
        """One optimiser step with `gradient` (flat)."""
        self.equal = self.equal and self.mean_gradient
        with self.site.updating():
            self.optimiser.step(self.parameters.flat, gradient, self.rate(self.step))
            if self.ema is not None:
                self.ema.update(self.parameters.flat)

    def set_parameters(self, mean: np.ndarray) -> None:
        """Go on from the average of all ranks' parameters, which was found to be finite."""
        with self.site.updating():
            self.parameters.flat[...] = mean
        self.equal = True

    def merge(self, rule: Callable[..., None], mean: np.ndarray, started: Any, xi: float) -> None:
        """Let a delayed average enter the parameters, by one of merges.MERGES."""
        self.equal = False
        with self.site.updating():
            rule(self.parameters.flat, mean, started, xi)

    def end_step(self) -> Steps:
        """Record the step; evaluate if it is due. Here nothing but `step` is in a local variable
        of the algorithm."""
        columns = {"staleness": self.age} if self.past else {}
        self.site.end_step(
            loss=self.loss, samples=self.samples, rate=self.rate(self.step), **columns
        )
        if self._evaluates():
            yield from self._evaluate()
        ends = self.step == self.last or self.stopping
        if self.rests is not None and (ends or self.rests.due(self.step)):
            yield from self.rest()
        if self.step == self.last or self.stopping:
            yield from self.conclude()

    def conclude(self) -> Steps:
        """The evaluation that the end of the run asks for. No checkpoint knows of it: a run that
        goes on does without."""
        if not self._evaluates():
            yield from self._evaluate()

    def rest(self) -> Steps:
        """All ranks come to the end of this step with nothing in flight, and are saved there.

        What is in flight is waited for, not consumed; a stop that it brings is heard now. Raises
        NotFinite on every rank rather than save what is not.
        """
        assert self.rests is not None
        for mean in self.means:
            yield from mean.drain()
        yield from self.site.rest(self)
        self.rests.rested(self.site.now())

    def state(self) -> dict[str, Any]:
        """What the rest of the run depends on, at a rest: see checkpoint.state."""
        statistics = getattr(self.model, "statistics", None)
        return {
            "step": self.step,
            "equal": self.equal,
            "loss_sum": self.loss_sum,
            "loss_samples": self.loss_samples,
            "parameters": self.parameters.flat,
            "optimiser": self.optimiser.state(),
            "ema": None if self.ema is None else self.ema.state(),
            "statistics": None if statistics is None else statistics.buffer,
            "past": {str(age): past.flat for age, past in enumerate(self.past)},
            "means": {str(i): mean.state() for i, mean in enumerate(self.means) if mean.in_flight},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there: before the algorithm begins. Raises BadState."""
        self.step, self.equal = state["step"], bool(state["equal"])
        self.loss_sum, self.loss_samples = state["loss_sum"], state["loss_samples"]
        live = {"parameters": self.parameters.flat}
        statistics = getattr(self.model, "statistics", None)
        if statistics is not None:
            live["statistics"] = statistics.buffer
        copy_into(live, {n: state[n] for n in ("parameters", "statistics") if n in state}, "model")
        copy_into(self.optimiser.state(), state.get("optimiser", {}), "optimiser")
        if self.ema is not None:
            copy_into(self.ema.state(), state.get("ema", {}), "moving average")
        for _, flat in sorted(state.get("past", {}).items(), key=lambda item: int(item[0])):
            self.past.append(self.parameters.like())
            copy_into({"past": self.past[-1].flat}, {"past": flat}, "earlier parameters")
        self._saved_means = state.get("means", {})

    def read_signals(self, extra: np.ndarray) -> Steps:
        """What the signals of all ranks, behind an average, say. Raises NotFinite."""
        not_finite, stop, rest = extra.tolist()
        if not_finite > 0:
            raise first_not_finite((yield from self.site.gather(self.first_not_finite)))
        if stop > 0:
            self.stopping = True
        if rest > 0 and self.rests is not None:
            self.rests.asked = True

    def signals(self) -> tuple[bool, bool, bool]:
        """This rank's own, to stand behind what it averages."""
        rests = self.rests
        asks = rests is not None and rests.asks(self.rank, self.site.now())
        return self.first_not_finite > 0, self.site.asked_to_stop, asks

    def _evaluates(self) -> bool:
        """Whether an evaluation is due, wherever the run ends."""
        return bool(self.evaluate_every) and self.step % self.evaluate_every == 0

    def _evaluate(self) -> Steps:
        yield from self.site.evaluate(self)
        self.loss_sum, self.loss_samples = 0.0, 0

    def mean(
        self, source: Parameters, *, in_place: bool = False, keep_started: bool = False
    ) -> "Mean":
        """An average of `source` over all ranks, to be started as often as needed. Name it once,
        before the loop, in the same order on every rank."""
        mean = Mean(self, source, in_place, keep_started)
        saved = self._saved_means.get(str(len(self.means)))
        if saved is not None:
            mean.restore(saved)
        self.means.append(mean)
        return mean

    def buckets(self, nbytes: int) -> "Buckets":
        """Averages of `gradient` in parts of about `nbytes`, each on its way as soon as the
        backward pass has it. Ask once, before the loop."""
        from mpisgd.training.buckets import Buckets  # which stands on this module

        return Buckets(self, nbytes)

    def _share(self) -> float:
        """What this rank's batch counts in a mean over ranks."""
        sizes = self.sampler.batch_sizes(self.batch_index)
        return sizes[self.rank] * self.size / sum(sizes) if len(set(sizes)) > 1 else 1.0


def first_not_finite(steps: Sequence[int]) -> NotFinite:
    """From the step of each rank where something was not finite, 0 where nothing was."""
    step, rank = min((step, rank) for rank, step in enumerate(steps) if step)
    return NotFinite(f"loss or gradient not finite on rank {rank} at step {step}")


class Mean:
    """The average of one buffer over all ranks: `start()`, later `yield from wait()`.

    `started`: with `keep_started`, this rank's own values when it was started; `in_flight`:
    whether it was started and not waited for.
    """

    def __init__(self, worker: Worker, source: Parameters, in_place: bool, keep_started: bool):
        self.worker, self.source = worker, source
        self.result = source if in_place else source.like()
        self.started = np.empty_like(source.flat) if keep_started else None
        self.in_flight = False
        self.pending: PendingAllreduce = worker.site.plan(
            source.buffer, None if in_place else self.result.buffer
        )

    def start(self) -> None:
        """Copy the source and begin; it may be changed at once unless the mean is in place."""
        self.source.extra[:] = self.worker.signals()
        if self.started is not None:
            self.started[...] = self.source.flat
        self.in_flight = True
        self.pending.start()

    def wait(self) -> Generator[None, None, np.ndarray]:
        """The flat average. NotFinite on every rank if any of them was not finite when it
        started; `worker.stopping` is set on every rank if any was asked to stop."""
        yield from self.worker.site.wait(self.pending)
        yield from self.worker.read_signals(self.result.extra)
        self.in_flight = False
        self.worker.equal |= self.result is self.worker.parameters
        self.worker.mean_gradient |= self.result is self.worker.gradient
        return self.result.flat

    def drain(self) -> Steps:
        """Let it arrive, if it is in flight, and keep it until it is waited for; what its signals
        say is heard at once, and only once."""
        if self.in_flight:
            yield from self.worker.site.wait(self.pending)
            yield from self.worker.read_signals(self.result.extra)
            self.result.extra[:] = 0
            self.pending.restore(self.pending.state())

    def state(self) -> dict[str, Any]:
        """Of one that is in flight, and has been drained."""
        return {
            "result": self.result.flat, "started": self.started, "flight": self.pending.state(),
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """In flight and arrived, as it was saved."""
        self.in_flight = True
        live = {"result": self.result.flat}
        if self.started is not None:
            live["started"] = self.started
        copy_into(live, {name: state[name] for name in live}, "average in flight")
        self.pending.restore(state["flight"])
