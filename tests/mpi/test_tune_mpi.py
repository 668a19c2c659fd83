"""Tables measured on real ranks, what takes them, and rules that MPI libraries obey."""

import json
import tomllib

import pytest
from mpi_ranks import ONE_LIBRARY

from mpisgd.store.reader import read
from mpisgd.tuning.rules import openmpi
from mpisgd.tuning.table import FORCED, Cell, Table, Timed, parse

QUICK = ["--sizes", "1K", "--time-budget", "0.05s", "--chunks", "1", "--max-repetitions", "12"]
RULES = {
    "mpich": ("MPICH", "ring", "recursive_doubling"),
    "openmpi": ("Open MPI", "ring", "linear"),
}
FILE = {
    "mpich": "MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE",
    "openmpi": "OMPI_MCA_coll_tuned_dynamic_rules_filename",
}


@ONE_LIBRARY
def test_a_table_is_measured_and_taken(mpi, tmp_path):
    path = tmp_path / "t.toml"
    words = ["mpisgd", "tune", *QUICK, "--algorithms", "ring,butterfly,mpi,mpi-persistent,mpi:all"]
    done = mpi.run(3, [*words, "--output", str(path)])
    assert done.stdout.startswith("nodes  ranks_per_node")
    table = parse("t", tomllib.loads(path.read_text()))
    shapes = [(1, 2, 1024), (1, 3, 1024)]
    assert [cell[:3] for cell in table.cells] == shapes
    for cell in table.cells:
        names = {timed.algorithm for timed in cell.times}
        assert {"ring", "butterfly", "mpi", "mpi-persistent"} <= names
        assert mpi.name == "system" or any(name.startswith(FORCED) for name in names)
        assert all(timed.median_s > 0 for timed in cell.times)
        assert max(timed.repetitions for timed in cell.times) >= 8
    assert len(table.machine["hosts"]) == 3
    output = tmp_path / "a.h5"
    train = ["mpisgd", "train", "--allreduce", "auto", "--steps", "4", "--algorithm", "dasgd"]
    done = mpi.run(2, [*train, "--tuning", str(path), "--output", str(output)])
    cell = table.nearest(1, 2, 19252, lambda name: name in ("ring", "butterfly", "mpi-persistent"))
    best = cell.fastest(lambda name: name in ("ring", "butterfly", "mpi-persistent"))
    run = read(output)
    assert run.config["allreduce"] == best.algorithm  # mpi blocks: DaSGD cannot look at it
    assert str(path) in run.config["allreduce_from"]
    assert f"--allreduce auto takes {best.algorithm}" in done.stderr
    assert ("a library's own call" in done.stderr) == best.algorithm.startswith("mpi")


@ONE_LIBRARY
def test_without_a_table_a_measured_network_decides(mpi, tmp_path):
    output = tmp_path / "a.h5"
    words = ["mpisgd", "train", "--allreduce", "auto", "--steps", "4", "--output", str(output)]
    done = mpi.run(2, words, environment={"MPISGD_TUNING": ""})
    assert "simulated on a network measured at the start, 2 ranks" in done.stderr
    assert read(output).config["allreduce"] != "auto"
    done = mpi.run(2, ["mpisgd", "bench", "allreduce", "--algorithms", "ring,auto", "--sizes", "1K",
                       "--min-repetitions", "6", "--max-repetitions", "6"])  # fmt: skip
    assert "regret" in done.stdout


@pytest.mark.parametrize("swapped", [False, True])
def test_rules_are_obeyed(mpi, tmp_path, swapped):
    """The bits at two sizes are those of the algorithms that the rules name."""
    if mpi.name not in RULES:
        pytest.skip("rules are written for the MPICH and Open MPI of the wheels")
    library, *names = RULES[mpi.name]
    small, large = reversed(names) if swapped else names
    times = [(Timed(FORCED + name, 1, 1e-6, None, None, 8),) for name in (small, large)]
    cells = [Cell(1, 3, size, True, one) for size, one in zip((4096, 65536), times, strict=True)]
    table = Table(tuple(cells), {"mpi_library": library})
    path, rules = tmp_path / "t.toml", tmp_path / "rules"
    path.write_text(table.toml())
    if mpi.name == "openmpi":
        rules.write_text(openmpi(table))
    else:
        words = ["mpisgd", "tune", "--from", str(path), "--format", "mpich"]
        mpi.run(1, [*words, "--output", str(rules)])
    done = mpi(3, "reduction_bits.py", environment={FILE[mpi.name]: str(rules)})
    found = json.loads(done.stdout)
    assert found[small] != found[large]
    assert found[""] == [found[small][0], found[large][1]]


@ONE_LIBRARY
def test_mistakes_on_ranks(mpi):
    wide = ["mpisgd", "tune", "--nodes", "9"]
    done = mpi.run(2, wide, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--nodes 9: at most 1, which is what was started" in done.stderr
    done = mpi.run(2, ["mpisgd", "tune", "--algorithms", "mpi:nonsense"], check=False)
    assert "--algorithms 'mpi:nonsense': this library's own are" in done.stderr
