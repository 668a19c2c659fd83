"""Doubles for tests of what uses MPI and devices: public, since others need them too."""
