"""What ranks compute and send, as operations that wait for one another: for other simulators.

Every rank has its own, numbered from 0; one waits for those it names, and for nothing else, so what
overlaps in a run may overlap there. An all-reduce's round waits for the round before it: for
its messages, and the sums made of them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from allreduce.schedule import Schedule
from allreduce.simulate.events import Cluster
from allreduce.simulate.program import Program, Sizes
from allreduce.simulate.records import Collective


class Operation(NamedTuple):
    """`kind` calc: `amount` seconds of work; send, recv: that many bytes to or from rank `peer`,
    under a `tag` that is used once between two ranks. `after`: numbers of the rank's operations."""

    kind: str
    amount: float
    after: tuple[int, ...]
    peer: int = -1
    tag: int = -1


class Workload:
    """What each of `ranks` ranks does, in its order; filled by a `Recorded` cluster."""

    def __init__(self, ranks: int, sum_s_per_B: float = 0.0):  # noqa: N803
        self.ranks, self.sum_s_per_B = ranks, sum_s_per_B
        self._programs: list[Program] = []  # of each all-reduce
        self._bases: list[int] = [0]  # the first tag of each
        self._done: list[list[tuple[str, float]]] = [[] for _ in range(ranks)]
        self._parts: dict[int, _Parts] = {}  # by program

    def collective(self, program: Program) -> int:
        """The number of a new all-reduce, which plays `program`."""
        parts = self._parts.setdefault(id(program), _Parts(program))
        self._programs.append(program)
        self._bases.append(self._bases[-1] + parts.most)
        return len(self._programs) - 1

    def compute(self, rank: int, seconds: float) -> None:
        """The rank works so long."""
        self._done[rank].append(("compute", seconds))

    def start(self, rank: int, number: int) -> None:
        """The rank starts that all-reduce, and goes on."""
        self._done[rank].append(("start", number))

    def wait(self, rank: int, number: int) -> None:
        """The rank goes on when its part of that all-reduce is done."""
        self._done[rank].append(("wait", number))

    def operations(self, rank: int) -> Iterator[Operation]:
        """Those of a rank, each after those it waits for."""
        count = 0
        present: tuple[int, ...] = ()  # what the rank does next waits for these
        ends: dict[float, tuple[int, ...]] = {}
        for what, value in self._done[rank]:
            if what == "compute":
                yield Operation("calc", value, present)
                present = (count,)
                count += 1
            elif what == "start":
                ends[value] = present
                for operation in self._rounds(rank, int(value), count, present):
                    yield operation
                    ends[value] = (count,)
                    count += 1
            else:
                present = tuple(sorted({*present, *ends[value]}))

    def _rounds(
        self, rank: int, number: int, count: int, after: tuple[int, ...]
    ) -> Iterator[Operation]:
        """Of an all-reduce; `count`: the number of the first. Its last is what others wait for."""
        program, base = self._programs[number], self._bases[number]
        parts = self._parts[id(program)]
        for step in range(program.first[rank], program.first[rank + 1]):
            begun = count
            for message in program.sends[step]:
                to, tag = program.destination[message], base + parts.tags[message]
                yield Operation("send", program.nbytes[message], after, to, tag)
                count += 1
            for message in parts.received[step]:
                source, tag = program.source[message], base + parts.tags[message]
                yield Operation("recv", program.nbytes[message], after, source, tag)
                count += 1
            seconds = program.sum_bytes[step] * self.sum_s_per_B
            yield Operation("calc", seconds, tuple(range(begun, count)))
            after = (count,)
            count += 1


class _Parts:
    """Of a program: what each step receives, and each message's number between its two ranks."""

    def __init__(self, program: Program):
        self.received = program.arriving()
        self.tags, used = [], Counter[tuple[int, int]]()
        for ends in zip(program.source, program.destination, strict=True):
            self.tags.append(used[ends])
            used[ends] += 1
        self.most = max(used.values(), default=0)


def once(schedule: Schedule, program: Program, sum_s_per_B: float = 0.0) -> Workload:  # noqa: N803
    """One all-reduce and nothing else; `program`: as `prepare` makes it of `schedule`."""
    workload = Workload(schedule.size, sum_s_per_B)
    number = workload.collective(program)
    for rank in range(schedule.size):
        workload.start(rank, number)
    return workload


class Recorded(Cluster):
    """A cluster that tells `workload` what its ranks do. Work during which an all-reduce is in
    flight is cut where the rank looks: there its sums may be made."""

    def __init__(self, workload: Workload, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.workload = workload

    def collective(self, schedule: Schedule, nbytes: Sizes, **how: Any) -> Collective:
        made = super().collective(schedule, nbytes, **how)
        made.number = self.workload.collective(made.program)
        return made

    def start(self, rank: int, collective: Collective) -> None:
        super().start(rank, collective)
        self.workload.start(rank, collective.number)

    def wait(self, rank: int, collective: Collective) -> None:
        super().wait(rank, collective)
        self.workload.wait(rank, collective.number)

    def compute(self, rank: int, seconds: float, looks: Iterable[float] = ()) -> None:
        looks, done = list(looks), 0.0
        if self._lines[rank].running:
            for look in (look for look in looks if 0 < look < seconds):
                self.workload.compute(rank, look - done)
                done = look
        self.workload.compute(rank, seconds - done)
        super().compute(rank, seconds, looks)
