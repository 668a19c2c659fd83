"""From one rank's program to phases: messages become persistent requests, sums become work."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from allreduce.arrays import HOST, Device, Host, summed_in
from allreduce.compress import compresses, compressor
from allreduce.compress import memory as remembered
from allreduce.errors import AllreduceError
from allreduce.phases import Check, Exchange, Peer, Phase, Staged, Work
from allreduce.schedule import Message, Schedule, Step, bounds
from allreduce.wire import Coder, Wire

TAGS_PER_PLAN = 256  # MPI promises 32,767 tags: 127 plans at once


def lower(
    comm: Any,
    schedule: Schedule,
    target: Any,
    memory: Host,
    tag: int,
    chunks: int,
    mean: bool,
    cuda_aware: bool,
    wire: Wire | None = None,
    error: Any = None,
) -> list[Phase]:
    """The phases by which this rank reduces `target` (1-D, in place) on `comm`.

    A mean for which `arrays.summed_in` makes room is summed, and sent, there; rounded at the end.
    `wire`: the format of the messages; `error`: what its rounding leaves out, for the next time.
    """
    wide = summed_in(target, mean, memory)
    if wide is not target:
        return [
            Work(memory, [partial(memory.copy, wide, target)]),
            *lower(comm, schedule, wide, memory, tag, chunks, mean, cuda_aware, wire, error),
            Work(memory, [partial(memory.copy, target, wide)]),
        ]
    if wire is not None and compresses(wire.format) and schedule.rounds:
        return _by_stages(comm, schedule, target, memory, tag, chunks, mean, wire, error)
    edges = bounds(target.size, schedule.segments).tolist()
    steps = schedule.program(comm.Get_rank())
    tags = 1 + max((m.tag for step in steps for m in (*step.sends, *step.receives)), default=0)
    if tags * chunks > TAGS_PER_PLAN:
        raise AllreduceError(
            f"{chunks} chunks of {tags} messages a round: at most {TAGS_PER_PLAN} in all"
        )
    coder = None if wire is None or not steps else Coder(wire, edges, target.dtype)
    if coder is not None:
        _check_host(memory)
    staged = isinstance(memory, Device) and not cuda_aware
    make: Callable[..., _DirectMessages] = _StagedMessages if staged else _DirectMessages
    if coder is not None:
        make = partial(_CodedMessages, coder)
    messages = make(comm, target, memory, edges, steps, tag, chunks)
    phases: list[Phase] = []
    if isinstance(memory, Device) and not (staged and steps):
        phases.append(Work(memory, []))  # MPI must not read before the stream has written
    if coder is not None and error is not None:
        phases.append(Work(memory, [partial(coder.feed, target, error)]))
    for step in steps:
        phases += messages.phases(step)
    if coder is not None:
        phases.append(Work(memory, [partial(coder.round, target)]))
    if mean and target.size:
        phases.append(Work(memory, [partial(memory.divide, target, schedule.size)]))
    return phases


def _by_stages(
    comm: Any,
    schedule: Schedule,
    target: Any,
    memory: Host,
    tag: int,
    chunks: int,
    mean: bool,
    wire: Wire,
    error: Any,
) -> list[Phase]:
    """As `lower`, of what is compressed: `error` is its `compress.memory`, or nobody's."""
    _check_host(memory)
    if error is None:
        error = remembered(wire, target.size, target.dtype)
    coder = compressor(wire, schedule, comm.Get_rank(), target, error, mean)
    phases: list[Phase] = []
    for stage in coder.stages:
        phases.append(Work(memory, [stage.prepare]))
        phases += lower(
            comm, stage.schedule, stage.vector, memory, tag, chunks, stage.mean, False
        )  # fmt: skip
    return [*phases, Work(memory, [coder.finish])]


def _check_host(memory: Host) -> None:
    if memory is not HOST:
        raise AllreduceError("messages in another format: of the host's arrays only")


class _DirectMessages:
    """Messages straight from and to the array's own memory; sums come through scratch."""

    def __init__(self, comm, target, memory, edges, steps, tag, chunks):
        self.comm, self.target, self.memory = comm, target, memory
        self.edges, self.tag, self.chunks = edges, tag, chunks
        sizes = [sum(self._count(m) for m in self._incoming(step)) for step in steps]
        self.scratch = self._scratch(max(sizes, default=0))

    def phases(self, step: Step) -> list[Phase]:
        """Exchange, then add what came through scratch."""
        requests: list[Any] = []
        peers: list[Peer] = []
        operations, used = [], 0
        for receive in step.receives:
            where = landing = self._span(receive)
            if receive.reduce:
                landing = self.scratch[used : used + self._count(receive)]
                used += self._count(receive)
                operations.append(self._addition(where, landing))
            self._request(requests, peers, step.round, receive, landing, "receive from")
        for send in step.sends:
            self._request(requests, peers, step.round, send, self._span(send), "send to")
        if not requests:
            return []
        if self.memory is HOST:
            return [Exchange(requests, peers, operations)]
        return [Exchange(requests, peers), Work(self.memory, operations)]

    def _addition(self, where: Any, landing: Any) -> Callable[[], None]:
        """Add what has landed."""
        if self.memory is not HOST:
            return partial(self.memory.add, where, landing)
        if where.size == 1 and where.dtype.kind == "f":
            return partial(_add_one, where, landing)
        return partial(np.add, where, landing, where)  # straight to NumPy: 0.3 us less

    def _incoming(self, step: Step) -> list[Message]:
        """The messages of a step that need scratch."""
        return [message for message in step.receives if message.reduce]

    def _scratch(self, count: int) -> Any:
        return self.memory.apart(self.target, count)

    def _count(self, message: Message) -> int:
        return self.edges[message.high] - self.edges[message.low]

    def _span(self, message: Message) -> Any:
        return self.target[self.edges[message.low] : self.edges[message.high]]

    def _request(self, requests, peers, number, message: Message, span: Any, action: str) -> None:
        """One persistent request a chunk. Both ends skip what is empty."""
        make = self.comm.Send_init if action == "send to" else self.comm.Recv_init
        memory = self.memory if hasattr(span, "__cuda_array_interface__") else HOST
        for chunk, (piece,) in enumerate(self._cuts(span)):
            octets = memory.octets(piece)
            tag = self.tag + message.tag * self.chunks + chunk
            requests.append(make(octets, message.peer, tag))
            peers.append(Peer(action, message.peer, number, octets.size))

    def _cuts(self, *spans: Any) -> list[tuple[Any, ...]]:
        """Spans of one size in as many pieces as messages are cut in, none of them empty."""
        size = spans[0].size
        edges = bounds(size, min(self.chunks, size) or 1).tolist()
        return [
            tuple(span[low:high] for span in spans) for low, high in pairwise(edges) if low < high
        ]


def _add_one(where: Any, landing: Any) -> None:
    """The same bits as np.add, which takes longer for one element (0.7 us) than for two (0.3)."""
    where[0] += landing[0]


class _StagedMessages(_DirectMessages):
    """Messages through pinned host memory, for an MPI that does not know devices."""

    def __init__(self, comm, target, memory, edges, steps, tag, chunks):
        super().__init__(comm, target, memory, edges, steps, tag, chunks)
        outgoing = [sum(self._count(m) for m in step.sends) for step in steps]
        self.outgoing = memory.pinned(max(outgoing, default=0), target.dtype)
        self.landed = memory.empty(self.scratch.size, target.dtype)

    def phases(self, step: Step) -> list[Phase]:
        """Each piece of a message is copied out, sent, copied in and added by itself."""
        requests: list[Any] = []
        peers: list[Peer] = []
        copies: list[Callable[[], None]] = []
        landings: list[list[Callable[[], None]]] = []
        for message, there, here in self._pairs(step.receives, self.scratch):
            self._request(requests, peers, step.round, message, here, "receive from")
            landings += [self._landing(message, *cut) for cut in self._cuts(there, here)]
        for message, there, here in self._pairs(step.sends, self.outgoing):
            self._request(requests, peers, step.round, message, here, "send to")
            cuts = self._cuts(here, there)
            copies += [partial(self.memory.to_host, *cut) for cut in cuts]
        if not requests:
            return []
        return [Staged(self.memory, requests, peers, copies, landings)]

    def _pairs(
        self, messages: Sequence[Message], pinned: Any
    ) -> Iterator[tuple[Message, Any, Any]]:
        """Each message, where it is on the device, and its share of the host's memory."""
        used = 0
        for message in messages:
            count = self._count(message)
            yield message, self._span(message), pinned[used : used + count]
            used += count

    def _landing(self, message: Message, where: Any, here: Any) -> list[Callable[[], None]]:
        """What brings a piece that has come in."""
        if not message.reduce:
            return [partial(self.memory.to_device, where, here)]
        offset = (here.ctypes.data - self.scratch.ctypes.data) // here.itemsize
        landed = self.landed[offset : offset + here.size]
        return [
            partial(self.memory.to_device, landed, here),
            partial(self.memory.add, where, landed),
        ]

    def _incoming(self, step: Step) -> list[Message]:
        return list(step.receives)

    def _scratch(self, count: int) -> Any:
        return self.memory.pinned(count, self.target.dtype)


class _CodedMessages(_DirectMessages):
    """Messages in another format than the array's, through scratch on both sides."""

    def __init__(self, coder, comm, target, memory, edges, steps, tag, chunks):
        self.coder = coder
        super().__init__(comm, target, memory, edges, steps, tag, chunks)
        outgoing = [sum(self._octets(m) for m in step.sends) for step in steps]
        self.outgoing = np.empty(max(outgoing, default=0), np.uint8)
        incoming = [sum(self._octets(m) for m in step.receives) for step in steps]
        self.scratch = np.empty(max(incoming, default=0), np.uint8)

    def phases(self, step: Step) -> list[Phase]:
        """Encode and round what is sent, exchange, then add or store what came."""
        requests: list[Any] = []
        peers: list[Peer] = []
        encode, decode, used = [], [], 0
        for receive in step.receives:
            landing = self.scratch[used : used + self._octets(receive)]
            used += landing.size
            decode.append(partial(self._land, receive, landing))
            self._request(requests, peers, step.round, receive, landing, "receive from")
        used = 0
        for send in step.sends:
            leaving = self.outgoing[used : used + self._octets(send)]
            used += leaving.size
            ends = self.edges[send.low], self.edges[send.high]
            encode.append(partial(self.coder.send, self.target, *ends, leaving))
            self._request(requests, peers, step.round, send, leaving, "send to")
        if not requests:
            return []
        return [Work(self.memory, encode), Exchange(requests, peers, decode)]

    def _land(self, message: Message, landing: Any) -> None:
        came = self.coder.receive(landing, self.edges[message.low], self.edges[message.high])
        where = self._span(message)
        if message.reduce:
            np.add(where, came, out=where)
        else:
            where[...] = came

    def _octets(self, message: Message) -> int:
        return self.coder.octets(self.edges[message.low], self.edges[message.high])

    def _incoming(self, step: Step) -> list[Message]:
        return []


def exchange_maxima(
    comm: Any,
    values: dict[str, int],
    tag: int,
    compare: Callable[[dict[str, int], dict[str, int]], None],
) -> list[Phase]:
    """Phases that hand `compare` the largest and smallest of every value over all ranks.

    Maxima by dissemination: in round k, to rank + 2^k from rank - 2^k. The pattern does not
    depend on the values, so ranks that disagree still understand one another.
    """
    rank, size = comm.Get_rank(), comm.Get_size()
    names, own = list(values), np.array(list(values.values()), np.int64)
    extremes, incoming = np.empty(2 * len(names), np.int64), np.empty(2 * len(names), np.int64)

    def reset() -> None:
        extremes[: len(names)], extremes[len(names) :] = own, -own

    def finish() -> None:
        compare(
            dict(zip(names, extremes[: len(names)].tolist(), strict=True)),
            dict(zip(names, (-extremes[len(names) :]).tolist(), strict=True)),
        )

    phases: list[Phase] = [Work(HOST, [reset])]
    distance = 1
    while distance < size:
        to, by = (rank + distance) % size, (rank - distance) % size
        requests = [
            comm.Recv_init(HOST.octets(incoming), by, tag),
            comm.Send_init(HOST.octets(extremes), to, tag),
        ]
        peers = [Peer("receive from", by, -1, 16), Peer("send to", to, -1, 16)]
        keep_larger = partial(np.maximum, extremes, incoming, out=extremes)
        phases.append(Exchange(requests, peers, [keep_larger]))
        distance *= 2
    return [*phases, Check(finish)] if size > 1 else []
