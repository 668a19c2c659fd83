"""What the model says beside what is measured, in one run: `mpisgd validate`."""
