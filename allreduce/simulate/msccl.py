"""A schedule as MSCCL XML, which Microsoft's NCCL (MSCCL) and AMD's RCCL run on GPUs.

A GPU has a thread block for each rank it sends to and one for each it receives from; steps of one
follow each other, and wait for steps of others that they name. All is done in place, in the input
buffer: a chunk is a segment. The rules are those of the reader in the library
(msccl_parser.cc): at most 256 steps a block, 71 chunks a step, one name a step; `nop` has more.
"""

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import NamedTuple

from allreduce.errors import AllreduceError
from allreduce.schedule import Schedule

MOST_STEPS, MOST_CHUNKS = 256, 71
SEND, RECEIVE, REDUCE = "s", "r", "rrc"  # rrc: receive, reduce, copy

Where = tuple[int, int]  # thread block, step


def msccl(schedule: Schedule) -> str:
    """The text. AllreduceError for a schedule beyond what the library reads."""
    segments, size = schedule.segments, schedule.size
    algo = ET.Element("algo", _attributes(
        name=schedule.name, proto="Simple", nchannels=1, nchunksperloop=segments, ngpus=size,
        coll="allreduce", inplace=1, outofplace=0, minBytes=0, maxBytes=0,
    ))  # fmt: skip
    gpus = [_Gpu() for _ in range(size)]
    for transfers in schedule.rounds:
        told: list[list[_Step]] = [[] for _ in range(size)]
        for source, destination, low, high, reduce in transfers.tolist():
            for begin in range(low, high, MOST_CHUNKS):
                count = min(MOST_CHUNKS, high - begin)
                told[source].append(_Step(SEND, destination, begin, count))
                kind = REDUCE if reduce else RECEIVE
                told[destination].append(_Step(kind, source, begin, count))
        for gpu, steps in zip(gpus, told, strict=True):
            gpu.play(steps)
    for number, gpu in enumerate(gpus):
        chunks = _attributes(id=number, i_chunks=segments, o_chunks=segments, s_chunks=0)
        ET.SubElement(algo, "gpu", chunks).extend(list(gpu.elements(schedule.name)))
    ET.indent(algo)
    return ET.tostring(algo, encoding="unicode") + "\n"


class _Step(NamedTuple):
    kind: str
    peer: int
    begin: int
    chunks: int

    def meets(self, other: "_Step") -> bool:
        """Whether they have a chunk in common."""
        return max(self.begin, other.begin) < min(
            self.begin + self.chunks, other.begin + other.chunks
        )


class _Gpu:
    """The thread blocks of one rank so far."""

    def __init__(self) -> None:
        self.blocks: dict[tuple[bool, int], list[tuple[_Step | None, Where | None]]] = {}
        self.before: list[Where] = []  # the last steps of the round before

    def play(self, steps: list[_Step]) -> None:
        """A round. It waits for the one before; what comes in waits for what goes out, which has
        the values from before the round, and for what came into the same chunks."""
        if not steps:
            return
        last: dict[int, Where] = {}
        come: list[tuple[_Step, Where]] = []
        for step in (step for step in steps if step.kind == SEND):
            where = self._add(step, self.before)
            last[where[0]] = where
        waits = [*self.before, *last.values()]
        for step in (step for step in steps if step.kind != SEND):
            there = [where for other, where in come if step.meets(other)]
            where = self._add(step, [*waits, *there])
            last[where[0]] = where
            come.append((step, where))
        self.before = list(last.values())

    def _add(self, step: _Step, waits: list[Where]) -> Where:
        key = step.kind == SEND, step.peer
        block = self.blocks.setdefault(key, [])
        number = list(self.blocks).index(key)
        newest = dict(sorted(waits))  # of each block; its own are over
        others = [where for where in newest.items() if where[0] != number]
        block += [(None, where) for where in others[:-1]]
        block.append((step, others[-1] if others else None))
        return number, len(block) - 1

    def elements(self, name: str) -> Iterator[ET.Element]:
        """The elements `tb`."""
        waited = {where for block in self.blocks.values() for _, where in block}
        for number, ((sends, peer), steps) in enumerate(self.blocks.items()):
            if len(steps) > MOST_STEPS:
                told = f"{name}: {len(steps)} steps with one rank: MSCCL reads {MOST_STEPS}"
                raise AllreduceError(told)
            ends = {"send": peer if sends else -1, "recv": -1 if sends else peer}
            found = ET.Element("tb", _attributes(id=number, **ends, chan=0))
            for place, (step, where) in enumerate(steps):
                kind, _, begin, chunks = step or _Step("nop", -1, -1, 0)
                depends = {"depid": where[0], "deps": where[1]} if where else _NOTHING
                found.append(ET.Element("step", _attributes(
                    s=place, type=kind, srcbuf="i", srcoff=begin, dstbuf="i", dstoff=begin,
                    cnt=chunks, **depends, hasdep=int((number, place) in waited),
                )))  # fmt: skip
            yield found


_NOTHING = {"depid": -1, "deps": -1}


def _attributes(**values: str | int) -> dict[str, str]:
    return {name: str(value) for name, value in values.items()}
