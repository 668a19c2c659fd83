"""Two systems of ReFrame: this machine by its mpiexec, and Slurm by srun (--system=slurm), as an
example: a centre has its own file."""

site_configuration = {
    "systems": [
        {
            "name": "here",
            "descr": "this machine, by the mpiexec on PATH",
            "hostnames": [".*"],
            "partitions": [
                {
                    "name": "local",
                    "scheduler": "local",
                    "launcher": "mpiexec",
                    "environs": ["builtin"],
                    "max_jobs": 1,
                },
            ],
        },
        {
            "name": "slurm",
            "descr": "a cluster with Slurm, its default partition",
            "hostnames": ["^$"],  # only where it is asked for
            "partitions": [
                {
                    "name": "default",
                    "scheduler": "squeue",  # slurm, where sacct works
                    "launcher": "srun",
                    "env_vars": [["SLURM_MPI_TYPE", "pmi2"]],  # MPICH; pmix for Open MPI
                    "environs": ["builtin"],
                    "max_jobs": 4,
                },
            ],
        },
    ],
    "environments": [{"name": "builtin"}],
}
