"""The whole examination: which trials, in what order, within how much time."""

import re
import shutil
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

from mpisgd.doctor import wires
from mpisgd.doctor.trials import Attempt, attempt
from mpisgd.mpi import mpiexec
from mpisgd.mpi.mpiexec import Launcher
from mpisgd.values.errors import UsageError
from mpisgd.values.processes import python

# Of the whole time, at most, each in its turn.
VERSION, PLACE, PLAIN, RANKS = 0.15, 0.2, 0.15, 0.4
KILLED_S = 3.0  # kept for the end of a trial that has to be killed
LEAST_S = 0.5  # less is no trial
MOST_AT_ONCE, MOST_INTERFACES = 3, 5
# What makes an MPI library say which transport it has chosen.
TALKATIVE = {
    "MPIR_CVAR_DEBUG_SUMMARY": "1", "OMPI_MCA_pml_base_verbose": "10", "I_MPI_DEBUG": "5",
}  # fmt: skip
# In all libraries' words; those that are not meant pay no heed.
LITTLE_SHARED_MEMORY = {
    "MPIR_CVAR_CH4_SHM_POSIX_IQUEUE_NUM_CELLS": "4",
    "MPIR_CVAR_CH4_SHM_POSIX_IQUEUE_CELL_SIZE": "4096",
    "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self",
}  # fmt: skip
# Ways to start the same ranks that may help, beside one network interface: their variables.
LITTLE = "with little shared memory"
WAYS = {LITTLE: LITTLE_SHARED_MEMORY}
ONLY = "only over "
PROVED = "a message of device memory arrived"


def only(interface: str) -> dict[str, str]:
    """Variables that keep every MPI library to one network interface."""
    names = (
        "HYDRA_IFACE", "I_MPI_HYDRA_IFACE", "FI_TCP_IFACE", "UCX_NET_DEVICES",
        "OMPI_MCA_btl_tcp_if_include", "PRTE_MCA_prte_if_include",
    )  # fmt: skip
    return dict.fromkeys(names, interface)


class Examination:
    """Facts by subject, and each trial in a row of `trials`; all within `limit_s` seconds."""

    def __init__(self, limit_s: float):
        self.limit_s, self._began = limit_s, time.monotonic()
        self.facts: dict[str, Any] = {}
        self.trials: list[dict[str, Any]] = []

    @property
    def spent_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._began

    def here(self, folder: str) -> None:
        """This machine and the folder of results, without MPI."""
        done = self.trial("machine", python("mpisgd.doctor.place", folder), PLACE)
        for told in done.facts:
            self.facts |= told
        if done.code is None and "folder" not in self.facts:
            where = "shm" if "machine" in self.facts and "shm" not in self.facts else "folder"
            self.facts[where] = {"path": folder, "told": done.told}

    def launched(self, path: str | None, ranks: int) -> None:
        """Ranks under mpiexec; where they fail, what would help, by trying."""
        try:
            launcher = mpiexec.find(path, VERSION * self.limit_s)
        except UsageError as mistake:
            self.facts["launcher"] = {"told": str(mistake)}
            return
        self.facts["launcher"] = {
            "path": launcher.path, "kind": launcher.kind, "version": launcher.version, "told": "",
        }  # fmt: skip
        words = [launcher.path, "-n", str(ranks), shutil.which("true") or "true"]
        plain = self.trial("plain start", words, PLAIN)
        if self.facts.get("shm", {}).get(
            "told"
        ):  # before a trial that dies leaves its segment there
            self._ranks(LITTLE, launcher, ranks, RANKS / 2, WAYS[LITTLE])
        most = RANKS if plain.code is not None else RANKS / 2
        done = self._ranks("ranks", launcher, ranks, most, TALKATIVE)
        came = [told for told in done.facts if "rank" in told]
        found = next((told for told in done.facts if "rank" not in told), None)
        if found is not None and done.code == 0:
            self.facts["ranks"] = found | {"transport": transport(done.out + done.err)}
            return
        self.facts["ranks"] = {"came": len(came), "wanted": ranks, "told": done.told}
        self._variants(launcher, ranks)

    def device_memory(self, backend: str = "cupy") -> None:
        """Where the MPI library says that it takes device memory: whether that is proved."""
        from mpisgd.mpi import aware

        ranks = self.facts.get("ranks") or {}
        if not ranks.get("cuda_aware"):
            return
        if not self.facts.get("machine", {}).get("gpus"):
            proved = "not tried: no GPU here"
        elif find_spec(backend) is None:
            proved = "not tried: CuPy is not installed"
        elif self._left() < LEAST_S:
            proved = "not tried: the time is up"
        else:
            proved = aware.proof(backend, 0, self._left()) or PROVED
        ranks["cuda_aware_proof"] = proved

    def trial(
        self, name: str, words: list[str], most: float, environment: Mapping[str, str] | None = None
    ) -> Attempt:
        """One more, if there is time for it; `most`: of the whole time."""
        seconds = min(most * self.limit_s, self._left())
        if seconds < LEAST_S:
            done = Attempt(0.0, None, "", "")
        else:
            done = attempt(words, seconds, environment)
        self.trials.append({"trial": name, "seconds": done.seconds, "told": done.told})
        return done

    def _left(self) -> float:
        return self.limit_s - self.spent_s - KILLED_S

    def _ranks(
        self, name: str, launcher: Launcher, ranks: int, most: float, added: Mapping[str, str]
    ) -> Attempt:
        seconds = max(LEAST_S, min(most * self.limit_s, self._left()))
        argv = python("mpisgd.doctor.rank", f"{seconds:.3f}")
        words, environment = launcher.command(ranks, argv)
        # NumPy's threads would take the cores that ranks are asked about.
        threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        return self.trial(name, words, most, {**environment, **threads, **added})

    def _variants(self, launcher: Launcher, ranks: int) -> None:
        """The same ranks in other ways, at once."""
        tried_before = {each["trial"] for each in self.trials}
        ways = {name: added for name, added in WAYS.items() if name not in tried_before}
        for name in sorted(wires.interfaces(), key=lambda each: each != "lo")[:MOST_INTERFACES]:
            ways[ONLY + name] = only(name)
        most = self._left() / self.limit_s / max(1, -(-len(ways) // MOST_AT_ONCE))

        def tried(name: str) -> None:
            self._ranks(name, launcher, ranks, most, ways[name])

        with ThreadPoolExecutor(MOST_AT_ONCE) as threads:
            list(threads.map(tried, ways))


def transport(said: str) -> str:
    """What a talkative library said that messages travel by; "" if nothing of it is known."""
    for pattern in (
        r"libfabric provider: (\S+)", r"select(?:ed|: component) (\w+) (?:best|selected)",
        r"(UCX|OFI) netmod Cap",
    ):  # fmt: skip
        if found := re.search(pattern, said):
            return found[1].lower()
    if found := re.search(r"^provider: ([\w;]+)", said, re.MULTILINE):
        return f"ofi {found[1]}"
    return ""
