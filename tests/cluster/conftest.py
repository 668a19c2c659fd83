"""The Slurm that the tests here share: started once, or skipped with the reason."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm import Slurm, install

from mpisgd.mpi.lab import Lab, missing
from mpisgd.values.errors import UsageError


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    """Four nodes of 16 CPUs."""
    if problem := missing():
        pytest.skip(f"the lab that carries Slurm {problem}")
    try:
        Lab(1, "1gbit").open().close()
    except UsageError as refused:
        pytest.skip(str(refused))
    if problem := install():
        pytest.skip(problem)
    # Not below pytest's own directory: its path is too long for a socket's name.
    home = Path(tempfile.mkdtemp(prefix="slurm"))
    try:
        with Slurm(home) as running:
            yield running
    finally:
        shutil.rmtree(home, ignore_errors=True)
