"""The [slurm] table of a grid: what a job asks of Slurm, checked before any script is written."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import time
from typing import Any

from mpisgd.values.errors import UsageError, nearest
from mpisgd.values.options import Kind, one_of, switch, whole

LAUNCHERS = ("srun --mpi=pmi2", "srun --mpi=pmix", "mpiexec")
# minutes, minutes:seconds, hours:minutes:seconds, days-hours and so on, as sbatch(1) has them.
TIME = re.compile(r"\d+|\d+:\d+|\d+:\d+:\d+|\d+-\d+(:\d+){0,2}", re.ASCII)
LONGEST_S = 366 * 86400
SECONDS = {
    (False, 1): (60,), (False, 2): (60, 1), (False, 3): (3600, 60, 1),
    (True, 2): (86400, 3600), (True, 3): (86400, 3600, 60), (True, 4): (86400, 3600, 60, 1),
}  # fmt: skip


def line() -> Kind:
    """Text on one line, without control characters."""

    def parse(value: Any) -> str:
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            raise ValueError
        return value

    return Kind("text on one line, without control characters", parse)


def lines(kind: Kind) -> Kind:
    """A list of such texts."""

    def parse(value: Any) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise ValueError
        return tuple(kind.parse(each) for each in value)

    return Kind(f"a list, each {kind.allowed}", parse)


def _option() -> Kind:
    def parse(value: Any) -> str:
        text = line().parse(value)
        if not text.startswith("-"):
            raise ValueError
        return text

    return Kind('an option of sbatch on one line, such as "--exclusive"', parse)


def _limit() -> Kind:
    def parse(value: Any) -> str:
        if not isinstance(value, str | int | time) or isinstance(value, bool):
            raise ValueError
        if not TIME.fullmatch(str(value)) or not 0 < seconds(str(value)) <= LONGEST_S:
            raise ValueError
        if any(int(part) > 59 for part in re.split(":", str(value))[1:]):  # 99:99 is a typing error
            raise ValueError
        return str(value)

    known = 'a time limit as sbatch reads it, such as "30" (minutes) or "1-12:00:00"'
    return Kind(f"{known}, at most {LONGEST_S // 86400} days", parse)


def _set(default: Any, kind: Kind) -> Any:
    return field(default=default, metadata={"kind": kind})


@dataclass(frozen=True)
class Settings:
    """What jobs ask for. `None` means not asked: Slurm decides.

    nodes: on how many nodes the ranks of each run are spread, at most one a rank.
    gpu_per_rank: each rank has a GPU of its own; `tasks_per_node` is then the GPUs of a node.
    warning_seconds: how long before the time limit the ranks are told to stop.
    restarts: how often a job that was stopped so goes back into the queue.
    """

    launcher: str = _set("", one_of(LAUNCHERS))
    program: str | None = _set(None, line())
    account: str | None = _set(None, line())
    partition: str | None = _set(None, line())
    time: str | None = _set(None, _limit())
    nodes: int | None = _set(None, whole(1, 100_000))
    tasks_per_node: int | None = _set(None, whole(1, 4096))
    cpus_per_task: int = _set(1, whole(1, 4096))
    gpu_per_rank: bool = _set(False, switch())
    warning_seconds: int = _set(60, whole(1, 65535))
    restarts: int = _set(0, whole(0, 1000))
    setup: tuple[str, ...] = _set((), lines(line()))
    lines: tuple[str, ...] = _set((), lines(_option()))

    def shape(self, tasks: int) -> tuple[int | None, int | None]:
        """Nodes, and the most tasks on one, for a job of `tasks`, spread evenly; None: not asked.

        ValueError if they don't fit.
        """
        if self.nodes is not None:
            nodes = min(self.nodes, tasks)
        elif self.tasks_per_node is not None:
            nodes = -(-tasks // self.tasks_per_node)
        else:
            return None, None
        most = -(-tasks // nodes)
        if self.tasks_per_node is not None and most > self.tasks_per_node:
            raise ValueError(
                f"{nodes} nodes of {self.tasks_per_node} tasks have no room for {tasks}"
            )
        return nodes, most


def read(place: str, table: Mapping[str, Any]) -> Settings:
    """From the values of a TOML table. UsageError for what is not allowed, naming `place`KEY."""
    known = {option.name.replace("_", "-"): option for option in fields(Settings)}
    values = {}
    for key, value in table.items():
        if key not in known:
            allowed = f"no such setting; there are {', '.join(known)}{nearest(key, known)}"
            raise UsageError(f"{place}{key}", None, allowed)
        values[known[key].name] = known[key].metadata["kind"].read(f"{place}{key}", value)
    if "launcher" not in values:
        allowed = f"say which starts your MPI: {', '.join(LAUNCHERS)}"
        raise UsageError(f"{place}launcher", None, allowed)
    settings = Settings(**values)
    if settings.gpu_per_rank and settings.tasks_per_node is None:
        raise UsageError(f"{place}tasks-per-node", None, "say how many GPUs a node has")
    if settings.time is not None and seconds(settings.time) <= settings.warning_seconds:
        allowed = f"longer than warning-seconds, which is {settings.warning_seconds}"
        raise UsageError(f"{place}time", settings.time, allowed)
    return settings


def seconds(limit: str) -> int:
    """A time limit in seconds."""
    parts = [int(part) for part in re.split("[-:]", limit)]
    return sum(a * b for a, b in zip(parts, SECONDS["-" in limit, len(parts)], strict=True))
