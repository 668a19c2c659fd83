"""MPI around a run: starting it, living under it, hosts on one machine."""
