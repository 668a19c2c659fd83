"""The benchmarks on a double of a device that stands in for CuPy, on real ranks."""

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi_ranks import CHECKOUT, ONE_LIBRARY

from allreduce.algorithms import ALGORITHMS
from allreduce.collectives import CARRIERS
from allreduce.native import NATIVE
from allreduce.testing import device
from mpisgd import cli
from mpisgd.bench.operations import MOCK_UPS
from mpisgd.store.reader import read

STAND_IN = str(Path(device.__file__).parent.parent / "stand_in")
QUICK = ("--min-repetitions", "6", "--max-repetitions", "6", "--format", "json")
pytestmark = ONE_LIBRARY


def bench(mpi: Any, ranks: int, *words: str, **variables: str) -> tuple[list[dict[str, Any]], str]:
    paths = f"{STAND_IN}:{CHECKOUT / 'tests'}"
    variables = {f"DEVICE_DOUBLE_{name}": value for name, value in variables.items()}
    command = ["mpisgd", "bench", *words, "--backend", "cupy", *QUICK]
    done = mpi.run(ranks, command, timeout=150, environment={"PYTHONPATH": paths, **variables})
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


def train(mpi: Any, output: Path, *words: str, **variables: str) -> Any:
    environment = {f"DEVICE_DOUBLE_{name}": value for name, value in variables.items()}
    command = ["mpisgd", "train", "--algorithm", "dasgd", "--hidden", "4", "--steps", "6", *words,
               "--evaluate-every", "0", "--output", str(output), "--overwrite"]  # fmt: skip
    environment["PYTHONPATH"] = STAND_IN
    return mpi.run(2, command, timeout=150, check=False, environment=environment)


def test_training_goes_the_way_that_was_chosen_to_the_same_losses(mpi, tmp_path):
    losses, ways = [], []
    for words, variables in (
        ("", {}),
        ("--backend cupy", {}),
        ("--backend cupy --cuda-aware yes", {"AWARE": "1"}),
        ("--backend cupy --allreduce nccl --progress thread", {"DEVICES": "2"}),
    ):
        done = train(mpi, tmp_path / "t.h5", *words.split(), **variables)
        assert done.returncode == 0, done.stderr
        with read(tmp_path / "t.h5") as run:
            losses.append(np.asarray(run.steps["loss"]).tobytes())
            ways.append(run.environment.get("staging"))
    assert len(set(losses)) == 1  # two ranks have one order
    staged = "pinned host memory"
    assert ways == [None, staged, "none: device memory goes to MPI", staged]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--allreduce nccl", "--allreduce 'nccl': with --backend cupy only"),
        ("--cuda-aware yes", "--cuda-aware 'yes': --backend numpy has no memory of a device"),
        (
            "--backend cupy --allreduce nccl",
            "it needs a device a rank, and ranks 0 and 1 share one",
        ),
    ],
)
def test_what_cannot_carry_averages_is_refused_by_name_and_nothing_is_written(
    mpi, words, said, tmp_path
):
    done = train(mpi, tmp_path / "t.h5", *words.split())
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_calibration_times_steps_sums_and_copies_there(mpi, tmp_path):
    file = tmp_path / "here.toml"
    command = ["mpisgd", "calibrate", "--backend", "cupy", "--repetitions", "6", "--batches", "4",
               "--output", str(file), "--format", "json"]  # fmt: skip
    done = mpi.run(2, command, timeout=150, environment={"PYTHONPATH": STAND_IN})
    rows = {row["quantity"]: row["value"] for row in json.loads(done.stdout)}
    found = tomllib.loads(file.read_text())["calibration"]
    assert found["backend"] == "cupy"
    for key in ("copy_out_Bps", "copy_in_Bps", "copy_latency_s"):
        assert rows[key] == found[key] > 0
        assert key not in found.get("doubtful", [])  # it is nothing that a network has
    assert (
        cli.main(["simulate", "--algorithm", "ring", "--ranks", "2", "--network", str(file)]) == 0
    )


def test_a_fault_of_the_device_ends_all_ranks_by_its_name(mpi):
    words = ["mpisgd", "bench", "allreduce", "--backend", "cupy", "--algorithms", "ring", *QUICK]
    environment = {"PYTHONPATH": STAND_IN, "DEVICE_DOUBLE_FAULT": "60"}
    done = mpi.run(2, words, timeout=150, check=False, environment=environment)
    assert done.returncode not in (0, 2)
    assert "cudaErrorIllegalAddress" in done.stderr
    assert "has waited" not in done.stderr
