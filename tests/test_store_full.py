"""A disk that is full at any moment: one line, what was flushed is kept, nothing else is left."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpisgd.store.reader import read

FREE = (0, 4, 8, 12, 16, 24, 32, 64, 256)  # KiB
BALLAST = """
import os, sys
def fill(folder, free):
    found = os.statvfs(folder)
    with open(folder + "/ballast", "ab") as file:
        file.write(bytes(max(0, found.f_bavail * found.f_frsize - free * 1024)))
"""
WRITE = (
    BALLAST
    + """
import numpy as np
from mpisgd.store.writer import Writer
folder, moment, free = sys.argv[1], sys.argv[2], int(sys.argv[3])
if moment == "begin":
    fill(folder, free)
try:
    store = Writer(folder + "/r.h5", kind="train", config={}, environment={}, ranks=3)
    store.steps(0, 1, {"loss": np.arange(100.0)})
    store.flush()
    if moment == "flush":
        fill(folder, free)
        store.steps(0, 101, {name: np.random.rand(30000) for name in ("loss", "wait_s")})
        store.flush()
    fill(folder, free)
    store.complete({})
except OSError as error:
    if "store" in globals():
        store.close("full")
    sys.exit(str(error))
"""
)
TRAIN = (
    BALLAST
    + """
from mpisgd import cli
fill(sys.argv[1], int(sys.argv[2]))
words = "train --virtual 2 --steps 2 --data-samples 40 --hidden 4 --batch 4 --output"
sys.exit(cli.main([*words.split(), sys.argv[1] + "/r.h5", *sys.argv[3:]]))
"""
)


@pytest.fixture
def disk(tmp_path):
    """A disk of 4 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=4m", "full", str(folder)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=150)
        refused = done.stderr.strip() if done.returncode else None
    except OSError as error:
        refused = str(error)
    if refused is not None:
        pytest.skip(f"no disk of its own can be mounted: {refused}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True, timeout=150)


def run(program: str, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=150)


def empty(disk: Path) -> None:
    for path in disk.iterdir():
        path.unlink()


@pytest.mark.parametrize("moment", ["begin", "flush", "complete"])
def test_what_was_flushed_is_readable_and_nothing_else_is_left(disk, moment):
    for free in FREE if moment != "complete" else FREE[:-2]:
        done = run(WRITE, disk, moment, free)
        said = f"{disk / 'r.h5.partial'}: cannot be written: No space left on device\n"
        assert (done.returncode, done.stderr) == (1, said), (free, done.stderr)
        left = {path.name for path in disk.iterdir()}
        if moment == "begin":
            assert left == {"ballast"}, free
        else:
            assert left == {"ballast", "r.h5.partial"}, free
            with read(disk / "r.h5") as result:
                assert result.steps["loss"][:100, 0].tolist() == list(range(100))
                assert not result.complete
        empty(disk)


@pytest.mark.parametrize("more", [(), ("--checkpoint-every", "1")])
def test_a_run_on_a_full_disk_ends_with_one_line(disk, more):
    for free in FREE[:-1]:
        done = run(TRAIN, disk, free, *more)
        lines = [line for line in done.stderr.splitlines() if ": note: " not in line]
        assert done.returncode == 1, (free, done.stderr)
        assert len(lines) == 1, (free, done.stderr)
        assert "No space left on device" in lines[0]
        assert os.listdir(disk) == ["ballast"], free
        empty(disk)
