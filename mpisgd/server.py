"""What the server loop may ask for: one shard of the parameters, and the workers that use it.

A shard *ends* with the first update by which it has used `steps` times as many gradients as make a
step; the learning rate is that of step 1 + used // (gradients that make a step). So every policy
has the same rate after equally many samples, and `--steps` means the same amount of work.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from allreduce.errors import Stalled
from mpisgd.algorithms.policies import Policy
from mpisgd.optim import EMA, Optimiser

Steps = Generator[None, None, None]


class Asked(NamedTuple):
    """The header of a push. All numbers are small enough for float64."""

    step: int
    version: int  # of the shard that was read
    samples: int  # whose mean gradient this is
    loss: float
    abandoned: int  # 1: no gradient, the work was given up
    not_finite: int  # the step at which something was not finite, 0 if nothing was
    stop: int  # 1: the worker was asked to stop
    paused_s: float  # how long evaluations have stopped the run, as far as the sender knows


class Answer(NamedTuple):
    """The header of a reply."""

    version: int
    used: int  # whether the gradient it answers was used
    last: int  # 1: this shard has ended, push to it no more
    staleness: int
    noticed: int  # 1: a notice was sent since the last reply
    failed_worker: int  # whose step
    failed_step: int  # was not finite; 0: no failure
    stop: int  # 1: this server was asked to stop, and the others must be
    paused_s: float


class Letter(NamedTuple):
    """A message: its sender's number among its kind, a header, and the shard, if any came."""

    source: int
    header: tuple
    payload: np.ndarray | None
    arrived_s: float


class Push(NamedTuple):
    """A gradient at the server. `gradient` (shard,) is valid until the worker is answered."""

    worker: int
    step: int
    version: int
    samples: int
    loss: float
    gradient: np.ndarray
    arrived_s: float


class ServerSite(Protocol):
    """A server's place in a world."""

    asked_to_stop: bool
    paused_s: float

    def now(self) -> float: ...

    def receive(self, until: float | None) -> Generator[None, None, Letter | None]:
        """The next letter; None once `until` has passed, or if none will ever come."""

    def send(self, worker: int, header: Answer, payload: np.ndarray) -> None:
        """`payload` may be changed at once."""

    def notify(self, worker: int) -> None:
        """Tell a worker that what it computes is out of date; at most once a reply."""

    def busy(self, octets: int) -> Steps:
        """The time of adding so many bytes, where time is not measured."""

    def record(self, row: dict[str, float]) -> None:
        """A row of /updates."""

    def evaluate(self, server: "Server", final: bool) -> Steps:
        """Hand in the shard as it is; the whole is evaluated once all shards are there."""


class Server:
    """One shard. `version`: updates so far; `used`: gradients in them; `waiting`: worker -> its
    push that has not been answered; `lost`: workers that were not heard of any more."""

    def __init__(
        self,
        site: ServerSite,
        index: int,
        parameters: np.ndarray,
        workers: int,
        optimiser: Optimiser,
        rate: Callable[[int], float],
        steps: int,
        policy: Policy,
        ema: EMA | None = None,
        evaluate_every: int = 0,
    ):
        """`parameters`: (shard,) flat, updated in place; `steps`: see above."""
        self.site, self.index, self.parameters = site, index, parameters
        self.optimiser, self.rate, self.ema, self.policy = optimiser, rate, ema, policy
        self.goal, self.evaluate_every = steps * policy.step, evaluate_every
        self.version = self.used = 0
        self.waiting: dict[int, Push] = {}
        self.lost: set[int] = set()
        self.stopping = False
        self.failed: tuple[int, int] | None = None  # (step, worker) where all was not finite
        self.samples_computed = self.samples_used = 0
        self.loss_sum, self.loss_samples = 0.0, 0  # since the last evaluation
        self._open = set(range(workers))  # not told that the shard has ended
        self._versions = dict.fromkeys(range(workers), -1)  # what each has last been given
        self._noticed: set[int] = set()
        self._sum = np.empty_like(parameters)
        self._scratch = np.empty_like(parameters)

    @property
    def going(self) -> bool:
        """Whether there is another update to make."""
        return self.used < self.goal and not self.stopping

    @property
    def step(self) -> int:
        """Steps done, by the gradients used."""
        return self.used // self.policy.step

    def now(self) -> float:
        return self.site.now()

    def welcome(self) -> None:
        """The first parameters, to all workers."""
        for worker in sorted(self._open):
            self._send(worker, used=0, staleness=0)

    def next_push(self, until: float | None = None) -> Generator[None, None, Push | None]:
        """The next gradient; None when the time `until` (s) has passed, or the run is to stop.

        Raises Stalled if nothing comes any more.
        """
        while self.going:
            letter = yield from self.site.receive(until)
            if letter is None and until is None:
                raise Stalled(self._missing())
            push = None if letter is None else self._take(letter)
            self.stopping |= self.site.asked_to_stop
            if not self.going or letter is None:
                return None
            if push is not None:
                return push
        return None

    def reply(self, push: Push, used: bool) -> None:
        """Tell the worker whether its gradient was used; fresh parameters come with it."""
        del self.waiting[push.worker]
        staleness = self.version - push.version - used  # its own update does not count
        self._record(push, used, staleness)
        self._send(push.worker, int(used), staleness)

    def update(self, batch: Sequence[Push]) -> None:
        """One optimiser step with the mean of the batch over its samples, summed in order of
        workers, so that the bits do not depend on who came first."""
        ordered = sorted(batch, key=lambda push: push.worker)
        rate = self.rate(self.step + 1)
        self.optimiser.step(self.parameters, self._mean(ordered), rate)
        if self.ema is not None:
            self.ema.update(self.parameters)
        self.version += 1
        self.used += len(batch)
        self.samples_used += sum(push.samples for push in batch)

    def end_update(self, batch: Sequence[Push]) -> Steps:
        """Evaluate if it is due; answer those whose gradients went in, in order of workers."""
        yield from self.site.busy(sum(push.gradient.nbytes for push in batch))
        every, before = self.evaluate_every, (self.used - len(batch)) // self.policy.step
        if self.going and every and self.step // every > before // every:
            yield from self._evaluate(final=False)
        for push in sorted(batch, key=lambda push: push.worker):
            self.reply(push, used=True)
        if self.policy.abandon and self.going:
            self._notify()

    def dismiss(self) -> Steps:
        """The last evaluation; then tell every worker that the shard has ended."""
        if self.failed is None:
            yield from self._evaluate(final=True)
        for waiting in sorted(self.waiting.values(), key=lambda push: push.worker):
            self.reply(waiting, used=False)
        if self.policy.abandon:
            self._notify()
        while self._open:
            letter = yield from self.site.receive(None)
            if letter is None:
                self.lost |= self._open
                return
            push = self._take(letter)
            if push is not None:
                self.reply(push, used=False)

    def _take(self, letter: Letter) -> Push | None:
        """A letter as a push; None if it brings no gradient, which is answered here."""
        asked, worker = Asked(*letter.header), letter.source
        self.site.paused_s = max(self.site.paused_s, asked.paused_s)
        self.stopping |= bool(asked.stop)
        if asked.not_finite and (self.failed is None or self.failed > (asked.not_finite, worker)):
            self.failed = int(asked.not_finite), worker
            self.stopping = True
        push = Push(
            worker, int(asked.step), int(asked.version), int(asked.samples), asked.loss,
            self._scratch[:0] if letter.payload is None else letter.payload, letter.arrived_s,
        )  # fmt: skip
        self.waiting[worker] = push
        if asked.abandoned:
            self.reply(push, used=False)
            return None
        self.samples_computed += push.samples
        self.loss_sum += push.loss * push.samples
        self.loss_samples += push.samples
        return push

    def _send(self, worker: int, used: int, staleness: int) -> None:
        failed_step, failed_worker = self.failed or (0, 0)
        last = not self.going
        self.site.send(
            worker,
            Answer(
                self.version, used, int(last), staleness, int(worker in self._noticed),
                failed_worker, failed_step, int(self.stopping), self.site.paused_s,
            ),
            self.parameters,
        )  # fmt: skip
        self._noticed.discard(worker)
        self._versions[worker] = self.version
        if last:
            self._open.discard(worker)

    def _notify(self) -> None:
        for worker in sorted(self._open - self.waiting.keys() - self._noticed):
            if self._versions[worker] < self.version or not self.going:
                self._noticed.add(worker)
                self.site.notify(worker)

    def _mean(self, ordered: Sequence[Push]) -> np.ndarray:
        """Over samples; a stale gradient may count less. A single one is taken as it is."""
        weights = self._weights(ordered)
        if weights is None:
            first, *others = (push.gradient for push in ordered)
            if not others:
                return first
            np.add(first, others[0], out=self._sum)
            for other in others[1:]:
                np.add(self._sum, other, out=self._sum)
            return np.divide(self._sum, self._sum.dtype.type(len(ordered)), out=self._sum)
        self._sum[...] = 0
        for push, weight in zip(ordered, weights, strict=True):
            np.multiply(push.gradient, weight, out=self._scratch)
            np.add(self._sum, self._scratch, out=self._sum)
        return self._sum

    def _weights(self, ordered: Sequence[Push]) -> list[float] | None:
        """None: all the same, and their sum is 1."""
        samples = [push.samples for push in ordered]
        total = sum(samples)
        weights = [count / total for count in samples] if len(set(samples)) > 1 else None
        if not self.policy.by_staleness:
            return weights
        shares = weights or [1 / len(ordered)] * len(ordered)
        ages = (max(1, self.version - push.version) for push in ordered)
        return [share / age for share, age in zip(shares, ages, strict=True)]

    def _evaluate(self, final: bool) -> Steps:
        yield from self.site.evaluate(self, final)
        self.loss_sum, self.loss_samples = 0.0, 0

    def _record(self, push: Push, used: bool, staleness: int) -> None:
        self.site.record(
            {
                "server": self.index,
                "update": self.version if used else -1,
                "worker": push.worker,
                "step": push.step,
                "version_read": push.version,
                "staleness": staleness,
                "used": int(used),
                "samples": push.samples,
                "arrived_s": push.arrived_s,
                "waited_s": self.now() - push.arrived_s,
            }
        )

    def _missing(self) -> str:
        names = ", ".join(map(str, sorted(self._open - self.waiting.keys()))) or "nobody"
        return (
            f"server {self.index} waits for worker {names} in vain: update {self.version + 1} "
            f"needs {self.policy.group} gradients, {len(self.waiting)} have come"
        )


def unpacked(kind: Any, values: np.ndarray) -> Any:
    """The header of that kind in the first of `values` (float64)."""
    return kind(*values[: len(kind._fields)].tolist())
