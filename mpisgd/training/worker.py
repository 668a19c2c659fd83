"""What an averaging algorithm may ask for, whichever world it runs in."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from allreduce import arrays
from mpisgd.checkpoint.rests import Rests
from mpisgd.checkpoint.state import copy_into, flatten
from mpisgd.data import Dataset
from mpisgd.data.augment import Augment
from mpisgd.data.shards import Sampler
from mpisgd.models import Model
from mpisgd.training.buckets import borders
from mpisgd.training.gradient import GradientWorker, finite
from mpisgd.training.mean import Mean
from mpisgd.training.model_rounds import ModelRounds
from mpisgd.training.optimisers import EMA, Optimiser
from mpisgd.training.pairs import PairMean
from mpisgd.training.parameters import Parameters
from mpisgd.training.report import PARAMETERS
from mpisgd.training.rounds import GradientRounds
from mpisgd.training.site import Site
from mpisgd.values.errors import NotFinite

Steps = Generator[None, None, None]
NamedMean = TypeVar("NamedMean", bound=Mean)


class Worker(GradientWorker):
    """One rank's model, data and optimiser.

    `parameters`, `gradient`: Parameters with room for a mean's signals. `last`: where to stop.
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
        equal: bool = True,
        wire: str | None = None,
        feedback: bool = False,
    ):
        """`rests`: when the run is saved; `equal`: all ranks begin alike; `wire`: how means
        travel, see allreduce.wire; `feedback`: what rounding leaves out of a mean goes into the
        next; `clip`, `augment`: as of GradientWorker."""
        super().__init__(site, model, dataset, sampler, parameters, clip, augment)
        self.optimiser, self.rate, self.ema = optimiser, rate, ema
        self.last, self.evaluate_every, self.rests = steps, evaluate_every, rests
        self.equal = equal  # all ranks hold the same parameters, by construction
        self.mean_gradient = False  # `gradient` holds the mean over ranks
        self.wire, self.feedback = wire, feedback
        self.anchor: np.ndarray | None = None  # what all ranks held last, where a mean needs it
        self.anchored = True  # since the last mean of parameters
        self.age: int | None = None  # of the last gradient, in updates, if it may be old
        self.partner: int | None = None  # whom it has met in this step, of pairs; -1 for nobody
        self.means: list[Mean] = []  # in the order in which they were named
        self.kept: dict[str, np.ndarray] = {}  # what the algorithm carries on, see `keep`
        self.recorded: Callable[..., ModelRounds] | None = None  # instead of rounds as they come
        self.samples_used: np.ndarray | None = None  # so far, where that is not all
        self._used_until: dict[int, int] = {}  # by step, where it was evaluated
        self._checked_equal = True  # `equal`, at the last check of the parameters
        self._saved: Mapping[str, Any] = {}  # the state to go on from, until all is named again

    def steps(self) -> Iterator[int]:
        """The numbers of the steps to do."""
        self._saved = {}
        while self.step < self.last and not self.stopping:
            self.step += 1
            self.site.begin_step(self.step)
            yield self.step

    def compute_gradient(
        self,
        weighted: bool = False,
        ready: Callable[[int], object] | None = None,
        at: np.ndarray | None = None,
        age: int | None = None,
    ) -> Steps:
        """The mean gradient of this step's batch, at `parameters`, into `gradient`.

        `weighted`: times this batch's share of the global one, so that the mean over ranks is the
        mean over samples. `ready`: see `compute`. `at`: flat parameters of `age` updates ago,
        instead of those of now.
        """
        parameters = self.parameters
        if at is not None:
            parameters = Parameters(parameters.shapes, parameters.dtype, buffer=at)
        yield from self.compute(parameters, ready, self.share() if weighted else 1.0)
        self.mean_gradient, self.age = False, age

    def _given_up(self) -> bool:
        return self.site.abandoned

    def update(self, gradient: np.ndarray) -> None:
        """One optimiser step with `gradient` (flat)."""
        if self.anchor is not None and self.equal and not self.mean_gradient:
            self.anchor[...] = self.parameters.flat  # here ranks part
            self.anchored = True
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

    def merge(
        self, rule: Callable[..., None], mean: Any, started: Any, xi: float, part: Any = None
    ) -> None:
        """Let a delayed average enter the parameters, or a `part` of them, by one of MERGES."""
        self.equal = False
        with self.site.updating():
            rule(self.parameters.flat if part is None else part, mean, started, xi)

    def end_step(self, **own: float) -> Steps:
        """Record the step, `own` columns for those of the worker; evaluate if it is due. Here
        nothing but `step` is in a local variable of the algorithm."""
        self._check()
        columns = {} if self.age is None else {"staleness": self.age}
        if self.partner is not None:
            columns, self.partner = columns | {"partner": self.partner}, -1
        told = {"loss": self.loss, "samples": self.samples, "rate": self.rate(self.step)}
        self.site.end_step(**(told | columns | own))
        if self._evaluates():
            yield from self._evaluate()
        ends = self.step == self.last or self.stopping
        if self.rests is not None and (ends or self.rests.due(self.step)):
            yield from self.rest()
        if self.step == self.last or self.stopping:
            yield from self.conclude()

    def pauses(self) -> bool:
        """Whether more follows on this step than its row, or what evaluations keep."""
        ends = self.step == self.last or self.stopping
        rests = self.rests is not None and self.rests.due(self.step)
        return ends or rests or (self._evaluates() and getattr(self.site, "during", False))

    def conclude(self) -> Steps:
        """The evaluation that the end of the run asks for. No checkpoint knows of it: a run that
        goes on does without."""
        self.settle()
        if not self._evaluates():
            yield from self._evaluate()

    def rest(self) -> Steps:
        """All ranks come to the end of this step with nothing in flight, and are saved there.

        What is in flight is waited for, not consumed; a stop that it brings is heard now. Raises
        NotFinite on every rank rather than save what is not.
        """
        assert self.rests is not None
        self.settle()
        for mean in self.means:
            yield from mean.drain()
        self._note(is_finite(self.state()))
        yield from self.site.rest(self)
        self.rests.rested(self.site.now())
        if self.site.interrupts is not None:
            self.site.interrupts.rested()

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
            "kept": self.kept,
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
        if (used := state.get("kept", {}).get("samples used")) is not None:
            self.samples_used = np.array(used)  # also where the run has ended, and nothing is named
        self._saved = state

    def _check(self) -> None:
        """Whether the step's update and merge have left finite parameters: of finite gradients a
        sum may overflow, or a rate be too high. Where all ranks hold the same, all stop here."""
        with self.site.updating():
            if self.report is not None:
                self.report.finite(PARAMETERS, self.parameters.flat)
                self._checked_equal = self.equal
                return
            fine = finite(self.parameters.flat)
        self._checked_equal = self.equal
        self._judge(fine, self.step)

    def _judge(self, parameters_finite: bool, step: int) -> None:
        super()._judge(parameters_finite, step)
        if self._checked_equal and not parameters_finite:
            raise first_not_finite([step] * self.size)

    def settle(self) -> None:
        """Wait for what the device has still to say of the parameters: where the run is looked at.
        Raises NotFinite where all ranks hold the same."""
        if self.report is not None and self.report.waits:
            self._judge(self.report.parameters(), self.step)

    def read_signals(self, signals: Iterable[float]) -> Steps:
        """What the signals of all ranks, behind an average, say. Raises NotFinite."""
        not_finite, stop, rest = signals
        if not_finite > 0:
            self.settle()
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
        self.settle()
        if self.samples_used is not None:
            self._used_until[self.step] = int(self.samples_used[0])
        yield from self.site.evaluate(self)
        self.loss_sum, self.loss_samples = 0.0, 0

    def samples_until(self, step: int) -> int:
        """Samples of all ranks that have entered the parameters at an evaluation after `step`."""
        return self._used_until.get(step, self.sampler.samples_until(step))

    def rounds(self, quorum: str | int, late: str) -> GradientRounds:
        """Averages of gradients without those who are late. Ask once, before the loop."""
        return GradientRounds(self, quorum, late)

    def model_rounds(
        self, tau: int, quorum: str | int, late: str | None, *, keep_started: bool = False
    ) -> ModelRounds:
        """The same of parameters, every `tau` steps. Ask once, before the loop."""
        make = ModelRounds if self.recorded is None else self.recorded
        return make(self, tau, quorum, late, keep_started)

    def mean(
        self,
        source: Parameters,
        *,
        in_place: bool = False,
        keep_started: bool = False,
        lows: Sequence[int] = (0,),
    ) -> Mean:
        """An average of `source` over all ranks, to be started as often as needed. Name it once,
        before the loop, in the same order on every rank."""
        return self.name(Mean(self, source, in_place, keep_started, lows))

    def pairs(self, source: Parameters) -> PairMean:
        """An average of `source` over this rank and another one, who is drawn for each round. Name
        it once, before the loop."""
        return self.name(PairMean(self, source))

    def name(self, mean: NamedMean) -> NamedMean:
        """The next mean that an algorithm has, as it was saved if it was."""
        saved = self._saved.get("means", {}).get(str(len(self.means)))
        if saved is not None:
            mean.restore(saved)
        self.means.append(mean)
        return mean

    def buckets(self, nbytes: int) -> Mean:
        """The average of `gradient` in parts of about `nbytes`, each on its way as soon as the
        backward pass has it. Ask once, before the loop: the gradient gets a new home, whose
        signals come first, beside the bucket that is ready last."""
        shapes, dtype, extra = self.gradient.shapes, self.gradient.dtype, self.gradient.extra.size
        memory = self.gradient.memory
        self.gradient = Parameters(shapes, dtype, extra, leading=True, memory=memory)
        lows = borders(shapes, nbytes / dtype.itemsize)
        return self.mean(self.gradient, in_place=True, lows=lows)

    def keep(self, name: str, value: Any) -> np.ndarray:
        """An array for what an algorithm carries from step to step: saved, restored, compared.

        It begins as a copy of `value`, a number as an array of one float64; in a run that goes on,
        as it was saved. Name it once, before the loop, and change it in place. Raises BadState.
        """
        assert name not in self.kept, f"{name} is kept twice"
        is_array = arrays.is_array(value) and value.ndim
        self.kept[name] = array = value.copy() if is_array else np.array(value, float, ndmin=1)
        if self._saved:
            saved = self._saved.get("kept", {})
            copy_into({name: array}, {n: saved[n] for n in (name,) if n in saved}, "algorithm")
        return array

    def share(self, steps: int = 1) -> float:
        """What this rank's samples of the last `steps` steps count in a mean over ranks: 1 where
        all ranks had as many."""
        return self.sampler.share(self.rank, self.batch_index, steps)


def is_finite(state: Mapping[str, Any]) -> bool:
    """Whether all arrays of a state are; single numbers are times and counts."""
    arrays = (array for array in flatten(state).values() if array.ndim and array.dtype.kind == "f")
    return all(finite(array.reshape(-1)) for array in arrays)


def first_not_finite(steps: Sequence[int]) -> NotFinite:
    """From the step of each rank where something was not finite, 0 where nothing was."""
    step, rank = min((step, rank) for rank, step in enumerate(steps) if step)
    return NotFinite(f"loss, gradient or parameters not finite on rank {rank} at step {step}")
