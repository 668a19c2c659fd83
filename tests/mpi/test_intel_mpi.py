"""A smaller set on Intel MPI: plans and collectives, training on each carrier, benchmarks."""

import json

import pytest

from allreduce.native import NATIVE
from mpisgd.mpi.lab import Lab, missing

# What rank 0 sends to rank 1 is counted by the interface of its host; the least bytes over 1 MiB.
OVER_THE_WIRE = """
import os, socket
import numpy as np
from mpi4py.MPI import COMM_WORLD as world
def sent(): return int(open('/sys/class/net/e0/statistics/tx_bytes').read())
data, before = np.zeros(2**20, np.uint8), sent()
world.Barrier()
(world.Send if world.rank % 2 == 0 else world.Recv)(data, world.rank ^ 1)
world.Barrier()
told = int(world.rank % 2 == 1 or sent() - before > data.size)
os.write(1, b'%d %s %d\\n' % (world.rank, socket.gethostname().encode(), told))
"""


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_laws(intel_mpi, ranks):
    assert f"checks passed on {ranks} ranks" in intel_mpi(ranks, "laws.py", timeout=150).stdout


def test_training_is_the_same_whoever_carries_its_averages(intel_mpi):
    assert "32 runs agree" in intel_mpi(2, "train_carriers.py", timeout=150).stdout


def test_the_benchmark_names_the_library(intel_mpi):
    words = ["mpisgd", "bench", "allreduce", "--sizes", "8", "--algorithms", "tree,mpi",
             "--time-budget", "0.1s", "--format", "json"]  # fmt: skip
    asked = {"I_MPI_ASYNC_PROGRESS": "0"}
    rows = json.loads(intel_mpi.run(2, words, timeout=150, environment=asked).stdout)
    assert {row["algorithm"] for row in rows} >= {"tree", "mpi"}
    assert all(row["library"].startswith("Intel MPI 20") for row in rows)
    assert all(row["library"].endswith(" I_MPI_ASYNC_PROGRESS=0") for row in rows)
    assert not any(row["wrong"] for row in rows)


@pytest.mark.parametrize("name", NATIVE)
def test_a_stalled_allreduce_of_the_library_ends_the_job(intel_mpi, name):
    done = intel_mpi(2, "stall.py", name, check=False, timeout=150)
    assert done.returncode != 0
    assert f"for some of the 2 ranks in all-reduce {name}" in done.stderr + done.stdout


@pytest.mark.lab
def test_in_a_lab_ranks_go_round_the_hosts_and_messages_over_the_wire(intel_mpi):
    if reason := missing():
        pytest.skip(reason)
    with Lab(2, "200mbit", mpiexec=intel_mpi.launcher.path) as lab:
        done = lab.run([intel_mpi.python, "-c", OVER_THE_WIRE], ranks=4, timeout=150)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"{rank} h{rank % 2} 1" for rank in range(4)]
