"""Ranks for tests: pytest starts mpiexec itself, once for each MPI library there is."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mpi_ranks import TWO_RANKS, Ranks, of_intel_mpi, of_openmpi, of_system, of_this_environment

# Threads of a BLAS that find no core of their own make tests many times slower. Set before NumPy.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A job in a script's background has SIGINT ignored, and what is ignored stays so: tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What several tests share and only one process can have is shared by tests in one process."""
    for item in items:
        shared = {"slurm", "lab"} & {mark.name for mark in item.iter_markers()}
        if "intel_mpi" in getattr(item, "fixturenames", ()):
            shared.add("impi")
        elif "openmpi" in item.name:
            shared.add("openmpi")
        if shared:
            item.add_marker(pytest.mark.xdist_group(max(shared)))


@pytest.fixture(scope="session", params=["mpich", "openmpi", "system"])
def mpi(request: pytest.FixtureRequest) -> Ranks:
    """Ranks on each MPI library in turn; skipped, with the reason, where it is not to be had.

    `mpich`: the environment that runs pytest. `openmpi`: an environment of its own, named by
    MPISGD_OPENMPI, else made in .venv-openmpi. `system`: another mpiexec on PATH.
    """
    sources: dict[str, Callable[[], Ranks]] = {
        "mpich": of_this_environment,
        "openmpi": of_openmpi,
        "system": of_system,
    }
    return _started(sources[request.param]())


@pytest.fixture(scope="session")
def intel_mpi() -> Ranks:
    """Ranks on Intel MPI, from its wheel impi-rt, for a smaller set of tests: an environment named
    by MPISGD_IMPI, else made in .venv-impi; skipped, with the reason, where it is not to be had."""
    return _started(of_intel_mpi())


def _started(ranks: Ranks) -> Ranks:
    done = ranks.run(2, ["python", "-c", TWO_RANKS], timeout=150, check=False)
    if done.returncode:
        reason = " ".join((done.stderr or done.stdout).split())[-300:]
        pytest.skip(f"{ranks.launcher.path} does not start 2 ranks: {reason}")
    return ranks


@pytest.fixture(autouse=True)
def a_device_begins_anew() -> None:
    """What the double of a device draws follows from the test alone, not from those before it."""
    if (runtime := sys.modules.get("allreduce.testing.device.runtime")) is not None:
        runtime.recover()


@pytest.fixture
def studies_on_the_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tests import the scripts of studies/ by their names; nobody behind them finds these."""
    yield from _on_the_path(monkeypatch, "studies")


@pytest.fixture
def benchmarks_on_the_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The same of benchmarks/."""
    yield from _on_the_path(monkeypatch, "benchmarks")


def _on_the_path(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[None]:
    folder = str(Path(__file__).resolve().parent.parent / name)
    monkeypatch.syspath_prepend(folder)
    yield
    for module, found in list(sys.modules.items()):
        if str(getattr(found, "__file__", None) or "").startswith(folder):
            del sys.modules[module]
