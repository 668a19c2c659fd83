"""Training on devices, which are doubles: NumPy's bits, and every fault is seen."""

from pathlib import Path

import numpy as np
import pytest
from mpi_ranks import ONE_LIBRARY, Ranks

from allreduce.testing import stand_in
from mpisgd.store.reader import read

pytestmark = ONE_LIBRARY
PROGRAM = "train_devices.py"
THERE = {"PYTHONPATH": str(Path(*stand_in.__path__))}
DEVICES = {
    "late": {"DEVICE_DOUBLE_DEVICES": "2"},
    "at once, a stream a thread": {
        "DEVICE_DOUBLE_POLLS": "0",
        "CUPY_CUDA_PER_THREAD_DEFAULT_STREAM": "1",
    },
}


@pytest.fixture
def device(mpi: Ranks) -> Ranks:
    """Ranks that find the double where they import CuPy."""
    return mpi._replace(variables={**mpi.variables, **THERE})


@pytest.mark.parametrize("kind", DEVICES)
def test_every_algorithm_and_model_has_numpys_bits_on_a_device(device, kind):
    done = device(4, PROGRAM, environment=DEVICES[kind], timeout=150)
    assert done.stdout == "26 experiments, 0 wrong\n"


@pytest.mark.parametrize(
    "fault", ["--missing-fence", "--late-stream", "--wrong-device", "--host-read"]
)
def test_planted_faults_are_seen(device, fault):
    environment = {"DEVICE_DOUBLE_DEVICES": "2"}
    done = device(2, PROGRAM, fault, "dasgd", "local", check=False, environment=environment)
    assert done.returncode or "2 experiments, 0 wrong" not in done.stdout


OPTIONS = (
    "--data digits --hidden 5 --batch 3 --steps 12 --evaluate-every 5 --algorithm dasgd --tau 3 "
    "--delay 2 --ema 0.9"
)
COMMON = ["train", *OPTIONS.split()]


def run(ranks: Ranks, output: Path, *words: str, **environment: str) -> tuple[str, list[bytes]]:
    """The digest of the parameters that a run ends with, and its losses."""
    argv = ["mpisgd", *COMMON, *words, "--output", str(output)]
    ranks.run(2, argv, environment=environment)
    with read(output) as file:
        found = [file.steps["loss"], *(file.evaluation[n] for n in ("loss", "ema_loss"))]
        return file.summary["parameters_sha256"], [np.asarray(a).tobytes() for a in found]


def test_a_resumed_run_and_one_whose_data_do_not_fit_have_numpys_bits(device, tmp_path: Path):
    whole = run(device, tmp_path / "numpy.h5")
    parts = tmp_path / "parts.h5"
    cupy = ("--backend", "cupy")
    run(device, parts, *cupy, "--checkpoint-every", "3", "--steps", "7")
    assert run(device, parts, *cupy, "--resume", "auto") == whole
    assert run(device, tmp_path / "full.h5", *cupy, DEVICE_DOUBLE_MEMORY="400000") == whole


def test_what_is_not_finite_ends_the_run_as_on_the_host(device):
    said = [
        device.run(2, ["mpisgd", *COMMON, "--lr", "1e30", "--backend", backend], check=False)
        for backend in ("numpy", "cupy")
    ]
    assert said[0].returncode == said[1].returncode == 3
    shared, *rest = said[1].stderr.splitlines(keepends=True)
    assert "2 ranks share the device" in shared
    assert said[0].stderr == "".join(rest)
