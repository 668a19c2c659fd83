"""A schedule as GOAL text, the input of LogGOPSim (Hoefler, Schneider, Lumsdaine 2010)."""

from allreduce.schedule import Schedule
from allreduce.simulate.program import messages


def goal(
    schedule: Schedule,
    nbytes: int,
    *,
    sum_s_per_B: float = 0.0,  # noqa: N803
    itemsize: int = 1,
    chunks: int = 1,
) -> str:
    """The schedule on `nbytes` bytes. Times of `calc` are whole ns, as LogGOPSim takes them.

    After each round a rank does one `calc`, that of its sums, which requires all of the round and
    which all of its next round requires. AllreduceError as from `simulate`.
    """
    sent = messages(schedule, nbytes, itemsize, chunks)
    ranks = [_Rank() for _ in range(schedule.size)]
    columns = (sent.round, sent.source, sent.destination, sent.nbytes, sent.reduce)
    for number, source, destination, length, reduce in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        tag = ranks[source].tags.get(destination, 0)
        ranks[source].tags[destination] = tag + 1
        for rank in (source, destination):
            ranks[rank].enter(number, sum_s_per_B)
        ranks[source].add(f"send {length}b to {destination} tag {tag}")
        ranks[destination].add(f"recv {length}b from {source} tag {tag}")
        ranks[destination].summed += length * reduce
    for each in ranks:
        each.enter(len(schedule.rounds), sum_s_per_B)
    blocks = (
        f"rank {rank} {{\n" + "".join(f"{line}\n" for line in each.lines) + "}\n"
        for rank, each in enumerate(ranks)
    )
    return f"num_ranks {schedule.size}\n\n" + "\n".join(blocks)


class _Rank:
    """The text of one rank so far."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.tags: dict[int, int] = {}  # messages sent to each other rank
        self.label = self.join = 0  # the last label, and that of the last calc; 0: none
        self.round = -1
        self.open: list[int] = []  # labels of the round
        self.summed = 0  # bytes

    def enter(self, number: int, sum_s_per_B: float) -> None:  # noqa: N803
        """Close the round before `number` with its sums."""
        if number == self.round:
            return
        self.round = number
        if self.open:
            ends, self.open = self.open, []
            self.join = self._line(f"calc {round(self.summed * sum_s_per_B * 1e9)}")
            self.lines += [f"l{self.join} requires l{end}" for end in ends]
            self.summed = 0

    def add(self, operation: str) -> None:
        """An operation of the present round."""
        self.open.append(self._line(operation))
        if self.join:
            self.lines.append(f"l{self.label} requires l{self.join}")

    def _line(self, operation: str) -> int:
        self.label += 1
        self.lines.append(f"l{self.label}: {operation}")
        return self.label
