"""Under what circumstances a benchmark ran, and where its samples go."""

import argparse
import os
import sys
import time
from typing import Any

from allreduce.native import described
from mpisgd.mpi import cores
from mpisgd.mpi.cores import Places
from mpisgd.store.environment import environment
from mpisgd.values import progress
from mpisgd.values.schedules import digests


def places(comm: Any, arguments: argparse.Namespace, deadline: float) -> Places:
    """Asked of all ranks; before that, with --bind, each is bound to one of its machine's cores."""
    found = cores.places(comm, deadline)
    if not arguments.bind:
        return found
    own, before = found.ranks[comm.Get_rank()], found.ranks[: comm.Get_rank()]
    beside = [place for place in found.ranks if place.shared == own.shared]
    free = sorted(frozenset[int]().union(*(place.cores for place in beside)))
    number = sum(place.shared == own.shared for place in before)
    os.sched_setaffinity(0, {free[number % len(free)]})
    return cores.places(comm, deadline)


def warn(text: str, command: str = "bench") -> None:
    """One line on standard error."""
    print(f"mpisgd {command}: {text}", file=sys.stderr, flush=True)


def library_told() -> str:
    """The column `library`: which one, its thread level unless that is the highest, and its
    settings of progress as a shell would set them."""
    found = described()
    level = found["thread_level"]
    settings = (f"{name}={value}" for name, value in found["mpi_progress"].items())
    levels = [] if level == "multiple" else [f"thread level {level}"]
    return " ".join([short_name(found["mpi_library"]), *levels, *settings])


def short_name(said: str) -> str:
    """Of what an MPI library says of itself: its name and version, as `Intel MPI 2021.18.1`."""
    words = said.partition(",")[0].partition(" for ")[0].split()
    return " ".join(w.replace("(R)", "") for w in words if w not in ("Version:", "Library"))


class Record:
    """Rank 0's: the file if one is asked for, the bar on a terminal. Elsewhere it does nothing."""

    def __init__(
        self,
        comm: Any,
        where: Places,
        arguments: argparse.Namespace,
        config: dict[str, Any],
        cases: int,
        facts: dict[str, Any],
    ):
        """`facts`: of the device."""
        self.speaks = comm.Get_rank() == 0
        self._store: Any = None
        self._bar: progress.Bar | None = None
        if not self.speaks:
            return
        self._command = arguments.command
        if where.crowded:
            warn(where.crowded, self._command)
        self._bar = progress.shown(arguments.benchmark, cases, unit="case")
        if arguments.output is not None:
            from mpisgd.store.writer import Writer

            if own := digests(config["algorithms"], comm.Get_size()):
                config = config | {"plugin_sha256": [f"{n} {own[n]}" for n in own]}
            self._store = Writer(
                arguments.output, kind="bench", config=config,
                environment=_circumstances(where) | facts, ranks=comm.Get_size(),
                overwrite=arguments.overwrite,
            )  # fmt: skip

    def notes(self, lines: list[str]) -> None:
        """What a reader of the figures has to know."""
        for line in lines if self.speaks else ():
            warn(line)

    def case(self, row: dict[str, Any], seconds: Any) -> None:
        """One case measured: what it was and gave, and its samples [repetition, rank]."""
        if self._store is not None:
            self._store.case(row, seconds)
            self._store.flush()

    def step(self) -> None:
        """One more case is done."""
        if self._bar is not None:
            self._bar.update()

    def complete(self, summary: dict[str, Any]) -> None:
        """All cases are there."""
        if self._store is not None:
            self._store.complete(summary)

    def __enter__(self) -> "Record":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._bar is not None:
            self._bar.close()
        if self._store is not None:
            self._store.close(None if error is None else f"{type(error).__name__}: {error}")
            if error is not None:
                warn(f"what was measured so far is in {self._store.partial}", self._command)


def _circumstances(where: Places) -> dict[str, Any]:
    return environment() | {
        **described(),
        **where.described(),
        "load_1min": os.getloadavg()[0],
        "recorded_by": "rank 0",
        "began_s": time.time(),
    }
