"""Under what circumstances a benchmark ran, and where its samples go."""

import argparse
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from allreduce.native import library
from mpisgd.mpi import session
from mpisgd.store.environment import environment


class Place(NamedTuple):
    """Where a rank runs: its host, and the cores it may use there."""

    host: str
    cores: frozenset[int]


class Places(NamedTuple):
    """Where all ranks run."""

    ranks: Sequence[Place]

    @property
    def nodes(self) -> list[int]:
        """The node of every rank, as the first rank on it."""
        hosts = [place.host for place in self.ranks]
        return [hosts.index(host) for host in hosts]

    @property
    def ranks_per_core(self) -> float:
        """On the fullest host, counting the cores that any rank there may use."""
        cores: dict[str, set[int]] = {}
        for place in self.ranks:
            cores.setdefault(place.host, set()).update(place.cores)
        each = Counter(place.host for place in self.ranks)
        return max(each[host] / max(1, len(cores[host])) for host in each)


def places(comm: Any, arguments: argparse.Namespace, deadline: float) -> Places:
    """Asked of all ranks; before that, with --bind, each is bound to one of its host's cores."""
    found = _told(comm, deadline)
    if not arguments.bind:
        return found
    own, before = found.ranks[comm.Get_rank()], found.ranks[: comm.Get_rank()]
    beside = [place for place in found.ranks if place.host == own.host]
    cores = sorted(frozenset[int]().union(*(place.cores for place in beside)))
    number = sum(place.host == own.host for place in before)
    os.sched_setaffinity(0, {cores[number % len(cores)]})
    return _told(comm, deadline)


def _told(comm: Any, deadline: float) -> Places:
    text = f"{span(sorted(os.sched_getaffinity(0)))} {platform.node()}"
    told = [line.split(" ", 1) for line in session.texts(comm, text, deadline)]
    return Places([Place(host, numbers(cores)) for cores, host in told])


def span(cores: Iterable[int]) -> str:
    """Sorted numbers in short: `0-3,8`; `-` for none."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(f"{a}-{b}" if a < b else str(a) for a, b in runs) or "-"


def numbers(text: str) -> frozenset[int]:
    """What `span` was given."""
    found: set[int] = set()
    for part in text.split(",") if text != "-" else ():
        low, _, high = part.partition("-")
        found.update(range(int(low), int(high or low) + 1))
    return frozenset(found)


def warn(text: str) -> None:
    """One line on standard error."""
    print(f"mpisgd bench: {text}", file=sys.stderr, flush=True)


class Record:
    """Rank 0's: the file if one is asked for, the bar on a terminal. Elsewhere it does nothing."""

    def __init__(
        self,
        comm: Any,
        where: Places,
        arguments: argparse.Namespace,
        config: dict[str, Any],
        cases: int,
    ):
        self.speaks = comm.Get_rank() == 0
        self._store, self._bar = None, None
        if not self.speaks:
            return
        if where.ranks_per_core > 1:
            warn(
                f"warning: oversubscribed, {where.ranks_per_core:.3g} ranks on a core: "
                "times say little about more cores"
            )
        if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            from tqdm import tqdm

            self._bar = tqdm(total=cases, unit="case", desc=arguments.benchmark, leave=False)
        if arguments.output is not None:
            from mpisgd.store.writer import Writer

            self._store = Writer(
                arguments.output, kind="bench", config=config, environment=_circumstances(where),
                ranks=comm.Get_size(), overwrite=arguments.overwrite,
            )  # fmt: skip

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


def _circumstances(where: Places) -> dict[str, Any]:
    return environment() | {
        "mpi_library": library(),
        "hosts": [place.host for place in where.ranks],
        "cores": [span(sorted(place.cores)) for place in where.ranks],
        "ranks_per_core": round(where.ranks_per_core, 3),
        "oversubscribed": where.ranks_per_core > 1,
        "load_1min": os.getloadavg()[0],
        "recorded_by": "rank 0",
        "began_s": time.time(),
    }
