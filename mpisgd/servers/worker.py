"""What a worker of parameter servers may ask for: pull, compute, push."""

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from allreduce.errors import Stalled
from mpisgd.checkpoint.state import copy_into
from mpisgd.data import Dataset
from mpisgd.data.augment import Augment
from mpisgd.data.shards import Sampler
from mpisgd.models import Model
from mpisgd.servers.messages import GIVEN_UP, GRADIENT, PULL, Answer, Message, Request
from mpisgd.servers.rows import Rows
from mpisgd.training.gradient import GradientWorker
from mpisgd.training.parameters import Parameters
from mpisgd.training.site import Ready, Work
from mpisgd.values.errors import NotFinite

Steps = Generator[None, None, None]
Reads = Callable[[int], Steps]


# What a checkpoint holds of a worker, beside arrays: numbers, and sets of servers.
NUMBERS = (
    "step", "_batch_index", "_held", "_fresh", "loss", "samples", "loss_sum", "loss_samples",
    "first_not_finite",
)  # fmt: skip
SERVERS = ("_open", "_awaited", "_pushed")


class ServedSite(Protocol):
    """A worker's place in a world. `rank` and `size` are those among the workers."""

    rank: int
    size: int
    asked_to_stop: bool
    paused_s: float
    abandoned: bool  # the last computation was given up: every server watched had sent a notice
    reads: "Reads | None"  # what brings parameters just before a layer uses them, if not pull

    def begin_step(self, step: int) -> None:
        """Start the step's clocks."""

    def compute(self, work: Work, samples: int, ready: Ready | None = None) -> Steps:
        """As Site.compute; given up on the way if it is in vain."""

    def needs(self, high: int) -> None:
        """From a model's forward pass: a layer is about to use all of the parameters to there that
        none has used before. With `reads`."""

    def receive(self, until: float | None = None) -> Generator[None, None, Message | None]:
        """The next reply of any server."""

    def read(self) -> Generator[None, None, Message | None]:
        """The same, in the middle of a step, when none but those asked for can come."""

    def waiting(self, run: Steps) -> Steps:
        """That, as part of the step's waiting."""

    def send(self, server: int, header: Request, payload: np.ndarray | None) -> None:
        """`payload` stays as it is until the server has answered."""

    def watch(self, servers: set[int]) -> None:
        """The servers whose notices, taken together, mean that the next work is in vain."""

    def unwatch(self, server: int) -> None:
        """It has its part: the notices of the others decide about the rest of the work."""

    def lap(self) -> dict[str, float]:
        """How long the step that began last has taken so far, and on what."""

    def record(self, step: int, columns: dict[str, float]) -> None:
        """A row of /steps, in their order."""


class Fate(NamedTuple):
    """What became of a step's gradient: by how many of the shards it was used, at what age."""

    used: int = 0
    staleness: int = -1


class ServedWorker(GradientWorker):
    """A worker whose parameters live with servers. `rank` is its number among the workers.

    To each server one gradient is outstanding at most. With `ahead`, the next is computed while it
    is, at the parameters that came before; so each gradient misses the one of its own worker.
    """

    def __init__(
        self,
        site: ServedSite,
        model: Model,
        dataset: Dataset,
        sampler: Sampler,
        parameters: Parameters,
        shards: Sequence[slice],
        *,
        requeue: bool = False,
        layerwise: bool = False,
        ahead: bool = False,
        pull: str = "answer",
        rows: Rows | None = None,
        clip: float | None = None,
        augment: Augment | None = None,
    ):
        """`shards`: which part of the flat parameters each server has. `layerwise`: a shard's
        gradient leaves as soon as the backward pass has all of it; `pull`: its parameters come
        with the answer to its gradient, are asked for at the start of a step, or, layerwise, just
        before the forward pass uses the first of them. `rows`: what of messages is rows of an
        embedding."""
        super().__init__(site, model, dataset, sampler, parameters, clip, augment)
        self.shards, self.requeue = shards, requeue
        self.layerwise, self.ahead = layerwise, ahead
        self.versions = [-1] * len(shards)  # of the parameters, by shard
        self._batch_index = 1  # which batch: the step, unless dropped batches are computed again
        self.fate = Fate()
        self._open = set(range(len(shards)))
        self._awaited = set(self._open)  # servers that are to answer
        self._pushed: set[int] = set()  # servers that have their part of this step's gradient
        self._read = list(self.versions)  # at which the gradient was computed
        self._held = False  # a gradient is ready, and the one before not answered
        self._spare = self.gradient.like() if ahead else None
        # On a device, gradients are sent from the host: each has its place there.
        self._letters = [self._place() for _ in range(2 if ahead else 1)] if self.report else []
        self._rows: deque[tuple[int, dict[str, float]]] = deque()  # of steps without a fate yet
        self._failed = 0, 0  # (step, worker) where something was not finite, as told
        self._unread: set[int] = set()  # servers whose parameters this step has not read yet
        self.pull_at, self.rows = pull, rows
        self._touched = np.empty(0, np.int64)  # rows of the gradient's batch
        self._known = 0, self._touched  # a batch and its rows
        self._early: tuple[int, Any] = 0, None  # a batch that was read for its rows
        self._fresh = True  # it has no gradient anywhere
        self._heard = Fate()  # of the gradient that is outstanding, from those that have answered

    def pull(self) -> Generator[None, None, bool]:
        """Until there are parameters for the next gradient; whether there is one to compute.

        Every server has answered then; with `ahead`, all of them to the gradient before the last.
        Raises NotFinite once all have ended, if some worker's loss or gradient was not finite.
        """
        ahead = self.ahead and not self._fresh and not self._held
        fate = None if ahead else (yield from self._hear())
        self._end_step(fate)
        if self._held:
            self._held = False
            self._push_rest()
        if not self._open:
            while self._rows:  # computed ahead, and wanted by nobody
                self._record(Fate())
            if self._failed[0]:
                raise not_finite(*self._failed)
            return False
        first, self.step, self._fresh = self._fresh, self.step + 1, False
        if self.pull_at != "answer" and not first:
            self._unread = set(range(1, len(self.shards)))
        self._read = list(self.versions)
        self.site.begin_step(self.step)
        self.site.watch(self._open)
        return True

    def compute_gradient(self) -> Steps:
        """Of this step's batch, at the parameters that were pulled; parts that are ready are
        pushed if they are to be."""
        if self.layerwise:
            self.samples = len(self.indices())
        if self.rows is not None:
            self._touched = self._rows_of(self._batch_index)
        if self.pull_at == "start":
            yield from self.site.waiting(self._read_to(self.parameters.size))
        elif self.pull_at == "layerwise":
            self.site.reads, self._reading = self._read_to, {"needs": self.site.needs}
        yield from self.compute(self.parameters, self._push_ready if self.layerwise else None)

    def push(self) -> None:
        """The gradient to every server that goes on; nothing but word if it was given up."""
        self.stopping |= self.site.asked_to_stop
        if self.ahead and self._awaited:
            self._held = True
        else:
            self._push_rest()

    @property
    def batch_index(self) -> int:
        return self._batch_index

    @property
    def awaited(self) -> set[int]:
        """Servers that are to answer."""
        return self._awaited

    def go_on(self, step: int, used: int) -> None:
        """Begin behind that step; of the gradients until then, so many were used."""
        self.step, self._batch_index = step, 1 + (used if self.requeue else step)

    def state(self) -> dict[str, Any]:
        """What the rest of the run depends on, while the worker waits for an answer."""
        return {
            "numbers": {name: getattr(self, name) for name in NUMBERS},
            "servers": {name: np.array(sorted(getattr(self, name)), int) for name in SERVERS},
            "versions": np.array([self.versions, self._read]),
            "fates": np.array([self.fate, self._heard]),
            "parameters": self.parameters.flat,
            "gradient": self.gradient.flat if self._held else None,
            "touched": self._touched if self._held else None,
            "rows": {str(i): {"step": k, **row} for i, (k, row) in enumerate(self._rows)},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there: before it works. Raises BadState."""
        for name in NUMBERS:
            setattr(self, name, state["numbers"][name])
        for name in SERVERS:
            setattr(self, name, set(state["servers"][name].tolist()))
        self.versions, self._read = state["versions"].tolist()
        self.fate, self._heard = (Fate(*fate) for fate in state["fates"].tolist())
        live = {"parameters": self.parameters.flat}
        if self._held:
            live["gradient"] = self.gradient.flat
        copy_into(live, {name: state[name] for name in live}, "worker")
        self._touched = state.get("touched", self._touched)
        if self._held and self._letters:
            self._letters[0][...] = state["gradient"]
        rows = [dict(row) for _, row in sorted(state.get("rows", {}).items(), key=_order)]
        self._rows = deque((row.pop("step"), row) for row in rows)

    def _place(self) -> np.ndarray:
        memory: Any = self.gradient.memory
        return memory.pinned(self.gradient.size, self.gradient.dtype)

    def _bring(self) -> None:
        memory: Any = self.gradient.memory
        memory.to_host(self._letters[0], self.gradient.flat)

    def _push_ready(self, low: int) -> None:
        """The shards whose gradient is final, now that all of it from `low` on is. Shard 0 is the
        last in any case: it goes when the loss is known."""
        for server in sorted(self._open - self._pushed - {0}, reverse=True):
            if self.shards[server].start >= low:
                self._send(server, loss=0.0)
                self._pushed.add(server)
                self.site.unwatch(server)

    def _push_rest(self) -> None:
        abandoned = self.site.abandoned
        for server in sorted(self._open - self._pushed):
            self._send(server, self.loss, abandoned)
        self._pushed.clear()
        self._awaited = set(self._open)
        if self._spare is not None:  # the servers may still need this one when the next is made
            self.gradient, self._spare = self._spare, self.gradient
            self._letters.reverse()

    def _send(self, server: int, loss: float, abandoned: bool = False) -> None:
        if self.first_not_finite:
            own = self.first_not_finite, self.rank
            self._failed = min(own, self._failed) if self._failed[0] else own
        header = Request(
            self.step, self._read[server], 0 if abandoned else self.samples, loss,
            GIVEN_UP if abandoned else GRADIENT, *self._failed, int(self.stopping),
            self.site.paused_s,
        )  # fmt: skip
        whole = self._letters[0] if self._letters else self.gradient.flat
        part = whole[self.shards[server]]
        payload = None if abandoned else part
        if self.rows is not None:
            following = self._rows_of(self._following) if self.rows.pulled else self._touched[:0]
            payload = self.rows.request(server, payload, self._touched, following)
        self.site.send(server, header, payload)

    @property
    def _following(self) -> int:
        """Which batch the parameters that come next are for."""
        return self._batch_index if self._fresh else self._batch_index + 1

    def batch(self, batch_index: int) -> tuple[np.ndarray, np.ndarray]:
        """As of any worker; what was read for its rows is not read again to be worked on."""
        (number, read), self._early = self._early, (0, None)
        return read if number == batch_index else super().batch(batch_index)

    def _rows_of(self, batch_index: int) -> np.ndarray:
        """The rows of the embedding that the batch touches."""
        if self._known[0] != batch_index and self.rows is not None:
            self._early = batch_index, self.batch(batch_index)
            self._known = batch_index, self.rows.of(self._early[1][0])
        return self._known[1]

    def _hear(self) -> Generator[None, None, Fate]:
        """Until every server has answered: what became of the gradient they had."""
        while self._awaited:
            message = yield from self.site.receive()
            if message is None:
                waited = ", ".join(map(str, sorted(self._awaited)))
                raise Stalled(f"worker {self.rank} waits for server {waited} in vain")
            answer = Answer(*message.header)
            self._take(message.source, answer, message.payload)
            heard, staleness = self._heard, int(answer.staleness)
            self._heard = Fate(heard.used + int(answer.used), max(heard.staleness, staleness))
        fate, self._heard = self._heard, Fate()
        return fate

    def _read_to(self, high: int) -> Steps:
        """Pull the shards that begin before `high` and were not read in this step. Shard 0 has come
        with the answer to its gradient, and before the first step so have all."""
        wanted = {server for server in self._unread if self.shards[server].start < high}
        self._unread -= wanted
        wanted &= self._open
        for server in sorted(wanted):
            own = self.step, self.versions[server], 0, 0.0, PULL, *self._failed
            self.site.send(server, Request(*own, int(self.stopping), self.site.paused_s), None)
        while wanted:
            message = yield from self.site.read()
            if message is None:
                waited = ", ".join(map(str, sorted(wanted)))
                raise Stalled(f"worker {self.rank} waits for parameters of server {waited} in vain")
            self._take(message.source, Answer(*message.header), message.payload)
            self._read[message.source] = self.versions[message.source]
            wanted.discard(message.source)

    def _take(self, server: int, answer: Answer, payload: np.ndarray | None) -> None:
        self._awaited.discard(server)
        if payload is not None:
            part = self.parameters.flat[self.shards[server]]
            if self.rows is None or payload.size == part.size:
                self.parameters.memory.put(part, payload)
            else:
                layout = self.rows.layouts[server]
                part[layout.elements(layout.here(self._rows_of(self._following)))] = payload
            self.versions[server] = int(answer.version)
        self.site.paused_s = max(self.site.paused_s, answer.paused_s)
        self.stopping |= bool(answer.stop)
        if answer.failed_step:
            failed = int(answer.failed_step), int(answer.failed_worker)
            self._failed = min(failed, self._failed) if self._failed[0] else failed
        if answer.last:
            self._open.discard(server)

    def _end_step(self, fate: Fate | None) -> None:
        """The step's own row is there; `fate`: of the first that has none."""
        if self._fresh:
            return
        samples = 0 if self.site.abandoned else self.samples
        self._rows.append((self.step, {"loss": self.loss, "samples": samples} | self.site.lap()))
        if fate is not None:
            self._record(fate)
        if not self.requeue or self.fate.used:
            self._batch_index += 1

    def _record(self, fate: Fate) -> None:
        self.fate = fate
        step, columns = self._rows.popleft()
        told = {"used": int(fate.used > 0), "staleness": fate.staleness}
        self.site.record(step, columns | told)


def _order(item: tuple[str, Any]) -> int:
    return int(item[0])


def not_finite(step: int, worker: int) -> NotFinite:
    """As the run reports it."""
    return NotFinite(f"loss, gradient or parameters not finite on worker {worker} at step {step}")
