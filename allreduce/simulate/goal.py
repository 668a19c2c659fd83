"""Workloads as GOAL text, the input of LogGOPSim (Hoefler, Schneider, Lumsdaine 2010)."""

from collections.abc import Iterator

from allreduce.network import Network
from allreduce.schedule import Schedule
from allreduce.simulate.program import prepare
from allreduce.simulate.workload import Operation, Workload, once


def goal(
    schedule: Schedule,
    nbytes: int,
    *,
    sum_s_per_B: float = 0.0,  # noqa: N803
    itemsize: int = 1,
    chunks: int = 1,
    adds: float = 1.0,
) -> str:
    """The schedule on `nbytes` bytes; `itemsize`, `chunks`, `adds`, AllreduceError: of `simulate`.

    After each round a rank does one `calc`, that of its sums, which requires all of the round and
    which all of its next round requires.
    """
    program = prepare(schedule, nbytes, Network(), itemsize, chunks, adds)
    return "".join(lines(once(schedule, program, sum_s_per_B)))


def lines(workload: Workload) -> Iterator[str]:
    """The text, line by line. Times of `calc` are whole ns, as LogGOPSim takes them; operation n
    has label l(n + 1)."""
    yield f"num_ranks {workload.ranks}\n"
    for rank in range(workload.ranks):
        yield f"\nrank {rank} {{\n"
        for number, operation in enumerate(workload.operations(rank), 1):
            yield f"l{number}: {_words(operation)}\n"
            for before in operation.after:
                yield f"l{number} requires l{before + 1}\n"
        yield "}\n"


def _words(operation: Operation) -> str:
    kind, amount, _, peer, tag = operation
    if kind == "calc":
        return f"calc {round(amount * 1e9)}"
    return f"{kind} {amount}b {'to' if kind == 'send' else 'from'} {peer} tag {tag}"
