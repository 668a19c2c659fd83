"""What is wrong, and what to do: rules over the facts."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mpisgd.doctor.examine import ONLY, PROVED, WAYS, only

FULL_SHARE = 0.7  # of a core: a rank that gets less shares it
SMALL_SHM = 64 << 20  # B; what Docker gives a container
LOW_LOCKED = 64 << 20  # B that InfiniBand wants locked at least
SKEWED_S = 1e-3
COARSE_NS = 1000.0
LOW_FREE = 1 << 30  # B
LEFT_SHARE = 0.1  # of /dev/shm that may be taken by what dead jobs left
LEVELS = ("fault", "warning", "note")
# What may be missing where mpiexec does not start even `true`, and what helps.
PLAIN = {
    "as root": "set OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1, as those "
    "commands of mpisgd do that start mpiexec",
    "slots": "ask for as many cores as ranks, or mpiexec --oversubscribe",
}
VARIABLES = {
    "mpich": ("MPIR_", "HYDRA_", "FI_", "UCX_"), "impi": ("I_MPI_", "FI_"),
    "openmpi": ("OMPI_", "PRTE_"),
}  # fmt: skip
# The same for ranks.
RANKS = {"not the one of this mpiexec": "use that MPI's own mpiexec: docs/cluster.md, Which MPI"}
NO_CURE = "no other way that was tried helps: docs/cluster.md, When ranks do not start"


class Finding(NamedTuple):
    """level: `fault`: ranks or results cannot work; `warning`: they will be slow or may fail."""

    level: str
    what: str
    remedy: str


def findings(facts: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """All of them, faults first."""
    told = {each["trial"]: each["told"] for each in trials}
    found = [*_start(facts, told), *_place(facts), *_folder(facts), *_ranks(facts)]
    return sorted(found, key=lambda each: LEVELS.index(each.level))


def _start(facts: Mapping[str, Any], told: Mapping[str, str]) -> Iterator[Finding]:
    launcher, ranks = facts.get("launcher", {}), facts.get("ranks") or {}
    if launcher.get("told"):
        yield Finding("fault", launcher["told"], "docs/cluster.md, Which MPI")
    if plain := told.get("plain start", ""):
        remedy = next((cure for word, cure in PLAIN.items() if word in plain), "")
        yield Finding("warning", f"{launcher.get('path')}: {plain}", remedy)
    if ranks.get("told"):
        came = f"{ranks['came']} of {ranks['wanted']} came" if "came" in ranks else "no world"
        cures = [f"{name} they run{_how(name, launcher)}" for name in told
                 if not told[name] and (name in WAYS or name.startswith(ONLY))]  # fmt: skip
        fails = [f"{name} they do not" for name in told if told[name] and name.startswith(ONLY)]
        known = next((cure for word, cure in RANKS.items() if word in ranks["told"]), NO_CURE)
        remedy = "; ".join([*cures, *fails]) if cures else known
        yield Finding("fault", f"ranks do not run ({came}): {ranks['told']}", remedy)


def _how(name: str, launcher: Mapping[str, Any]) -> str:
    """The variables of a way that helped, those of this library."""
    mine = VARIABLES.get(launcher.get("kind", ""), "")
    added = WAYS.get(name) or only(name.removeprefix(ONLY))
    words = [f"{key}={value}" for key, value in added.items() if mine and key.startswith(mine)]
    return f" ({' '.join(words)})" if words else ""


def _place(facts: Mapping[str, Any]) -> Iterator[Finding]:
    machine, shm = facts.get("machine", {}), facts.get("shm", {})
    if machine.get("clock_step_ns", 0) > COARSE_NS:
        step = f"{machine['clock_step_ns']:.0f} ns"
        yield Finding("warning", f"the clock moves in steps of {step}",
                      "measure larger messages, or ask for another clock source")  # fmt: skip
    if shm.get("told"):
        wanted = f"{_mib(shm['wanted_bytes'])} in " if "wanted_bytes" in shm else ""
        size = f" (it has {_mib(shm['size_bytes'])})" if "size_bytes" in shm else ""
        what = f"{wanted}{shm['path']} cannot be had: {shm['told']}{size}"
        cure = "mount it larger: docker --shm-size=1g, apptainer --bind /dev/shm"
        yield Finding("fault", what, cure)
    elif shm.get("size_bytes", math.inf) <= SMALL_SHM:
        yield Finding("warning", f"{shm['path']} has only {_mib(shm['size_bytes'])}",
                      "enough for a few ranks: docker --shm-size=1g")  # fmt: skip
    if shm.get("left_bytes", 0) > LEFT_SHARE * shm.get("size_bytes", math.inf):
        left = f"{shm['left_segments']} segments of MPI, {_mib(shm['left_bytes'])}"
        yield Finding("warning", f"{left}, lie in {shm['path']} and no process has mapped them",
                      "jobs that were killed left them: delete what is yours of "
                      f"{', '.join(shm.get('left_named', ()))}")  # fmt: skip
    locked = machine.get("locked_memory_bytes")
    if locked is not None and locked < LOW_LOCKED:
        yield Finding("note", f"{_mib(locked)} of memory may be locked",
                      "InfiniBand wants more: ulimit -l unlimited")  # fmt: skip


def _folder(facts: Mapping[str, Any]) -> Iterator[Finding]:
    folder = facts.get("folder", {})
    if folder.get("told"):
        yield Finding("fault", f"{folder['path']}: {folder['told']}", "another --folder")
        return
    if folder.get("flock", "works") != "works":
        where = f"{folder['path']} ({folder['file_system']})"
        yield Finding("warning", f"{where}: flock {folder['flock']}",
                      "nothing keeps two runs from writing one file there; for HDF5's own locks "
                      "set HDF5_USE_FILE_LOCKING=FALSE, or write to scratch")  # fmt: skip
    if folder.get("free_bytes", math.inf) < LOW_FREE:
        yield Finding("warning", f"{folder['path']} has {_mib(folder['free_bytes'])} free", "")


def _ranks(facts: Mapping[str, Any]) -> Iterator[Finding]:
    ranks = facts.get("ranks") or {}
    if "library" not in ranks:
        return
    if ranks["ranks_per_core"] > 1:
        yield Finding("warning", f"{ranks['ranks_per_core']:.3g} ranks on a core",
                      "ask for as many cores as ranks; times say little like this")  # fmt: skip
    elif ranks["least_core_share"] < FULL_SHARE:
        share = f"a rank got {ranks['least_core_share']:.0%} of a core while all computed"
        load = "others use its core: look at the load, and at binding"
        yield Finding("warning", share, load)
    if ranks["barrier_skew_median_s"] > max(SKEWED_S, 2 * ranks["clock_error_s"]):
        yield Finding("warning", "ranks leave a barrier "
                      f"{1e3 * ranks['barrier_skew_median_s']:.3g} ms apart",
                      "times below that say nothing: look for other load on the cores")  # fmt: skip
    for each in ranks.get("tcp", ()):
        if each["told"]:
            yield Finding("warning", f"from {each['from']} to {each['to']} over "
                          f"{each['interface']}: {each['told']}", "keep MPI from it: "
                          "docs/cluster.md, Network interfaces")  # fmt: skip
    proof = ranks.get("cuda_aware_proof", PROVED)
    if proof.startswith("not tried"):
        yield Finding("note", f"this MPI says that it is CUDA-aware; a proof was {proof}", "")
    elif proof != PROVED:
        yield Finding("warning", f"that this MPI is CUDA-aware is not proved: {proof}",
                      "leave --cuda-aware at auto; was the time short, --limit 60s")  # fmt: skip
    if facts.get("machine", {}).get("gpus") and not ranks["cuda_aware"]:
        yield Finding("note", "there are GPUs, and this MPI does not say that it is CUDA-aware",
                      "device buffers go through pinned host memory")  # fmt: skip


def _mib(count: float) -> str:
    return f"{count / 2**20:.4g} MiB"
