"""How messages of the event simulation come through the links of a network.

A message queues at one link after the other, or shares all of its links at once; a message without
links leaves and arrives at once. Whatever happens to it later is planned as an event.
"""

from collections.abc import Callable
from math import inf
from typing import Any

from allreduce.network import Network, bursts
from allreduce.simulate.links import Fair, Queues
from allreduce.simulate.records import ANSWERED, ARRIVED, ASKED, FLOWS, LEFT, LINK, Message

Push = Callable[[float, int, int, Any], None]  # plans an event: time (s), kind, rank, subject


class Wires:
    """The links of `network` with `ranks` ranks on it.

    Plans ASKED and ANSWERED for a handshake, LINK for a message that comes to a link, LEFT and
    ARRIVED for its two ends, FLOWS where rates must be looked at again.
    """

    def __init__(self, network: Network, ranks: int, push: Push):
        credit = bursts(network, ranks)
        self._queues = Queues(credit)
        self._fair = Fair(credit) if network.sharing == "fair" else None
        self._ranks, self._push = ranks, push

    def post(self, message: Message, time: float) -> None:
        """The message is handed over at `time` (s): it sets out, or asks for leave first."""
        if message.program.handshake[message.number]:
            self._later(message, time, ASKED, message.program.destination)
        else:
            self.depart(message, time)

    def answer(self, message: Message, time: float) -> None:
        """Its receiver gives leave."""
        self._later(message, time, ANSWERED, message.program.source)

    def depart(self, message: Message, time: float) -> None:
        """The message sets out at `time` (s)."""
        program, number = message.program, message.number
        if program.path[number]:
            self._push(time, LINK, program.source[number], message)
        else:
            self._leave(message, time)
            self._deliver(message, time)

    def reach(self, message: Message, time: float) -> None:
        """The message is at its next link, or at all that it will share."""
        if self._fair is not None:
            self._join(self._fair, message, time)
        else:
            self._queue(message, time)

    def passed(self, time: float, version: int) -> None:
        """Messages that are through arrive; the next ones are foreseen. Void if `version` is old:
        another message has come or gone since this was planned."""
        fair = self._fair
        if fair is None or version != fair.version:
            return
        for message in fair.finished(time):
            if message.program.handshake[message.number]:
                self._leave(message, time)
            self._deliver(message, time)
        if (end := fair.next_end()) < inf:
            self._push(end, FLOWS, self._ranks, fair.version)

    def _queue(self, message: Message, time: float) -> None:
        """It queues at its next link, and goes on once it is served."""
        path = message.program.path[message.number]
        volume = message.program.nbytes[message.number]
        while True:
            link, seconds_per_byte = path[message.hop]
            begins, ends = self._queues.hop(link, seconds_per_byte, volume * message.factor, time)
            if message.hop == 0:
                self._leave(message, ends)
            message.end = max(message.end, ends)  # no link is done before the one before it
            message.hop += 1
            if message.hop == len(path):
                self._deliver(message, message.end)
                return
            if begins > time:
                self._push(begins, LINK, message.program.source[message.number], message)
                return

    def _join(self, fair: Fair, message: Message, time: float) -> None:
        """It begins to share its links."""
        program, number = message.program, message.number
        fair.add(message, program.path[number], program.nbytes[number] * message.factor, time)
        if not program.handshake[number]:
            self._leave(message, time)
        self._push(time, FLOWS, self._ranks, fair.version)

    def _leave(self, message: Message, time: float) -> None:
        """Its send is complete, which only rounds wait for."""
        if message.collective is not None:
            self._push(time, LEFT, message.program.source[message.number], message)

    def _deliver(self, message: Message, time: float) -> None:
        self._later(message, time, ARRIVED, message.program.destination)

    def _later(self, message: Message, time: float, kind: int, at: list[int]) -> None:
        """Something of the message comes to a rank one latency after `time`; at: that rank, by the
        number of the message."""
        latency = message.program.latency[message.number] * message.factor
        self._push(time + latency, kind, at[message.number], message)
