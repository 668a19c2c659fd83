"""The benchmarks on a double of a device that stands in for CuPy, on real ranks."""

import json
from pathlib import Path
from typing import Any

import pytest
from mpi_ranks import CHECKOUT, ONE_LIBRARY

from allreduce.algorithms import ALGORITHMS
from allreduce.collectives import CARRIERS
from allreduce.native import NATIVE
from allreduce.testing import device
from mpisgd.bench.operations import MOCK_UPS
from mpisgd.store.reader import read

STAND_IN = str(Path(device.__file__).parent.parent / "stand_in")
QUICK = ("--min-repetitions", "6", "--max-repetitions", "6", "--format", "json")
pytestmark = ONE_LIBRARY


def bench(mpi: Any, ranks: int, *words: str, **variables: str) -> tuple[list[dict[str, Any]], str]:
    paths = f"{STAND_IN}:{CHECKOUT / 'tests'}"
    variables = {f"DEVICE_DOUBLE_{name}": value for name, value in variables.items()}
    command = ["mpisgd", "bench", *words, "--backend", "cupy", *QUICK]
    done = mpi.run(ranks, command, timeout=100, environment={"PYTHONPATH": paths, **variables})
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize(("ranks", "polls"), [(1, "4"), (2, "0"), (3, "4")])
def test_every_row_through_the_host_is_right_and_the_rest_is_told(mpi, ranks, polls, tmp_path):
    output = tmp_path / "b.h5"
    rows, said = bench(
        mpi, ranks, "allreduce", "--sizes", "4,4K" if ranks < 3 else "4K", "--chunks", "1,3",
        "--output", str(output), POLLS=polls,
    )  # fmt: skip
    found = {row["algorithm"] for row in rows}
    assert found == {*ALGORITHMS, *NATIVE, *(["nccl"] if ranks == 1 else [])}
    assert not any(row["wrong"] for row in rows)
    assert {row["memory"] for row in rows if row["algorithm"] != "nccl"} == {"device, staged"}
    assert all(0 < row["device_s"] < 60 for row in rows)
    assert ("ranks share the device" in said) == (ranks > 1)
    assert "without mpi-reduce-bcast: it is the library's" in said
    facts = read(output).environment
    assert facts["staging"] == "pinned host memory"
    assert (facts["device_name"], len(facts["device_of_each_rank"])) == ("a double", ranks)


def test_a_library_that_takes_device_memory_is_given_it_and_nccl_has_a_device_a_rank(mpi):
    rows, said = bench(
        mpi, 2, "allreduce", "--sizes", "4K", "--both", "--cuda-aware", "yes",
        AWARE="1", DEVICES="2",
    )  # fmt: skip
    crash = set(NATIVE) - {"mpi"} if "crashes Open MPI" in said else set()
    assert {row["algorithm"] for row in rows} == {*CARRIERS, *MOCK_UPS} - crash
    assert not any(row["wrong"] for row in rows)
    assert {row["memory"] for row in rows} == {"device, as it is"}


def test_work_on_the_device_hides_an_all_reduce_that_is_looked_at(mpi):
    rows, _ = bench(
        mpi, 2, "overlap", "--algorithms", "ring,nccl", "--sizes", "4K", "--polls", "0,8",
        "--progress", "poll", "--work-time", "1ms", POLLS="2",
    )  # fmt: skip
    assert [(row["algorithm"], row["polls"]) for row in rows] == [("ring", 0), ("ring", 8)]
    assert all(row["work"] == "gemm" and row["device_dilation"] > 0 for row in rows)


def test_a_fault_of_the_device_ends_all_ranks_by_its_name(mpi):
    words = ["mpisgd", "bench", "allreduce", "--backend", "cupy", "--algorithms", "ring", *QUICK]
    environment = {"PYTHONPATH": STAND_IN, "DEVICE_DOUBLE_FAULT": "60"}
    done = mpi.run(2, words, timeout=60, check=False, environment=environment)
    assert done.returncode not in (0, 2)
    assert "cudaErrorIllegalAddress" in done.stderr
    assert "has waited" not in done.stderr
