"""What a worker of parameter servers may ask for: pull, compute, push."""

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from allreduce.errors import Stalled
from mpisgd.data import Dataset
from mpisgd.data.shards import Sampler
from mpisgd.models import Model
from mpisgd.parameters import Parameters
from mpisgd.server import Answer, Asked, Letter
from mpisgd.worker import NotFinite, Worker

Steps = Generator[None, None, None]


class ServedSite(Protocol):
    """A worker's place in a world, beside what every Site has."""

    rank: int
    size: int
    paused_s: float
    abandoned: bool  # the last computation was given up: every server had sent a notice

    def receive(self, until: float | None = None) -> Generator[None, None, Letter | None]:
        """The next reply of any server."""

    def send(self, server: int, header: Asked, payload: np.ndarray | None) -> None:
        """`payload` stays as it is until the server has answered."""

    def watch(self, servers: set[int]) -> None:
        """The servers whose notices, taken together, mean that the next work is in vain."""


class Fate(NamedTuple):
    """What became of a step's gradient: by how many of the shards it was used, at what age."""

    used: int = 0
    staleness: int = -1


class ServedWorker(Worker):
    """A worker whose parameters live with servers. `rank` is its number among the workers."""

    def __init__(
        self,
        site: Any,
        model: Model,
        dataset: Dataset,
        sampler: Sampler,
        parameters: Parameters,
        shards: Sequence[slice],
        requeue: bool = False,
    ):
        """`shards`: which part of the flat parameters each server has."""
        super().__init__(site, model, dataset, sampler, None, None, 0, parameters)  # type: ignore[arg-type]
        self.shards, self.requeue = shards, requeue
        self.versions = [-1] * len(shards)
        self.deal = 1  # which batch: the step, unless dropped batches are computed again
        self.fate = Fate()
        self._open = set(range(len(shards)))
        self._awaited = set(self._open)

    def pull(self) -> Generator[None, None, bool]:
        """Until every server has answered; whether there is another gradient to compute.

        Raises NotFinite once a server says that some worker's loss or gradient was not finite.
        """
        fate, failed = Fate(), (0, 0)
        while self._awaited:
            letter = yield from self.site.receive()  # type: ignore[attr-defined]
            if letter is None:
                waited = ", ".join(map(str, sorted(self._awaited)))
                raise Stalled(f"worker {self.rank} waits for server {waited} in vain")
            answer = Answer(*letter.header)
            fate = self._take(letter.source, answer, letter.payload, fate)
            if answer.failed_step:
                failed = int(answer.failed_step), int(answer.failed_worker)
        self.fate = fate
        if self.step:
            self._end_step()
        if failed[0] and not self._open:
            raise not_finite(*failed)
        if self._open:
            self.step += 1
            self.site.begin_step(self.step)
            self.site.watch(self._open)  # type: ignore[attr-defined]
        return bool(self._open)

    def push(self) -> None:
        """The gradient to every server that goes on; nothing but word if it was given up."""
        site: Any = self.site
        abandoned = int(site.abandoned)
        self.stopping |= site.asked_to_stop
        for server in sorted(self._open):
            header = Asked(
                self.step, self.versions[server], 0 if abandoned else self.samples, self.loss,
                abandoned, self.first_not_finite, int(self.stopping), site.paused_s,
            )  # fmt: skip
            site.send(
                server, header, None if abandoned else self.gradient.flat[self.shards[server]]
            )
        self._awaited = set(self._open)

    def indices(self) -> np.ndarray:
        return self.sampler.indices(self.deal, self.rank)

    def _take(self, server: int, answer: Answer, payload: np.ndarray | None, fate: Fate) -> Fate:
        self._awaited.discard(server)
        self.parameters.flat[self.shards[server]] = payload
        self.versions[server] = int(answer.version)
        site: Any = self.site
        site.paused_s = max(site.paused_s, answer.paused_s)
        self.stopping |= bool(answer.stop)
        if answer.last:
            self._open.discard(server)
        used = fate.used + int(answer.used)
        return Fate(used, max(fate.staleness, int(answer.staleness)))

    def _end_step(self) -> None:
        self.site.end_step(
            loss=self.loss, samples=0 if self.site.abandoned else self.samples,  # type: ignore[attr-defined]
            used=int(self.fate.used > 0), staleness=self.fate.staleness,
        )  # fmt: skip
        if self.fate.used or not self.requeue:
            self.deal += 1


def not_finite(step: int, worker: int) -> NotFinite:
    """As the run reports it."""
    return NotFinite(f"loss or gradient not finite on worker {worker} at step {step}")
