"""ReFrame on a real Slurm: a job by sbatch, its ranks by srun, figures with units."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from slurm import Slurm

pytestmark = pytest.mark.slurm
HARNESSES = Path(__file__).resolve().parents[2] / "harnesses"


def test_a_benchmark_is_run_by_slurm(slurm: Slurm, tmp_path: Path):
    pytest.importorskip("reframe", reason="needs ReFrame (pip install reframe-hpc)")
    binaries = Path(sys.executable).parent
    environment = {**os.environ, **slurm.environment}
    environment["PATH"] = f"{binaries}:{environment['PATH']}"
    words = ["-C", HARNESSES / "reframe_settings.py", "--system=slurm", "--prefix", tmp_path]
    words += ["-c", HARNESSES / "reframe_mpisgd.py", "-n", "Allreduce.*butterfly.*4K", "-r"]
    done = subprocess.run(
        [binaries / "reframe", *words, "--performance-report"], env=environment, cwd=tmp_path,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Ran 1/1 test case(s)" in done.stdout
    assert "slurm:default+builtin" in done.stdout
    assert " us " in done.stdout
