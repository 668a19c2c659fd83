"""`python -m mpisgd.doctor.rank`: what ranks see of MPI and of each other; all under a deadline."""

import os
import platform
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from allreduce.native import cuda_aware, described
from mpisgd.doctor import wires
from mpisgd.doctor.trials import tell
from mpisgd.mpi import announced, cores, session
from mpisgd.mpi.watch import watched
from mpisgd.values.errors import UsageError

PMI = {"PMIX_RANK": "PMIx", "PMI_FD": "PMI", "PMI_PORT": "PMI", "PMI_RANK": "PMI"}
MAPPED = re.compile(r"/(lib(?:mpi|mpi_mt|fabric|uc[pst]|pmix|pmi2?|psm2|efa|ibverbs|cuda)\.so\S*)")
SPIN_S = 0.1
PINGS, BARRIERS, EXCHANGES = 10, 50, 10
LARGE = 1 << 20  # B of a message


def main() -> None:
    """A trial of ranks: each tells where it is before it starts MPI, rank 0 what it all came to."""
    tell({"rank": announced.rank_told(), "host": platform.node()})
    facts = probe(float(sys.argv[1]))
    if facts:
        tell(facts)


def probe(seconds: float) -> dict[str, Any] | None:
    """All that ranks find out together, on rank 0; on others None. The process ends, with a line,
    after `seconds`."""
    tasks = announced.announced_tasks(os.environ)
    rank = f"mpisgd doctor: rank {announced.rank_told()} of {tasks}"
    with watched(f"{rank}: MPI has not started, or stood still, for {seconds:g} s", seconds):
        began = time.perf_counter()
        try:
            comm = session.world()
        except UsageError as singletons:
            return {"told": str(singletons)} if announced.rank_told() == 0 else None
        return _asked(comm, time.perf_counter() - began)


def _asked(comm: Any, start_s: float) -> dict[str, Any] | None:
    where = cores.places(comm, 60.0)
    leaders = sorted(set(where.nodes))
    tcp = wires.between(comm, platform.node(), leaders)
    facts = {
        **library(comm),
        "start_s": max(comm.allgather(start_s)),
        "ranks": comm.Get_size(),
        "nodes": len(leaders),
        **where.described(),
        "least_core_share": min(comm.allgather(core_share())),
        **barrier(comm),
        **message(comm),
        "tcp": tcp,
    }
    return None if comm.Get_rank() else facts


def library(comm: Any) -> dict[str, Any]:
    """What the MPI library says of itself, and which libraries it has loaded."""
    mpi, said = sys.modules["mpi4py.MPI"], described()
    maps = Path("/proc/self/maps").read_text() if Path("/proc/self/maps").exists() else ""
    paths = re.findall(r"/\S+\.so\S*", maps)
    loaded = sorted({found[1] for path in paths if (found := MAPPED.search(path))})
    names = [PMI[name] for name in PMI if name in os.environ]
    return {
        "library": said["mpi_library"],
        "standard": ".".join(map(str, mpi.Get_version())),
        "threads": said["thread_level"],
        "pmi": names[0] if names else "none",
        "slurm_mpi": os.environ.get("SLURM_MPI_TYPE", ""),
        "loaded": loaded,
        "cuda_aware": cuda_aware(),
        "wtick_ns": mpi.Wtick() * 1e9,
    }


def core_share() -> float:
    """Of a core, that this rank got while all computed at once."""
    began, used = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < SPIN_S:
        pass
    return (time.process_time() - used) / (time.perf_counter() - began)


def barrier(comm: Any) -> dict[str, Any]:
    """Seconds of a barrier, and how far apart ranks leave it, on rank 0's clock.

    A rank's clock is set against rank 0's by the fastest of some round trips: half of that trip is
    how wrong it may be.
    """
    offset, error = _offset(comm)
    left = np.zeros(BARRIERS)
    took = np.zeros(BARRIERS)
    for i in range(BARRIERS):
        began = time.perf_counter()
        comm.Barrier()
        left[i] = time.perf_counter()
        took[i] = left[i] - began
    every = np.array(comm.allgather(left - offset))
    skew = every.max(axis=0) - every.min(axis=0)
    return {
        "barriers": BARRIERS,
        "barrier_median_s": float(np.median(took)),
        "barrier_skew_median_s": float(np.median(skew)),
        "barrier_skew_p90_s": float(np.quantile(skew, 0.9)),
        "clock_error_s": max(comm.allgather(error)),
    }


def _offset(comm: Any) -> tuple[float, float]:
    """Of this rank's clock over rank 0's, and how wrong that may be, in seconds."""
    rank, mine = comm.Get_rank(), (0.0, 0.0)
    told = np.zeros(1)
    for other in range(1, comm.Get_size()):
        for _ in range(PINGS if rank in (0, other) else 0):
            if rank == 0:
                comm.Recv(told, other)
                told[0] = time.perf_counter()
                comm.Send(told, other)
            else:
                began = time.perf_counter()
                comm.Send(told, 0)
                comm.Recv(told, 0)
                ended = time.perf_counter()
                if not mine[1] or (ended - began) / 2 < mine[1]:
                    mine = (began + ended) / 2 - told[0], (ended - began) / 2
    return mine


def message(comm: Any) -> dict[str, Any]:
    """Half a round trip between the first and the last rank, the fastest of some; of 8 bytes in
    seconds, of a large message in bytes a second."""
    rank, last = comm.Get_rank(), comm.Get_size() - 1
    best = []
    for buffer in (np.zeros(8, np.uint8), np.zeros(LARGE, np.uint8)):
        times = [float("inf")]
        for _ in range(EXCHANGES if last and rank in (0, last) else 0):
            began = time.perf_counter()
            if rank == 0:
                comm.Send(buffer, last)
                comm.Recv(buffer, last)
            else:
                comm.Recv(buffer, 0)
                comm.Send(buffer, 0)
            times.append((time.perf_counter() - began) / 2)
        best.append(min(times))
    if not last:
        return {}
    return {"message_8_bytes_s": best[0], "message_1_mib_bytes_per_s": LARGE / best[1]}


if __name__ == "__main__":
    main()
