"""What servers and workers write to each other, whichever world carries it."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

HEADER_B = 80  # bytes of a message beside its payload
LEADER = -1  # the source of what server 0 tells the other servers
DROPPED, USED, ENDED = range(3)  # what a verdict says
GRADIENT, GIVEN_UP, PULL = range(3)  # what a request is


class Request(NamedTuple):
    """The header of a push or a pull. All numbers are small enough for float64."""

    step: int
    version: int  # of the shard that was read
    samples: int  # whose mean gradient this is
    loss: float  # of the batch; 0 in a message that leaves before it is known
    kind: int  # GRADIENT; GIVEN_UP: there is none; PULL: only parameters are wanted
    failed_step: int  # where something was not finite,
    failed_worker: int  # and whose step it was; 0, 0 if nothing was
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


class Verdict(NamedTuple):
    """What server 0 does next, and the others after it, where reads are consistent.

    kind: DROPPED, USED in the next update, ENDED early; workers: whose outstanding gradients.
    """

    kind: int
    workers: tuple[int, ...] = ()


class Message(NamedTuple):
    """A message: its sender's number among its kind, a header, and the shard, if any came."""

    source: int
    header: tuple
    payload: np.ndarray | None
    arrived_s: float


class Push(NamedTuple):
    """A gradient at the server. `gradient` (shard,), or (elements,) of the elements `at` and zero
    elsewhere, is valid until the worker is answered, with the elements `wanted`; None: all."""

    worker: int
    step: int
    version: int
    samples: int
    loss: float
    gradient: np.ndarray
    arrived_s: float
    at: np.ndarray | None = None
    wanted: np.ndarray | None = None
    octets: int = 0  # of the message that brought it

    def row(
        self, server: int, update: int, used: bool, staleness: int, now: float, answered: int
    ) -> dict[str, float]:
        """What /updates says of it, answered `now` with so many bytes."""
        return {
            "server": server,
            "update": update,
            "worker": self.worker,
            "step": self.step,
            "version_read": self.version,
            "staleness": staleness,
            "used": int(used),
            "samples": self.samples,
            "arrived_s": self.arrived_s,
            "waited_s": now - self.arrived_s,
            "pushed_B": self.octets,
            "answered_B": answered,
        }


def octets(payload: np.ndarray | None) -> int:
    """Bytes of a message with it."""
    return HEADER_B + (0 if payload is None else payload.nbytes)


def unpacked(kind: Any, values: np.ndarray) -> Any:
    """The header of that kind in the first of `values` (float64)."""
    return kind(*values[: len(kind._fields)].tolist())


def saved(messages: Iterable[Message]) -> dict[str, Any]:
    """Messages nobody has read yet, as a state: see checkpoint.state. That the run was asked to
    stop is not for the one that goes on."""
    return {
        str(i): {
            "source": message.source,
            "header": np.array(_going_on(message.header), float),
            "payload": message.payload,
            "arrived_s": message.arrived_s,
        }
        for i, message in enumerate(messages)
    }


def restored(state: Mapping[str, Any]) -> list[Message]:
    """The messages, in their order."""
    ordered = (message for _, message in sorted(state.items(), key=lambda item: int(item[0])))
    return [
        Message(
            message["source"], tuple(message["header"].tolist()), message.get("payload"),
            message["arrived_s"],
        )
        for message in ordered
    ]  # fmt: skip


def _going_on(header: tuple) -> tuple:
    return header._replace(stop=0) if isinstance(header, Request | Answer) else header
