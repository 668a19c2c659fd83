"""`python -m mpisgd.doctor.place FOLDER`: clock, limits, shared memory, file locks; no MPI."""

import contextlib
import fcntl
import os
import platform
import resource
import secrets
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from mpisgd.doctor.trials import tell
from mpisgd.mpi import cores
from mpisgd.values import files

SHM = "/dev/shm"
SEGMENT = 16 << 20  # B that an MPI library takes there for a rank: Open MPI's default
NAMES = ("mpich_shm_", "ucx_shm_", "sm_segment", "vader_segment", "psm_shm", "psm2_shm",
         "Intel_MPI_")  # fmt: skip
PIECE = 1 << 20  # B written to the folder


def main() -> None:
    """Tell each part as soon as it is known: what comes later may hang."""
    tell({"machine": machine()})
    tell({"shm": shared_memory()})
    tell({"folder": folder(Path(sys.argv[1]))})


def machine() -> dict[str, Any]:
    """Host, cores, clock, limits. Times in ns, sizes in bytes; None: no limit."""
    times = [time.perf_counter_ns() for _ in range(20000)]
    steps = [b - a for a, b in pairwise(times) if b > a]
    quota, _ = cores.limit()
    return {
        "host": platform.node(),
        "kernel": platform.release(),
        "cores": cores.span(sorted(cores.affinity())),
        "core_quota": None if quota == float("inf") else quota,
        "load_1min": os.getloadavg()[0],
        "clock": time.get_clock_info("perf_counter").implementation,
        "clock_resolution_ns": time.get_clock_info("perf_counter").resolution * 1e9,
        "clock_step_ns": min(steps, default=0),
        "locked_memory_bytes": _limit(resource.RLIMIT_MEMLOCK),
        "open_files": _limit(resource.RLIMIT_NOFILE),
        "root": os.geteuid() == 0,
        "gpus": len([p for p in Path("/dev").glob("nvidia*") if p.name[6:].isdigit()]),
        "in_slurm_job": "SLURM_JOB_ID" in os.environ,
    }


def shared_memory(where: str = SHM, wanted: int = SEGMENT) -> dict[str, Any]:
    """Size, what is free, and whether `wanted` bytes can be taken, by taking them."""
    try:
        there = os.statvfs(where)
    except OSError as error:
        return {"path": where, "told": error.strerror}
    left = _left(Path(where))
    facts = {
        "path": where,
        "size_bytes": there.f_blocks * there.f_frsize,
        "free_bytes": there.f_bavail * there.f_frsize,
        "wanted_bytes": wanted,
        "left_named": [f"{name}*" for name in NAMES],
        "left_segments": len(left),
        "left_bytes": sum(left),
    }
    return facts | {"told": _taken(Path(where), wanted)}


def folder(path: Path) -> dict[str, Any]:
    """Where results would be written: kind of file system, free bytes, whether locks of both kinds
    keep another process away, seconds to write a piece to the disk."""
    facts: dict[str, Any] = {"path": str(path), "file_system": _kind(path)}
    try:
        there = os.statvfs(path)
        facts |= {"free_bytes": there.f_bavail * there.f_frsize, "free_files": there.f_favail}
        trial = path / f".mpisgd-doctor.~{secrets.token_hex(3)}"
        os.close(files.created(trial))
    except OSError as error:
        return facts | {"told": error.strerror}
    try:
        facts |= {"flock": _lock(trial, fcntl.flock), "posix_locks": _lock(trial, fcntl.lockf)}
        began = time.perf_counter()
        with open(trial, "wb") as out:
            out.write(bytes(PIECE))
            out.flush()
            os.fsync(out.fileno())
        moved = trial.with_name(trial.name + "-moved")
        os.replace(trial, moved)
        trial = moved
        facts |= {"written_bytes": PIECE, "write_s": time.perf_counter() - began, "told": ""}
    except OSError as error:
        facts["told"] = error.strerror
    finally:
        with contextlib.suppress(OSError):
            trial.unlink()
    return facts


def _taken(where: Path, wanted: int) -> str:
    """Why `wanted` bytes can't be had; "" if they can."""
    trial = where / f"mpisgd-doctor.~{secrets.token_hex(3)}"
    try:
        descriptor = files.created(trial)
        try:
            os.posix_fallocate(descriptor, 0, wanted)
        finally:
            os.close(descriptor)
            trial.unlink()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _left(where: Path) -> list[int]:
    """Bytes of each segment of an MPI library there, of this user, that no process has mapped."""
    maps = []
    for file in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            maps.append(file.read_text(errors="replace"))
    mapped, sizes = "\n".join(maps), []
    for entry in where.iterdir():
        with contextlib.suppress(OSError):
            mine = entry.name.startswith(NAMES) and entry.stat().st_uid == os.geteuid()
            if mine and str(entry) not in mapped:
                sizes.append(entry.stat().st_size)
    return sizes


def _lock(path: Path, lock: Any) -> str:
    """`works` if a second process is kept away; else why not."""
    with open(path, "r+b") as mine:
        try:
            lock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return f"none: {error.strerror}"
        child = os.fork()
        if not child:
            try:
                with open(path, "r+b") as other:
                    lock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os._exit(1)
            except OSError:
                os._exit(0)
        kept = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return "works" if kept else "none: two processes hold it at once"


def _kind(path: Path) -> str:
    """Of the file system, as the kernel mounts it; "" if it does not say."""
    wanted = os.stat(path).st_dev if path.exists() else -1
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            device, _, behind = line.split()[2], *line.partition(" - ")[1:]
            major, minor = map(int, device.split(":"))
            if os.makedev(major, minor) == wanted:
                return behind.split()[0]
    return ""


def _limit(which: int) -> int | None:
    soft = resource.getrlimit(which)[0]
    return None if soft == resource.RLIM_INFINITY else soft


if __name__ == "__main__":
    main()
