"""`python saturation_rank.py train ...` is `mpisgd train ...` that also leaves the rank's largest
resident memory, in bytes, in OUTPUT.memory.RANK beside its result file."""

import os
import resource
import sys

from mpisgd.cli import main

RANK_VARIABLES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK")


def rank() -> str:
    """As the launcher numbers it."""
    return next(os.environ[name] for name in RANK_VARIABLES if name in os.environ)


if __name__ == "__main__":
    output = sys.argv[sys.argv.index("--output") + 1]
    try:
        code = main(sys.argv[1:])
    finally:
        largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        with open(f"{output}.memory.{rank()}", "w", encoding="ascii") as file:
            file.write(str(largest))
    sys.exit(code)
