"""Parameter servers on real ranks: the same bits, accounts that replay, leaving together."""

import signal
from pathlib import Path

import numpy as np
import pytest
from mpi_ranks import Ranks

from mpisgd.cli import main
from mpisgd.store.reader import Run, read

COMMON = (
    "train --model quadratic --data noise --data-samples 240 --batch 4 --lr 0.05 --dtype float64 "
    "--evaluate-every 10 --deadline 120s"
)

LAYERS = "--model mlp --hidden 16,12,8 --data synthetic --dtype float32"

ROWS = "--model bag --hidden 8 --data documents --dtype float32 --push sparse --pull sparse"

PULLED = f"--push layerwise --pull layerwise {LAYERS}"


def trained(mpi: Ranks, ranks: int, file: Path, options: str, **more: object) -> Run:
    """The result of a run on real ranks."""
    words = ["mpisgd", *f"{COMMON} {options}".split(), "--output", str(file)]
    mpi.run(ranks, words, **more)  # type: ignore[arg-type]
    return read(file)


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (2, "--algorithm async --steps 40"),
        (5, "--algorithm backup --backups 0 --steps 30 --ema 0.9"),
        (6, "--algorithm softsync --servers 3 --steps 30 --optimiser rmsprop"),
        (4, "--algorithm backup --backups 0 --steps 30 --servers 2 --colocated"),
        (6, f"--algorithm backup --backups 0 --steps 20 --servers 3 --push layerwise {LAYERS}"),
        (6, f"--algorithm backup --backups 0 --steps 20 --servers 3 {PULLED}"),
        (5, "--algorithm backup --backups 0 --steps 20 --servers 3 --pull start --colocated"),
        (5, "--algorithm backup --backups 0 --steps 30 --servers 2 --reads consistent"),
        (4, "--algorithm softsync --steps 30 --prefetch"),
        (5, f"--algorithm backup --backups 0 --steps 12 --servers 3 {ROWS}"),
        (4, f"--algorithm softsync --steps 12 --servers 2 --colocated {ROWS} --pull answer"),
        (
            4,
            "--algorithm backup --backups 0 --steps 12 --requeue --straggler 1:pause@5+200ms "
            "--servers 2 --colocated --reads consistent",
        ),
    ],
)
def test_real_and_virtual_runs_have_the_same_bits(mpi, tmp_path, ranks, options):
    """Those whose bits no order of arrivals decides."""
    words = [*f"{COMMON} {options}".split(), "--output", str(tmp_path / "virtual.h5")]
    assert main([*words, "--virtual", str(ranks)]) == 0
    with (
        read(tmp_path / "virtual.h5") as virtual,
        trained(mpi, ranks, tmp_path / "real.h5", options) as real,
    ):
        assert real.summary["parameters_sha256"] == virtual.summary["parameters_sha256"]
        for name in ("step", "samples_used", "loss"):
            assert np.array_equal(real.evaluation[name], virtual.evaluation[name])
        assert np.array_equal(np.sort(real.updates["step"]), np.sort(virtual.updates["step"]))


@pytest.mark.parametrize(
    "options",
    [
        "--algorithm async",
        "--algorithm async --servers 2 --prefetch",
        f"--algorithm async --servers 3 --push layerwise --reads consistent {LAYERS}",
        f"--algorithm backup --stale abandon --servers 2 --push layerwise --colocated {LAYERS}",
        f"--algorithm async --servers 3 {PULLED} --cut layers",
        f"--algorithm softsync --group 2 --servers 3 --colocated {PULLED}",
        f"--algorithm backup --stale abandon --servers 2 {ROWS}",
        "--algorithm backup --backups 1 --straggler 2:5x",
        "--algorithm backup --backups 1 --stale abandon --servers 2 --requeue",
        "--algorithm softsync --group 2 --staleness-rate --servers 2 --colocated",
        "--algorithm async --servers 2 --straggler 1:pause@8+40,0:join@100ms,2:2x",
        "--algorithm timeout --timeout auto --straggler 1:pause@8+40,2:5x",
        "--algorithm timeout --timeout 2ms --stale abandon --servers 2 --colocated",
    ],
)
def test_a_real_run_replays_to_the_same_bits(mpi, tmp_path, options):
    file = tmp_path / "run.h5"
    slow = f"{options} --steps 25 --step-time 1ms"
    with trained(mpi, 6, file, slow if "straggler" in slow else f"{slow} --straggler exponential"):
        assert main(["replay", str(file)]) == 0


def soaked(mpi: Ranks, path: Path, steps: int, options: str) -> Run:
    """A long run of 4 ranks in which nothing grows on any of them, and no gradient is lost."""
    words = f"{COMMON} --lr 0.001 --algorithm async --steps {steps} {options}".split()[1:]
    mpi(4, "soak_served.py", steps // 20, *words, "--output", path, timeout=240)
    run = read(path)
    servers = int(run.config["servers"])
    workers = 4 - servers
    for server in range(servers):
        used = run.updates["used"][run.updates["server"] == server]
        assert used.sum() == workers * steps
        assert len(used) - used.sum() <= workers
    return run


def test_a_thousand_updates(mpi, tmp_path):
    with soaked(mpi, tmp_path / "soak.h5", 334, "") as run:
        assert run.updates["staleness"].mean() == pytest.approx(2, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("options", ["", "--servers 2 --reads consistent", "--prefetch"])
def test_ten_thousand_updates(mpi, tmp_path, options):
    with soaked(mpi, tmp_path / "soak.h5", 3334, options) as run:
        assert run.complete


def test_not_finite_and_mistakes_reach_everyone(mpi, tmp_path):
    words = ["mpisgd", *f"{COMMON} --algorithm async --steps 4000 --servers 2 --lr 1000".split()]
    file = tmp_path / "run.h5"
    done = mpi.run(5, [*words, "--output", str(file)], check=False)
    assert done.returncode == 3
    assert done.stderr.count("not finite on worker") == 1
    with read(file) as run:
        assert not run.complete
        assert "not finite" in run.reason
    done = mpi.run(3, [*words, "--servers", "3"], check=False)
    assert done.returncode == 2
    assert done.stderr.count("leave a rank for a worker") == 1


def test_what_only_rank_0_finds_wrong_ends_all(mpi, tmp_path):
    """As when another job has taken the name since it was checked."""
    words = f"{COMMON} --algorithm async --steps 50 --servers 2".split()[1:]
    words = ["refused", "worker", "0", "1", *words, "--output", str(tmp_path / "run.h5")]
    done = mpi(4, "leave_served.py", *words, check=False)
    assert done.returncode == 2
    assert done.stderr.count("another job has just made it") == 1
    assert done.stderr.count("error") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_dead_worker_ends_the_run_and_leaves_a_file(mpi, tmp_path):
    """Both MPI libraries end the job when a process dies; what was recorded is readable."""
    words = ["mpisgd", *f"{COMMON} --algorithm async --steps 4000 --straggler 1:die@50".split()]
    file = tmp_path / "run.h5"
    done = mpi.run(4, [*words, "--output", str(file)], check=False, timeout=150)
    assert done.returncode not in (0, signal.SIGTERM)
    with read(file) as run:
        assert not run.complete
