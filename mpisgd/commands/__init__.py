"""The sub-commands of `mpisgd`, one module each."""
