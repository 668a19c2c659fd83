"""Who carries an all-reduce: one table, from which training and benchmarks take it by name."""

import numpy as np
import pytest

from allreduce.algorithms import ALGORITHMS, build
from allreduce.collectives import CARRIERS, NAMES, SCHEDULES, Carrier, carrier, maker
from allreduce.errors import ScheduleError
from allreduce.evaluate import evaluate
from allreduce.native import NATIVE
from allreduce.plan import Plan
from allreduce.testing.loopback import World
from mpisgd import cli
from mpisgd.store.reader import read

SCHEDULED = [name for name, row in CARRIERS.items() if row.scheduled]


def test_a_row_each_and_only_a_blocking_call_cannot_be_polled():
    assert list(CARRIERS) == [*ALGORITHMS, *NATIVE, "nccl"]
    assert list(ALGORITHMS) == SCHEDULED
    assert [name for name, row in CARRIERS.items() if not row.polled] == ["mpi"]
    assert all(row.chunked == row.scheduled for row in CARRIERS.values())
    assert carrier("hierarchical:tree") is CARRIERS["hierarchical"]
    assert set(SCHEDULES) == set(NAMES) - {*NATIVE, "nccl"}
    for name in ("rings", "mpi:ring", "hierarchical:mpi", "hierarchical:"):
        with pytest.raises(ScheduleError, match="no all-reduce named"):
            maker(name, 1)


@pytest.mark.parametrize("name", [*SCHEDULED, "hierarchical:ring"])
@pytest.mark.parametrize("size", [1, 3, 4])
def test_what_a_row_makes_sums_to_the_bits_of_its_schedule(name, size):
    world, nodes = World(size, seed=size), [rank // 2 for rank in range(size)]
    make, values = maker(name, size, nodes), [np.full(9, 0.1) * r for r in range(size)]
    made = [make(world.comm(rank), values[rank].copy(), mean=True) for rank in range(size)]
    for each in made:
        each.start()
    world.drive(made)
    evaluate(build(name, size, nodes), values, mean=True)
    assert [each.result.tobytes() for each in made] == [value.tobytes() for value in values]
    for each in made:
        each.close()
    world.check_quiet()


def test_training_takes_a_new_carrier_from_its_row(monkeypatch):
    """One row more, and its name is what a site makes its averages with."""
    asked = []

    def own(name, size, nodes, build):
        asked.append((name, size, nodes))
        return lambda comm, source, result=None, **options: Plan(
            comm, build("tree", size), source, result, **options
        )

    monkeypatch.setitem(CARRIERS, "own", Carrier(own))
    world = World(1)
    with maker("own", 1, [0])(world.comm(0), np.ones(3)) as made:
        made.start()
        assert made.wait().tolist() == [1, 1, 1]
    assert asked == [("own", 1, [0])]


# --- virtual ranks ------------------------------------------------------------------------------

TRAIN = ["train", "--hidden=4", "--data-samples=90", "--steps=6", "--algorithm=dasgd"]


def test_a_library_call_priced_as_a_schedule_is_that_schedule_and_says_so(tmp_path, capsys):
    words = [*TRAIN, "--virtual=3", "--network=ethernet-10g", "--output"]
    assert cli.main([*words, str(tmp_path / "ring.h5"), "--allreduce=ring"]) == 0
    assert "summed" not in capsys.readouterr().err
    named = ["--allreduce=mpi-nonblocking", "--price-as=ring"]
    assert cli.main([*words, str(tmp_path / "mpi.h5"), *named]) == 0
    assert "--allreduce mpi-nonblocking is priced, and summed, as ring" in capsys.readouterr().err
    with read(tmp_path / "ring.h5") as one, read(tmp_path / "mpi.h5") as other:
        assert (other.config["allreduce"], other.config["price_as"]) == ("mpi-nonblocking", "ring")
        for name in one.steps:
            assert np.array_equal(one.steps[name], other.steps[name], equal_nan=True), name
    assert cli.main([*words, str(tmp_path / "advised.h5"), *named, "--algorithm=minibatch"]) == 0
    assert cli.main(["advise", "--from", str(tmp_path / "advised.h5")]) == 0
    advised = capsys.readouterr().out
    assert "--price-as ring" in advised
    assert "--allreduce mpi-nonblocking" in advised
    assert cli.main(["report", str(tmp_path / "mpi.h5")]) == 0
    told = "averages of a library (mpi-nonblocking) are priced, and summed, as ring: "
    assert told in " ".join(capsys.readouterr().out.split())
