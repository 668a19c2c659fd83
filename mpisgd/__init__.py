"""mpisgd: a benchmark suite for distributed SGD on MPI. Importing it imports nothing heavy.

`run(algorithm="dasgd", tau=4, ranks=32, network="titanx-20g", ...)`: a training run, its Result.
`load("runs/*.h5")`: result files, and the tables of `mpisgd report` over them.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# What is here besides: resolved when asked for.
PUBLIC = {
    "run": "mpisgd.drivers.run",
    "load": "mpisgd.report.collection",
    "Result": "mpisgd.store.result",
    "UsageError": "mpisgd.values.errors",
}


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module 'mpisgd' has no attribute {name!r}")
    return getattr(import_module(PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *PUBLIC])
