"""What the server loop may ask for: one shard of the parameters, and the workers that use it.

A shard *ends* with the first update by which it has used `steps` times as many gradients as make a
step; the learning rate is that of step 1 + used // (gradients that make a step). So every policy
has the same rate after equally many samples, and `--steps` means the same amount of work.

Shards decide alone, unless reads are to be *consistent*: then server 0 decides for all. Whatever it
does with a gradient, drop it or use it, the others do with their parts of it, in the same order. So
all shards go through the same updates, and what a worker is answered has one version in all of
them. No old versions are kept, and nobody waits in a circle: a worker pushes to all shards without
waiting in between, so what a verdict is about has been sent to everyone.
"""

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from allreduce.errors import Stalled
from mpisgd.algorithms.policies import Policy
from mpisgd.servers import shard_state
from mpisgd.servers.mean import mean, weights
from mpisgd.servers.messages import (
    DROPPED,
    ENDED,
    GIVEN_UP,
    LEADER,
    PULL,
    USED,
    Answer,
    Message,
    Push,
    Request,
    Verdict,
    octets,
)
from mpisgd.servers.patience import Patience
from mpisgd.servers.rows import Read, Rows
from mpisgd.training.gradient import finite
from mpisgd.training.optimisers import EMA, Optimiser
from mpisgd.training.site import ServerSite

if TYPE_CHECKING:
    from mpisgd.checkpoint.rests import Rests

Steps = Generator[None, None, None]


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
        consistent: bool = False,
        rests: "Rests | None" = None,
        pulled: bool = False,
        rows: Rows | None = None,
    ):
        """`parameters`: (shard,) flat, updated in place; `steps`, `consistent`: see above.
        `rests`: when the run is saved, which server 0 decides. `pulled`: parameters leave when
        a worker asks for them, not with the answer to its gradient. `rows`: what of messages is
        rows of an embedding."""
        self.site, self.index, self.parameters = site, index, parameters
        self.optimiser, self.rate, self.ema, self.policy = optimiser, rate, ema, policy
        self.goal, self.evaluate_every = steps * policy.step, evaluate_every
        self.leads, self.follows = consistent and index == 0, consistent and index > 0
        self.pulled, self.rows = pulled, rows
        self.version = self.used = 0
        self.waiting: dict[int, Push] = {}
        self.patience = Patience(policy, workers)
        self.lost: set[int] = set()
        self.asked = False  # to stop
        self.defers = rests is not None and index > 0  # to server 0, until the run is saved
        self.stopping = False  # as asked, or because of a failure
        self.failed: tuple[int, int] | None = None  # (step, worker) where all was not finite
        self.samples_computed = self.samples_used = 0
        self.loss_sum, self.loss_samples = 0.0, 0  # since the last evaluation
        self._open = set(range(workers))  # not told that the shard has ended
        self._versions = dict.fromkeys(range(workers), -1)  # what each has last been given
        self._noticed: set[int] = set()
        self._verdicts: deque[Verdict] = deque()
        self._ended = False  # server 0 has ended early
        self.rests = rests if index == 0 else None
        self._greets = set(self._open)  # workers that are sent parameters they did not ask for
        self._dismissing = self._saved = False  # taking leave; saved before that
        self.steps_done = np.zeros((2, workers), int)  # of each worker: answered, and used
        self._answers: list[int] = []  # workers whose gradients went into the last update
        self._again: deque[Push] = deque()  # gradients to be looked at again after a rest
        self._owes = False  # an evaluation, that of the step where it was at rest
        self._sum = np.empty_like(parameters)
        self._scratch = np.empty_like(parameters)

    @property
    def going(self) -> bool:
        """Whether there is another update to make. A server that follows never stops alone."""
        return self.used < self.goal and not (self._ended if self.follows else self.stopping)

    @property
    def serves(self) -> set[int]:
        """Workers that have not been told that the shard has ended."""
        return self._open

    @property
    def due(self) -> set[int]:
        """Workers whose next message will come without another word to them."""
        return self._open - self._greets - self.waiting.keys()

    @property
    def step(self) -> int:
        """Steps done, by the gradients used."""
        return self.used // self.policy.step

    def now(self) -> float:
        return self.site.now()

    def welcome(self) -> Steps:
        """The first parameters, to all workers; after a rest, the answers that it held back."""
        if self._owes and self.going:
            yield from self._evaluate(final=False)
        self._owes = False
        for worker in sorted(self._greets):
            self._send(worker, used=0, staleness=0, part=self.parameters)
        self._greets = set()
        self._answer()

    def next_push(self, until: float | None = None) -> Generator[None, None, Push | None]:
        """The next gradient; None when the time `until` (s) has passed, or the run is to stop.

        Raises Stalled if nothing comes any more.
        """
        while self.going:
            if self._again:
                held = self._again.popleft()
                if held.samples:
                    return held
                self.reply(held, used=False)  # it was given up
                continue
            message = yield from self.site.receive(until)
            if message is None and until is None and self.going:
                raise Stalled(self._missing())
            push = None if message is None else self._take(message)
            if not self.going or message is None:
                return None
            if push is not None:
                return push
        return None

    def follow(self) -> Generator[None, None, list[Push]]:
        """Do with gradients what server 0 did next: those of an update, none if it made none.

        Raises Stalled if nothing comes any more.
        """
        while not self._verdicts:
            yield from self._hear(f"server {self.index} waits for server 0 in vain")
        verdict, pushes = self._verdicts.popleft(), []
        for worker in verdict.workers:
            while worker not in self.waiting:
                yield from self._hear(f"server {self.index} waits for worker {worker} in vain: "
                                      "server 0 has its gradient")  # fmt: skip
            pushes.append(self.waiting[worker])
        self._ended = verdict.kind == ENDED
        if verdict.kind == USED:
            return pushes
        for push in pushes:
            self.reply(push, used=False)
        return []

    def reply(self, push: Push, used: bool) -> None:
        """Tell the worker whether its gradient was used; fresh parameters come with it."""
        if not used:
            self._announce(DROPPED, [push])
        del self.waiting[push.worker]
        staleness = self.version - push.version - used  # its own update does not count
        update = self.version if used else -1
        part = self._part(push.wanted)
        row = push.row(self.index, update, used, staleness, self.now(), octets(part))
        self.site.record(row)
        self.steps_done[:, push.worker] = push.step, self.steps_done[1, push.worker] + used
        self._send(push.worker, int(used), staleness, part)

    def update(self, batch: Sequence[Push]) -> None:
        """One optimiser step with the mean of the batch over its samples, summed in order of
        workers, so that the bits do not depend on who came first."""
        ordered = sorted(batch, key=lambda push: push.worker)
        rate = self.rate(self.step + 1)
        shares = weights(ordered, self.version, self.policy.by_staleness)
        gradient = mean(ordered, shares, self._sum, self._scratch)
        self.optimiser.step(self.parameters, gradient, rate)
        if not finite(self.parameters):
            self._fail(ordered[0].step, ordered[0].worker)
        if self.ema is not None:
            self.ema.update(self.parameters)
        self.version += 1
        self.used += len(batch)
        self.samples_used += sum(push.samples for push in batch)

    def end_update(self, batch: Sequence[Push]) -> Steps:
        """Evaluate if it is due; answer those whose gradients went in, in order of workers."""
        self._announce(USED, batch)
        self.patience.updated_s = self.now()
        yield from self.site.busy(sum(push.gradient.nbytes for push in batch))
        every, before = self.evaluate_every, (self.used - len(batch)) // self.policy.step
        self._owes = bool(every) and self.step // every > before // every
        if self.going and self._owes:
            yield from self._evaluate(final=False)
            self._owes = False
        self._answers = sorted(push.worker for push in batch)
        if self._is_to_rest(before):
            yield from self.site.rest(self)
        self._answer()

    def dismiss(self) -> Steps:
        """The last evaluation; then tell every worker that the shard has ended."""
        if not self._dismissing:
            if self._leaves_saved and self.failed is None and not self._saved:
                self._saved = True
                yield from self.site.rest(self)
            self._dismissing = True
            if self.leads and self.used < self.goal:
                self.site.announce(Verdict(ENDED))
            yield from self._evaluate(final=True)
            for waiting in sorted(self.waiting.values(), key=lambda push: push.worker):
                self.reply(waiting, used=False)
            if self.policy.abandon:
                self._notify()
        while self._open:
            message = yield from self.site.receive(None)
            if message is None:
                self.lost |= self._open
                return
            push = self._take(message)
            if push is not None:
                self.reply(push, used=False)

    def state(self) -> dict[str, Any]:
        """What the rest of the run depends on, while every worker waits: see checkpoint.state."""
        assert not self._verdicts, "a verdict is not carried out"
        return shard_state.state(self)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there: before it serves. Raises BadState."""
        shard_state.restore(self, state)

    def done(self) -> np.ndarray:
        """`steps_done`, with the answers that are held back."""
        steps = self.steps_done.copy()
        for worker in self._answers:
            steps[:, worker] = self.waiting[worker].step, steps[1, worker] + 1
        return steps

    def forget_workers(self) -> None:
        """Go on with workers that begin anew: what they had sent is lost and computed again, but
        for what is in the last update. After `restore`."""
        for push in self.waiting.values():
            if push.worker not in self._answers:
                self.samples_computed -= push.samples
                self.loss_sum -= push.loss * push.samples
                self.loss_samples -= push.samples
        self.waiting = {worker: self.waiting[worker] for worker in self._answers}
        self._again.clear()
        self.forget_notices()
        self._greets = self._open - set(self._answers)

    def forget_notices(self) -> None:
        """They were on their way when the run was saved: those that still matter are sent again."""
        self._noticed.clear()

    @property
    def _leaves_saved(self) -> bool:
        """Whether it stops, and the run is to be saved before anyone is told."""
        return self.rests is not None and self.stopping and not self._dismissing

    def _is_to_rest(self, before: int) -> bool:
        """Whether the run is to be saved, now that an update has been made; `before`: the steps
        done until then."""
        rests = self.rests
        if rests is None or self.stopping:
            return False
        every = rests.every_steps
        due = every is not None and self.step // every > before // every
        return due or not self.going or rests.asks(0, self.now())

    def _answer(self) -> None:
        """Those whose gradients went into the last update, in order of workers."""
        for worker in self._answers:
            self.reply(self.waiting[worker], used=True)
        self._answers = []
        if self.policy.abandon and self.going:
            self._notify()

    def _announce(self, kind: int, pushes: Sequence[Push]) -> None:
        """Tell the servers that follow, while they do."""
        if self.leads and (self.going or kind == USED):
            self.site.announce(Verdict(kind, tuple(push.worker for push in pushes)))

    def _hear(self, in_vain: str) -> Steps:
        """Take the next message, whatever it is. Raises Stalled, with that text, if none comes."""
        message = yield from self.site.receive(None)
        if message is None:
            raise Stalled(in_vain)
        if message.source == LEADER:
            self._verdicts.append(Verdict(*message.header))
        else:
            self._take(message)

    def _take(self, message: Message) -> Push | None:
        """A message as a push; None if it brings no gradient, which is answered here, or once
        server 0 has."""
        asked, worker = Request(*message.header), message.source
        self.site.paused_s = max(self.site.paused_s, asked.paused_s)
        if asked.failed_step:
            self._fail(int(asked.failed_step), int(asked.failed_worker))
        self.asked |= bool(asked.stop or self.site.asked_to_stop)
        self.stopping |= self.asked and not self.defers
        if asked.kind == PULL:
            self._send(worker, used=0, staleness=0, part=self.parameters)
            return None
        payload = self._scratch[:0] if message.payload is None else message.payload
        read = (
            Read(payload, None, None) if self.rows is None else self.rows.read(self.index, payload)
        )
        push = Push(
            worker, int(asked.step), int(asked.version), int(asked.samples), asked.loss,
            read.gradient, message.arrived_s, read.at, read.wanted, octets(message.payload),
        )  # fmt: skip
        self.waiting[worker] = push
        if asked.kind == GIVEN_UP:
            if not (self.follows and self.going) and not self._leaves_saved:
                self.reply(push, used=False)
            return None
        self.patience.came(push)
        self.samples_computed += push.samples
        self.loss_sum += push.loss * push.samples
        self.loss_samples += push.samples
        return push

    def _fail(self, step: int, worker: int) -> None:
        """Something was not finite there, or in the update with its gradient."""
        failed = step, worker
        self.failed = failed if self.failed is None else min(failed, self.failed)
        self.stopping = True

    def _part(self, wanted: np.ndarray | None) -> np.ndarray | None:
        """The parameters that an answer brings: those `wanted`, None for all; the last time all."""
        if not self.going or (wanted is None and not self.pulled):
            return self.parameters
        return None if self.pulled else self.parameters[wanted]

    def _send(self, worker: int, used: int, staleness: int, part: np.ndarray | None) -> None:
        """The answer, with that part of the parameters."""
        failed_step, failed_worker = self.failed or (0, 0)
        last = not self.going
        self.site.send(
            worker,
            Answer(
                self.version, used, int(last), staleness, int(worker in self._noticed),
                failed_worker, failed_step, int(self.asked or self.stopping), self.site.paused_s,
            ),
            part,
        )  # fmt: skip
        self._noticed.discard(worker)
        self._versions[worker] = self.version
        self.patience.gave(worker, self.now)
        if last:
            self._open.discard(worker)

    def _notify(self) -> None:
        for worker in sorted(self._open - self.waiting.keys() - self._noticed):
            if self._versions[worker] < self.version or not self.going:
                self._noticed.add(worker)
                self.site.notify(worker)

    def _evaluate(self, final: bool) -> Steps:
        yield from self.site.evaluate(self, final)
        self.loss_sum, self.loss_samples = 0.0, 0

    def _missing(self) -> str:
        names = ", ".join(map(str, sorted(self._open - self.waiting.keys()))) or "nobody"
        return (
            f"server {self.index} waits for worker {names} in vain: update {self.version + 1} "
            f"needs {self.policy.group} gradients, {len(self.waiting)} have come"
        )
