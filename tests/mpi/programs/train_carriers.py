"""The same training on every carrier of all-reduces.

Sums of the library come in an order of its own, so that losses agree to rounding, not in bits.
"""

import io
import json
import math
from contextlib import redirect_stdout

from mpi4py import MPI

from allreduce.collectives import CARRIERS
from mpisgd.cli import main

RANK = MPI.COMM_WORLD.Get_rank()
COMMON = ["--hidden=6", "--data-samples=90", "--batch=4", "--steps=10", "--evaluate-every=0",
          "--ema=0.9", "--dtype=float64", "--format=json"]  # fmt: skip
ALGORITHMS = {
    "minibatch": [],
    "minibatch-overlap": ["--bucket=400"],
    "local": ["--tau=3"],
    "dasgd": ["--tau=3", "--delay=2"],
}


def loss(algorithm: str, carrier: str, progress: str) -> float:
    """The last evaluation's, on rank 0."""
    words = ["--algorithm", algorithm, *ALGORITHMS[algorithm], "--allreduce", carrier]
    with redirect_stdout(io.StringIO()) as printed:
        assert main(["train", *COMMON, *words, "--progress", progress]) == 0
    return json.loads(printed.getvalue())[0]["loss"] if RANK == 0 else 0.0


if __name__ == "__main__":
    found = {
        (algorithm, carrier, progress): loss(algorithm, carrier, progress)
        for algorithm in ALGORITHMS
        for carrier, row in {"butterfly": CARRIERS["butterfly"], **CARRIERS}.items()
        if row.host  # others take arrays of devices alone
        for progress in ("poll", "thread")
        if carrier == "butterfly" or not row.scheduled
    }
    for (algorithm, carrier, progress), value in found.items():
        wanted = found[algorithm, "butterfly", "poll"]
        assert math.isclose(value, wanted, rel_tol=1e-12), (algorithm, carrier, progress)
    if RANK == 0:
        print(f"{len(found)} runs agree")
