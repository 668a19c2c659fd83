"""Cores that ranks may use: those they are bound to, and no more than their control group's quota.

Ranks count per machine, not per host name: containers and lab hosts share one machine's cores.
"""

import math
import os
import platform
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

BOOT = "proc/sys/kernel/random/boot_id"  # equal for all that one kernel runs
GROUPS = "sys/fs/cgroup"


class Place(NamedTuple):
    """Where a rank runs. `quota`: cores' worth of time for all of its control group `group`;
    `process`: its number on its host."""

    host: str
    cores: frozenset[int]
    machine: str = ""
    quota: float = math.inf
    group: int = 0
    process: int = 0

    @property
    def shared(self) -> str:
        """What it shares cores in."""
        return self.machine or self.host


class Places(NamedTuple):
    """Where all ranks run."""

    ranks: Sequence[Place]

    @property
    def hosts(self) -> list[str]:
        """The host of every rank."""
        return [place.host for place in self.ranks]

    @property
    def nodes(self) -> list[int]:
        """The node of every rank, as the first rank on it."""
        hosts = self.hosts
        return [hosts.index(host) for host in hosts]

    @property
    def ranks_per_core(self) -> float:
        """On the fullest machine: over the union of the cores that any rank there may use, or over
        the quotas of its ranks' groups if those are less."""
        each = Counter(place.shared for place in self.ranks)
        return max(each[machine] / self._cores(machine) for machine in each)

    @property
    def crowded(self) -> str:
        """What to warn of; "" if there is a core for each rank."""
        if self.ranks_per_core <= 1:
            return ""
        crowd = f"{self.ranks_per_core:.3g} ranks on a core"
        return f"warning: oversubscribed, {crowd}: times say little about more cores"

    def _cores(self, machine: str) -> float:
        here = [place for place in self.ranks if place.shared == machine]
        quotas = {(place.host, place.group): place.quota for place in here}
        bound = frozenset[int]().union(*(place.cores for place in here))
        return min(max(1, len(bound)), sum(quotas.values()))

    def described(self) -> dict[str, Any]:
        """What a result file says of them."""
        quotas = {place.host: place.quota for place in self.ranks if place.quota < math.inf}
        return {
            "hosts": self.hosts,
            "cores": [span(sorted(place.cores)) for place in self.ranks],
            "ranks_per_core": round(self.ranks_per_core, 3),
        } | ({"core_quotas": quotas} if quotas else {})


def places(comm: Any, deadline: float) -> Places:
    """Asked of all ranks."""
    from mpisgd.mpi import session

    quota, group = limit()
    bits = sum(1 << core for core in affinity())
    own = f"{machine()} {quota!r} {group} {os.getpid()} {bits:x} {platform.node()}"
    return Places([_told(line) for line in session.texts(comm, own, deadline)])


def _told(line: str) -> Place:
    name, quota, group, process, text, host = line.split(" ", 5)
    bits = int(text, 16)
    bound = frozenset(core for core in range(bits.bit_length()) if bits >> core & 1)
    return Place(host, bound, name, float(quota), int(group), int(process))


def affinity() -> set[int]:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def available() -> float:
    """Cores' worth of time that this process and what it starts get: with a quota perhaps half."""
    return min(len(affinity()), limit()[0])


def machine(root: str = "/") -> str:
    """One word for this machine: of its boot, where the kernel says it."""
    try:
        return Path(root, BOOT).read_text().split("-")[0]
    except OSError:
        return "host:" + platform.node()


def limit(root: str = "/") -> tuple[float, int]:
    """The least quota (cores) of this process's control groups and all around them, and a number
    for the group that has it; (inf, 0) without one."""
    quotas = [(_quota(folder), zlib.crc32(str(folder).encode())) for folder in _folders(root)]
    return min((each for each in quotas if each[0] < math.inf), default=(math.inf, 0))


def _folders(root: str) -> Iterator[Path]:
    """Of the groups that may hold a quota, version 1 and 2. A container may see its own group as
    the root, whatever its path says."""
    try:
        lines = Path(root, "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for top in Path(root, GROUPS), *(Path(root, GROUPS, name) for name in _mounts(controllers)):
            inner = top / path.lstrip("/")
            yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(top))


def _mounts(controllers: str) -> tuple[str, ...]:
    return (controllers, "cpu") if controllers else ("unified",)


def _quota(folder: Path) -> float:
    """Of one group, in cores."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()[:2]
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        return int(quota) / int(period) if quota not in ("max", "-1") else math.inf
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf


def span(cores: Iterable[int]) -> str:
    """Sorted numbers in short: `0-3,8`; `-` for none."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(f"{a}-{b}" if a < b else str(a) for a, b in runs) or "-"
