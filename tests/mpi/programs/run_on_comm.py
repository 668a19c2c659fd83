"""`run_on_comm.py`: `mpisgd.run` on parts of the world, in memory; rank 0 of each part tells."""

import sys

import numpy as np
from mpi4py import MPI

import mpisgd
from mpisgd.training.parameters import digest
from mpisgd.values.errors import UsageError

COMMON = {"data_samples": 120, "hidden": "6", "batch": 8, "steps": 12, "evaluate_every": 5}
OPTIONS = [
    {"algorithm": "dasgd", "tau": 3, "delay": 2},
    {"algorithm": "softsync", "servers": 2, "reads": "consistent", "lr": 0.05},
]


def bits(result: mpisgd.Result) -> tuple[str, list[float]]:  # type: ignore[name-defined]
    flat = np.concatenate([array.ravel() for array in result.parameters.values()])
    return digest(flat), result.evaluation["loss"].tolist()


def main() -> None:
    world = MPI.COMM_WORLD
    options = OPTIONS[world.rank % 2]  # two runs at the same time, on three ranks each
    comm = world.Split(world.rank % 2)
    said = "nothing"
    try:
        mpisgd.run(**COMMON, **options, comm=comm, progress="perfect")
    except UsageError as mistake:
        said = str(mistake)
    assert "without --virtual" in said, said
    result = mpisgd.run(**COMMON, **options, comm=comm)
    assert (result is None) == (comm.rank > 0)
    if result is not None:
        assert result.complete
        assert not result.virtual
        assert result.record.reported.shape == (3,)
        assert bits(result) == bits(mpisgd.run(**COMMON, **options, ranks=3))
        print("same", options["algorithm"], flush=True)
    comm.Free()
    if len(sys.argv) > 1:  # what is not finite ends a run, not the job
        failed = mpisgd.run(**COMMON, comm=world, algorithm="local", rate=1e30)
        if failed is not None:
            assert (failed.code, failed.complete) == (3, False)
            print(failed.reason, flush=True)


if __name__ == "__main__":
    main()
