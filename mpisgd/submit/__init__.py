"""`mpisgd submit`: a grid of runs as Slurm jobs, or one after another here."""
