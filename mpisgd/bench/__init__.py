"""`mpisgd bench`: measurements of all-reduces, alone and beside work."""

from mpisgd.bench.command import add_arguments, run

__all__ = ["add_arguments", "run"]
