"""`train --workload`: what virtual ranks compute and send, in files for other simulators."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mpisgd.experiment.experiment import Experiment
from mpisgd.store.lock import stream
from mpisgd.store.target import check_apart, check_target, names
from mpisgd.values.errors import UsageError

if TYPE_CHECKING:
    from allreduce.simulate.workload import Workload
    from mpisgd.checkpoint.options import Saving
    from mpisgd.drivers.launch import Target, World

OPTION = "--workload"
GOAL, CHAKRA = ".goal", ".et"


def check(
    path: str, target: "Target", saving: "Saving | None", world: "World", averages: bool
) -> None:
    """UsageError for what cannot be written, or is another output's, or a run without such."""
    if Path(path).suffix not in (GOAL, CHAKRA):
        allowed = f"ends in {GOAL} (GOAL, for LogGOPSim) or {CHAKRA} (Chakra traces, one a rank)"
        raise UsageError(OPTION, path, allowed)
    if not world.virtual:
        raise UsageError(OPTION, path, "only with --virtual, whose clock knows what ranks do")
    if not averages:
        raise UsageError(
            OPTION, path, "only where all average in every round: no servers, none late"
        )
    written = files(path, world.size)
    for file in written:
        check_target(file, target.overwrite, option=OPTION)
    mine = [name for file in written for name in names(file)]
    if target.path is not None:
        check_apart(OPTION, path, names(target.path), mine, f"--output's and {OPTION}'s")
    if saving is not None:
        saving.check_apart(mine, OPTION)


def files(path: str, ranks: int) -> list[Path]:
    """What is written: run.goal, or run.0.et, run.1.et, ..."""
    name = Path(path)
    if name.suffix == GOAL:
        return [name]
    return [name.with_suffix(f".{rank}{CHAKRA}") for rank in range(ranks)]


def begun(experiment: Experiment) -> "Workload":
    """One that knows nothing yet."""
    from allreduce.simulate.workload import Workload
    from mpisgd.experiment.virtual_time import virtual_network

    return Workload(experiment.ranks, virtual_network(experiment).sum_s_per_B)


def write(path: str, workload: "Workload") -> None:
    """All that it was told."""
    from allreduce.simulate import chakra, goal

    written = files(path, workload.ranks)
    if len(written) == 1 and written[0].suffix == GOAL:
        stream(path, _encoded(goal.lines(workload)), OPTION)
        return
    for rank, name in enumerate(written):
        stream(name, chakra.trace(workload, rank), OPTION)


def _encoded(lines: Iterator[str]) -> Iterator[bytes]:
    return (line.encode("ascii") for line in lines)
