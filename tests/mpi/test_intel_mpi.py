"""A smaller set on Intel MPI: plans and collectives, training on each carrier, benchmarks."""

import json

import pytest

from allreduce.native import NATIVE


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_laws(intel_mpi, ranks):
    assert f"checks passed on {ranks} ranks" in intel_mpi(ranks, "laws.py", timeout=120).stdout


def test_training_is_the_same_whoever_carries_its_averages(intel_mpi):
    assert "32 runs agree" in intel_mpi(2, "train_carriers.py", timeout=120).stdout


def test_the_benchmark_names_the_library(intel_mpi):
    words = ["mpisgd", "bench", "allreduce", "--sizes", "8", "--algorithms", "tree,mpi",
             "--time-budget", "0.1s", "--format", "json"]  # fmt: skip
    asked = {"I_MPI_ASYNC_PROGRESS": "0"}
    rows = json.loads(intel_mpi.run(2, words, timeout=60, environment=asked).stdout)
    assert {row["algorithm"] for row in rows} >= {"tree", "mpi"}
    assert all(row["library"].startswith("Intel MPI 20") for row in rows)
    assert all(row["library"].endswith(" I_MPI_ASYNC_PROGRESS=0") for row in rows)
    assert not any(row["wrong"] for row in rows)


@pytest.mark.parametrize("name", NATIVE)
def test_a_stalled_allreduce_of_the_library_ends_the_job(intel_mpi, name):
    done = intel_mpi(2, "stall.py", name, check=False, timeout=40)
    assert done.returncode != 0
    assert f"for some of the 2 ranks in all-reduce {name}" in done.stderr + done.stdout
