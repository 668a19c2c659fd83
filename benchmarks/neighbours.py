"""How far two ranks' cores lie from each other while they all-reduce: which of both changes?

    mpiexec -n 2 python benchmarks/neighbours.py --looks 40 --output FILE.json

Each look takes, in turns and without a sleep: adding 256 KiB of shared memory that the other rank
has just written, adding them again (now they are near), our all-reduce, and MPI_Allreduce, both in
place; the fastest tenth of 40 of each. The first needs no MPI: where all-reduces change with it in
the midst of a launch, no setting of theirs is the cause. Whoever owns the real cores may move those
of a virtual machine, to where they share a cache or do not.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from allreduce.algorithms import build
from allreduce.measure import Barrier, gather
from allreduce.native import bare
from allreduce.plan import Plan
from mpisgd.mpi import session
from mpisgd.values import tables

WRITTEN_BYTES = 1 << 18
TURNS = 40
FASTEST = 0.1
PARTS = ("peer_written", "again", "ours", "library")
COLUMNS = (tables.Column("time_s", ".1f"), *(tables.Column(f"{p}_us", ".0f") for p in PARTS))


def main() -> int:
    options = _options()
    comm = session.world()
    if comm.Get_size() != 2:
        raise SystemExit("2 ranks")
    rank = comm.Get_rank()
    number = int(gather(comm, [os.getpid()])[0, 0])  # rank 0's
    file = Path(tempfile.gettempdir()) / f"neighbours-{number}"
    if rank == 0:
        file.write_bytes(bytes(WRITTEN_BYTES))
    gather(comm, [0.0])  # now it is there
    written = np.memmap(file, np.float32, mode="r+")
    gather(comm, [0.0])
    if rank == 0:
        file.unlink()
    rows = _looks(comm, written, options)
    if rank == 0:
        _tell(rows, options)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", default="halving-doubling")
    parser.add_argument("--bytes", type=int, default=1 << 19)
    parser.add_argument("--looks", type=int, default=40)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between them")
    parser.add_argument("--output")
    return parser.parse_args()


def _looks(comm: Any, written: np.ndarray, options: argparse.Namespace) -> list[dict[str, float]]:
    rank, own, began = comm.Get_rank(), np.zeros_like(written), time.perf_counter()
    ours, theirs = (np.zeros(options.bytes // 4, np.float32) for _ in range(2))
    library, close = bare(comm, "mpi", theirs, theirs)
    rows = []
    with Plan(comm, build(options.algorithm, 2), ours) as plan, Barrier(comm) as barrier:

        def reduce() -> None:
            plan.start()
            plan.wait()

        def add() -> None:
            np.add(own, written, out=own)

        calls = (add, add, reduce, library)
        reduce()
        for _ in range(options.looks):
            now = time.perf_counter() - began
            turns = [_turn(barrier, calls, written, rank) for _ in range(TURNS)]
            tenth = np.quantile(np.array(turns), FASTEST, axis=0)
            both = gather(comm, tenth)
            values = [*both[1, :2], *both[:, 2:].max(axis=0)]  # rank 1 adds what rank 0 wrote
            rows.append({"time_s": now} | {
                f"{part}_us": 1e6 * value for part, value in zip(PARTS, values, strict=True)
            })  # fmt: skip
            time.sleep(options.every)
    close()
    return rows


def _turn(
    barrier: Barrier, calls: tuple[Callable[[], object], ...], written: np.ndarray, rank: int
) -> list[float]:
    if rank == 0:
        written += 1
    seconds = []
    for call in calls:
        barrier()
        began = time.perf_counter()
        if rank == 1 or call not in calls[:2]:
            call()
        seconds.append(time.perf_counter() - began)
    return seconds


def _tell(rows: list[dict[str, float]], options: argparse.Namespace) -> None:
    table = np.array([[row[f"{part}_us"] for part in PARTS] for row in rows])
    against = {
        part: float(np.corrcoef(np.argsort(np.argsort(table[:, 0])),
                                np.argsort(np.argsort(table[:, i])))[0, 1])
        for i, part in enumerate(PARTS) if i
    }  # fmt: skip
    print(tables.render(COLUMNS, rows, "table"))
    print("rank correlation with peer_written:", {k: round(v, 2) for k, v in against.items()})
    if options.output:
        from allreduce.native import described

        found = {"method": __doc__, "options": vars(options), "mpi": described()["mpi_library"]}
        found |= {"settings": {k: v for k, v in os.environ.items() if k.startswith("OMPI_MCA_")}}
        found |= {"load_1min": os.getloadavg()[0], "correlation": against, "rows": rows}
        Path(options.output).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
