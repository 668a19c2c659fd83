"""mpisgd: a benchmark suite for distributed SGD on MPI. Importing it imports nothing heavy."""

__version__ = "0.1.0"
