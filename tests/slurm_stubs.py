"""Programs that stand for Slurm's, for tests of `mpisgd submit`."""

import os
from pathlib import Path

from test_submit import SLURM, SMALL


def stub(name: str, body: str) -> None:
    """A program that stands for another, on the PATH of `played`."""
    Path("bin").mkdir(exist_ok=True)
    path = Path("bin", name)
    path.write_text("#!/bin/bash\n" + body)
    path.chmod(0o755)


def with_slurm(tmp_path: Path, monkeypatch, sbatch: str) -> Path:
    """A grid of three runs, and stubs that keep jobs in the file `queue`."""
    monkeypatch.chdir(tmp_path)
    stub("sbatch", sbatch)
    stub("squeue", "cat queue\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    path = Path("g.toml")
    path.write_text(SMALL + SLURM)
    return path


def jobs() -> list[str]:
    return [line.split()[0] for line in Path("queue").read_text().splitlines()]
