"""What servers tell each other on MPI: shards to be evaluated, and what server 0 has decided."""

from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from allreduce.waiting import wait_for
from mpisgd.mpi import tags
from mpisgd.servers.evaluation import FACTS
from mpisgd.servers.messages import LEADER, Message, Verdict
from mpisgd.servers.roles import Builder


class Verdicts:
    """From server 0 to the others, if reads are consistent.

    A verdict is about gradients that are not answered before, so at most one a worker is under
    way, and they are small: a byte a worker.
    """

    def __init__(self, comm: Any, builder: Builder, number: int, now: Callable[[], float]):
        first, *others = builder.roles.servers
        consistent = builder.experiment.reads == "consistent"
        self.comm, self.now, self.deadline = comm, now, builder.experiment.deadline_s
        self._to = others if consistent and number == 0 else []
        self._source = first if consistent and number > 0 else None
        self._octets = 1 + len(builder.roles.workers)
        self.count = 0  # sent, or come
        self._sends: list[tuple[Any, np.ndarray]] = []

    def send(self, verdict: Verdict) -> None:
        """To every other server."""
        self.count += 1
        octets = np.zeros(self._octets, np.uint8)
        octets[0] = verdict.kind
        octets[1 + np.array(verdict.workers, int)] = 1
        self._sends = [(request, kept) for request, kept in self._sends if not request.Test()]
        self._sends += [(self.comm.Isend(octets, rank, tags.VERDICTS), octets) for rank in self._to]

    def next(self) -> Message | None:
        """The next one, if it has come."""
        if self._source is None or not self.comm.Iprobe(self._source, tags.VERDICTS):
            return None
        octets = np.zeros(self._octets, np.uint8)
        self.comm.Recv(octets, self._source, tags.VERDICTS)
        self.count += 1
        workers = tuple(np.flatnonzero(octets[1:]).tolist())
        return Message(LEADER, Verdict(int(octets[0]), workers), None, self.now())

    def close(self) -> None:
        """Wait until all have left. Raises Stalled after the deadline."""
        _wait(self._sends, self.deadline, "a verdict", self.comm.Get_rank())


class Snapshots:
    """Shards on their way to server 0, where they are evaluated. `sent`: how many from here;
    `taken`: how many came from each server."""

    def __init__(self, comm: Any, builder: Builder, number: int, deadline: float):
        self.comm, self.number, self.shards = comm, number, builder.shards
        self.deadline = deadline
        self.ranks, self.dtype = builder.roles.servers, builder.parameters.dtype
        self.parts = 1 if builder.experiment.ema is None else 2
        self.sent, self.taken = 0, [0] * len(self.ranks)
        self._sends: list[tuple[Any, np.ndarray]] = []

    def send(
        self, label: int, values: dict[str, float], flat: np.ndarray, ema: np.ndarray | None
    ) -> None:
        """To server 0; the arrays are copied."""
        self.sent += 1
        message = self._empty(self.number)
        head, body = self._split(message)
        head[0] = label
        head[1:] = [values[name] for name in FACTS]
        body[0] = flat
        if ema is not None:
            body[1] = ema
        request = self.comm.Isend(
            message, self.ranks[0], tags.SNAPSHOTS + self.number % tags.SNAPSHOTS_COUNT
        )
        self._sends = [(r, kept) for r, kept in self._sends if not r.Test()]
        self._sends.append((request, message))

    def arrived(self) -> Generator[tuple, None, None]:
        """(server, label, facts, shard, its average or None) of what has come."""
        for number, rank in enumerate(self.ranks):
            tag = tags.SNAPSHOTS + number % tags.SNAPSHOTS_COUNT
            while number and self.comm.Iprobe(rank, tag):
                message = self._empty(number)
                self.comm.Recv(message, rank, tag)
                self.taken[number] += 1
                head, body = self._split(message)
                values = dict(zip(FACTS, head[1:].tolist(), strict=True))
                yield number, int(head[0]), values, body[0], body[1] if len(body) > 1 else None

    def close(self) -> None:
        """Wait until all have left. Raises Stalled after the deadline."""
        _wait(self._sends, self.deadline, "its shard", self.comm.Get_rank())

    def _empty(self, number: int) -> np.ndarray:
        shard = self.shards[number]
        octets = self.parts * (shard.stop - shard.start) * self.dtype.itemsize
        return np.zeros(8 * (1 + len(FACTS)) + octets, np.uint8)

    def _split(self, message: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        edge = 8 * (1 + len(FACTS))
        return message[:edge].view(np.float64), message[edge:].view(self.dtype).reshape(
            self.parts, -1
        )


def _wait(sends: list[tuple[Any, np.ndarray]], deadline: float, what: str, rank: int) -> None:
    told = f"rank {rank} cannot hand over {what}: a server takes nothing"
    wait_for(lambda: all(request.Test() for request, _ in sends), lambda: told, deadline)
