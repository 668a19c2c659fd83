"""`full_disk.py WORDS...`: `mpisgd WORDS`, where the disk of every rank but the first is full."""

import os
import sys

from mpi4py import MPI

from mpisgd import cli


def full(descriptor: int) -> None:
    """As it is told when what was written reaches the disk."""
    raise OSError(28, "No space left on device")


if MPI.COMM_WORLD.Get_rank():
    os.fsync = full
sys.exit(cli.main())
