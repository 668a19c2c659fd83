"""Which algorithm ran shows in the bits of a sum: prints them for MPI_Allreduce as it is, and with
each of the library's algorithms forced, at two sizes, as JSON on rank 0."""

import hashlib
import json

import numpy as np

from allreduce.forced import Forcing, let_choose

SIZES = (4096, 65536)


def bits(MPI, comm, nbytes):  # noqa: N803
    """Of a sum whose terms differ by orders of magnitude: its order shows."""
    random = np.random.default_rng(comm.rank)
    values = (random.random(nbytes // 4) * 10 ** random.uniform(-3, 3, nbytes // 4)).astype("f4")
    comm.Allreduce(MPI.IN_PLACE, values)
    return hashlib.sha256(values.tobytes()).hexdigest()[:12]


def main(MPI):  # noqa: N803
    comm = MPI.COMM_WORLD
    forcing = Forcing()
    found = {}
    for name in (None, *forcing.variable.algorithms):
        own, before = forcing.prepared(comm, name)
        if before is not None:
            before()
        found[name or ""] = [bits(MPI, own, nbytes) for nbytes in SIZES]
        own.Free()
    forcing.force(None)
    vector = np.ones(4)  # what else MPI does still works
    comm.Bcast(vector)
    comm.Iallreduce(MPI.IN_PLACE, vector).Wait()
    assert vector.tolist() == [comm.size] * 4
    assert comm.allgather(comm.rank) == list(range(comm.size))
    if comm.rank == 0:
        print(json.dumps(found))


let_choose()  # before MPI starts
from mpi4py import MPI  # noqa: E402

main(MPI)
