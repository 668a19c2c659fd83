"""A system of ReFrame: this machine, by its mpiexec, no scheduler. A centre has its own file."""

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
    ],
    "environments": [{"name": "builtin"}],
}
