"""Tables of measured all-reduces: races, files, what is chosen by them, rules for MPI libraries."""

import json
import os
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

import mpisgd
from allreduce.algorithms import build
from allreduce.measure import Rule
from allreduce.network import PRESETS
from allreduce.simulate import simulate
from allreduce.testing.loopback import World
from mpisgd import cli
from mpisgd.commands.tune import disturbances
from mpisgd.mpi.cores import Place, Places
from mpisgd.predict import costs, networks
from mpisgd.submit import estimate, grid
from mpisgd.training.parameters import Parameters
from mpisgd.tuning import auto, race
from mpisgd.tuning.race import Contender, known, surviving
from mpisgd.tuning.rules import mpich, openmpi
from mpisgd.tuning.table import Cell, Table, Timed, parse
from mpisgd.values.errors import UsageError


def timed(algorithm, median_s, chunks=1):
    return Timed(algorithm, chunks, median_s, None, median_s, 10)


CELLS = (
    Cell(1, 2, 1024, True, (timed("mpi", 1e-6), timed("tree", 2e-6), timed("mpi:ring", 3e-6))),
    Cell(1, 2, 65536, True, (timed("ring", 1e-5, 8), timed("mpi:recursive_doubling", 2e-5))),
    Cell(4, 1, 1024, False, (timed("mpi-persistent", 1e-3), timed("mpi:ring", 2e-3))),
)
MACHINE = {"mpi_library": "MPICH 5", "hosts": ["a", "b"], "mpi_progress": {"X_Y": "1"}}
TABLE = Table(CELLS, MACHINE)
OURS = re.compile("(?!mpi)").match


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MPISGD_TUNING", raising=False)
    (tmp_path / "t.toml").write_text(TABLE.toml())
    return "t.toml"


# The race


def seconds(*medians, repetitions=20, spread=0.01):
    """Samples [repetition, rank] around each median, evenly spread."""
    wave = 1 + spread * np.linspace(-1, 1, repetitions)
    return [median * np.stack([wave, wave / 2], axis=1) for median in medians]


def test_who_is_clearly_behind_drops_out_and_who_may_lead_stays():
    found = seconds(1.0, 1.005, 1.5)
    assert surviving(found, [0, 1, 2]) == [0, 1]
    assert surviving(found, [1, 2]) == [1]
    few = seconds(1.0, 1.9, 2.5, repetitions=3)  # at a glance only who is hopeless
    assert surviving(few, [0, 1, 2]) == [0, 1]


def test_an_order_is_known_when_intervals_part_or_the_difference_costs_little():
    assert known(seconds(1.0, 1.5), [0, 1], 0.0)
    assert not known(seconds(1.0, 1.001), [0, 1], 0.0)
    assert known(seconds(1.0, 1.001), [0, 1], 0.05)
    assert not known(seconds(1.0, 1.001, spread=0.5), [0, 1], 0.05)


def test_a_race_ends_when_the_order_is_known_and_closes_all(monkeypatch):
    """The clock is planted: one contender takes ten times as long as another of its kind."""
    closed, called = [], []

    def contender(name, kind):
        prepare = (lambda: called.append(name)) if name == "forced" else None
        return Contender(name, 1, kind, lambda: None, lambda: closed.append(name), prepare)

    there = [contender("a", "x"), contender("slow", "x"), contender("forced", "y")]
    cost = {"a": 1.0, "slow": 10.0, "forced": 3.0}

    def repeat(comm, operations, rule, deadline):
        drift = 1 + 0.01 * np.arange(rule.maximum)[:, None] / rule.maximum
        for operation in operations:
            operation()
        names = [*("a", "slow")[: len(operations) - 2], "before", "forced"]
        return [cost.get(name, 99.0) * drift for name in names]

    monkeypatch.setattr(race, "repeat", repeat)
    found = race.race(World(1).comm(0), there, Rule(10, 100, 5.0, 0.03), 10.0)
    assert found.settled
    assert [len(s) for s in found.seconds] == [13, 3, 13]  # one was seen through at a glance
    assert float(found.seconds[2].min()) == 3.0  # what comes before is not what is timed
    assert called == ["forced", "forced"]
    assert sorted(closed) == ["a", "forced", "slow"]


# The file


def test_a_table_is_read_back_as_it_was():
    assert parse("t", tomllib.loads(TABLE.toml())) == TABLE


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("[[cell]]", "[[cells]]", "t: cell: tables"),
        ("nodes = 1", "nodes = 0", r"t: cell\[1\].nodes 0: a whole number in 1"),
        ("settled = true", "", r"t: cell\[1\].settled: true or false"),
        ("median_s = 1e-06", "median_s = nan", r"t: cell\[1\].times\[1\].median_s nan"),
        ("chunks = 1,", "chunks = 0,", r"times\[1\].chunks 0: a whole number in 1..256"),
        ('algorithm = "mpi",', "", r"times\[1\].algorithm: a text"),
    ],
)
def test_what_tune_would_not_write_is_refused(old, new, told):
    text = TABLE.toml()
    assert old in text
    with pytest.raises(UsageError, match=told):
        parse("t", tomllib.loads(text.replace(old, new) if "cell" in old else
                                 text.replace(old, new, 1)))  # fmt: skip


def test_the_nearest_cell_is_that_of_the_nodes_then_ranks_then_bytes():
    every = lambda name: True  # noqa: E731
    assert TABLE.nearest(1, 2, 1000, every) == CELLS[0]
    assert TABLE.nearest(1, 7, 40000, every) == CELLS[1]
    assert TABLE.nearest(8, 2, 65536, every) == CELLS[2]
    assert TABLE.nearest(8, 2, 65536, OURS) == CELLS[1]  # nothing of ours was measured there
    assert TABLE.nearest(1, 2, 4, lambda name: False) is None


# What is chosen


def test_what_a_race_left_open_is_said():
    every = lambda name: ":" not in name  # noqa: E731
    settled = auto.choose(TABLE, "t", auto.Load(1024), [0, 0], every)
    assert settled.told == "t, 1 x 2 ranks, 1024 B"
    open_ = auto.choose(TABLE, "t", auto.Load(1024), [0, 1, 2, 3], every)
    assert open_.told == "t, 4 x 1 ranks, 1024 B; its race was not settled"


def test_a_disturbed_table_says_so_and_so_does_what_it_chooses():
    place = Place("h", frozenset({0}), "m")
    assert disturbances(Places([place]), 0.0, CELLS[:1]) == []
    load = float(os.cpu_count() or 1)
    assert disturbances(Places([place]), load, ())[0].startswith(f"a load of {load:.3g} on ")
    told = disturbances(Places([place, place]), 0.0, [CELLS[0]._replace(settled=False)])
    assert told == ["2 ranks on a core", "1 of 1 races not settled"]
    table = parse("t", tomllib.loads(Table(CELLS, MACHINE | {"disturbed": told}).toml()))
    found = auto.choose(table, "t", auto.Load(1024), [0, 0], lambda name: ":" not in name)
    assert found.told.endswith("; disturbed when it was made: 2 ranks on a core; 1 of 1 races not "
                               "settled")  # fmt: skip


def chosen(**options):
    config = mpisgd.run(steps=2, ranks=2, **options).record.config
    return config["allreduce"], config["chunks"], config["allreduce_from"]


def test_a_virtual_run_takes_the_fastest_schedule_of_a_table(table, monkeypatch):
    name, chunks, told = chosen(allreduce="auto", tuning=table)
    assert (name, chunks) == ("ring", 8)
    assert told == "t.toml, 1 x 2 ranks, 65536 B, the nearest to 1 x 2, 19252 B"
    monkeypatch.setenv("MPISGD_TUNING", table)
    assert chosen(allreduce="auto")[0] == "ring"
    assert chosen(allreduce="auto", algorithm="minibatch-overlap", bucket_bytes=2048)[0] == "tree"
    assert chosen(allreduce="tree") == ("tree", 1, None)


@pytest.mark.parametrize(("name", "ranks"), [("titanx-20g", 16), ("ethernet-10g", 5)])
def test_without_a_table_the_simulator_chooses(name, ranks):
    links = PRESETS[name]
    nodes = links.nodes(ranks)
    for nbytes in (64, 1 << 22):
        found = auto.choose(links, name, auto.Load(nbytes), nodes, OURS)
        each = {
            n: simulate(build(n, ranks, nodes), nbytes, links).max()
            for n in ("tree", "double-tree", "butterfly", "halving-doubling", "ring",
                      "hierarchical")
        }  # fmt: skip
        assert each[found.algorithm] == min(each.values())
    free = auto.choose(PRESETS["ideal"], "ideal", auto.Load(64), [0] * 4, OURS)
    assert free.algorithm == "butterfly"  # of equal ones the default
    wide = auto.choose(
        PRESETS["ideal"], "ideal", auto.Load(64), [0] * 1025, lambda n: n in ("ring", "tree")
    )
    assert wide.algorithm == "tree"


@pytest.mark.parametrize("wire", ["int8", "bfloat16", "topk:0.01", "powersgd:1"])
def test_the_wire_is_priced(wire):
    """By the simulator as what travels; by a table at the bytes that do."""
    from allreduce.compress import priced
    from allreduce.wire import Wire

    links, nodes = PRESETS["ethernet-10g"], list(range(8))
    chosen = auto.choose(links, "n", auto.Load(1 << 19, 4, Wire(wire)), nodes, OURS)
    each = {}
    for name in ("tree", "butterfly", "halving-doubling", "ring"):
        schedule, carried = priced(Wire(wire), build(name, 8), 1 << 17, 4)
        each[name] = simulate(schedule, network=links, **carried._asdict()).max()
    assert each[chosen.algorithm] == min(each.values())
    assert chosen.told.endswith(f"524288 B as {wire}")
    full = auto.choose(links, "n", auto.Load(1 << 19, 4), nodes, OURS)
    assert full.algorithm == "halving-doubling"
    near = auto.choose(TABLE, "t", auto.Load(24000, 4, Wire(wire)), [0, 0], OURS)
    whole = auto.choose(TABLE, "t", auto.Load(24000, 4), [0, 0], OURS)
    assert (near.algorithm, whole.algorithm) == ("tree" if wire != "bfloat16" else "ring", "ring")


@pytest.mark.parametrize("wire", ["int8", "float16"])
def test_a_run_with_a_wire_is_chosen_for_and_its_delay_is_that_of_what_travels(wire):
    options = {"allreduce": "auto", "network": "ethernet-10g", "algorithm": "dasgd", "ranks": 4}
    options |= {"hidden": [512], "steps": 2, "step_time": "5us", "delay": "auto"}
    coded, full = (mpisgd.run(wire=each, **options).record.config for each in (wire, "float32"))
    assert f" as {wire}" in coded["allreduce_from"]
    assert 1 <= coded["delay"] < full["delay"]


def test_blocking_calls_carry_only_what_is_waited_for(table):
    """On ranks: a delayed average has to move on while somebody looks."""
    from mpisgd.experiment.experiment import Experiment

    def took(**options):
        experiment = Experiment(allreduce="auto", tuning=table, **options).resolved(2, 100)
        weights = Parameters({"w": (256,)})
        return auto.settled(experiment, weights, [0] * 2, False, lambda: None).allreduce

    for algorithm in ("minibatch", "local", "slowmo", "diloco", "post-local", "gossip"):
        assert took(algorithm=algorithm) == "mpi"
    for algorithm in ("minibatch-overlap", "streaming-diloco", "easgd"):
        assert took(algorithm=algorithm) == "tree"
    assert took(algorithm="dasgd") == took(algorithm="local", progress="thread") == "tree"


def test_a_resumed_run_keeps_what_was_chosen(table, tmp_path):
    words = {"allreduce": "auto", "ranks": 2, "output": "a.h5", "checkpoint_every": 2}
    first = mpisgd.run(**words, tuning=table, steps=4)
    again = mpisgd.run(**words, steps=8, resume="auto")
    assert first.record.config["allreduce"] == again.record.config["allreduce"] == "ring"
    assert again.record.config["chunks"] == 8
    assert again.record.complete


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--tuning", "t.toml"], "--tuning 't.toml': only with --allreduce auto"),
        (["--allreduce", "auto", "--chunks", "2"], "--chunks 2: --allreduce auto chooses them"),
        (["--allreduce", "auto", "--tuning", "no.toml"], "--tuning 'no.toml': No such file"),
        (["--allreduce", "auto", "--tuning", "no"], "--tuning 'no': no table of mpisgd tune"),
        (["--allreduce", "auto", "--tuning", "library.toml"],
         "--tuning 'library.toml': measured nothing that may carry these averages"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(table, words, told, capsys, tmp_path):
    (tmp_path / "library.toml").write_text(Table(CELLS[2:], MACHINE).toml())
    assert cli.main(["train", "--virtual", "2", "--steps", "2", "--output", "o.h5", *words]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") - error.count("note:") == 1
    assert not (tmp_path / "o.h5").exists()


def test_a_mistake_in_the_variable_names_it(table, monkeypatch, capsys):
    for path, told in (("no.toml", "MPISGD_TUNING 'no.toml': No such file"),
                       ("bad.toml", "MPISGD_TUNING bad.toml: cell: tables")):  # fmt: skip
        Path("bad.toml").write_text("cell = 3")
        monkeypatch.setenv("MPISGD_TUNING", path)
        assert cli.main(["train", "--virtual", "2", "--allreduce", "auto"]) == 2
        assert told in capsys.readouterr().err
        assert cli.main(["train", "--virtual", "2", "--allreduce", "auto", "--tuning", "x"]) == 2
        assert "--tuning 'x': no table" in capsys.readouterr().err


# Rules for the libraries


def test_rules_for_open_mpi_start_at_nothing_and_change_between_the_sizes():
    cells = [cell for cell in CELLS if cell.nodes == 1]
    text = openmpi(Table(tuple(cells), {"mpi_library": "Open MPI v5"}))
    rows = [line.partition("#")[0].split() for line in text.splitlines()]
    assert [row for row in rows if row] == [
        ["1"], ["2"], ["1"], ["2"], ["2"], ["0", "4", "0", "0"], ["8192", "3", "0", "0"],
    ]  # fmt: skip


def test_rules_for_mpich_replace_the_all_reduce_and_nothing_else():
    own = {
        "collective=bcast": {"algorithm=B": {}},
        "collective=allreduce": {
            "comm_type=intra": {"algorithm=I": {}}, "comm_type=inter": {"algorithm=J": {}},
        },
    }  # fmt: skip
    found = json.loads(mpich(TABLE, own))
    before = own["collective=allreduce"]
    assert found["collective=bcast"] == own["collective=bcast"]
    assert found["collective=allreduce"]["comm_type=inter"] == before["comm_type=inter"]
    intra = found["collective=allreduce"]["comm_type=intra"]
    assert intra["is_op_built_in=no"] == before["comm_type=intra"]
    rules = intra["is_op_built_in=yes"]
    ring, doubling = (
        {f"algorithm=MPIR_Allreduce_intra_{name}": {}} for name in ("ring", "recursive_doubling")
    )
    assert rules["comm_size=node_comm_size"]["comm_size=any"] == {
        "avg_msg_size<=8191": ring, "avg_msg_size=any": doubling,
    }  # fmt: skip
    assert rules["comm_size=any"]["comm_size=any"] == {"avg_msg_size=any": ring}
    alone = json.loads(mpich(Table(CELLS[:2], MACHINE), own))["collective=allreduce"]
    assert alone["comm_type=intra"]["is_op_built_in=yes"]["comm_size=any"] == {"algorithm=I": {}}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--from", "t.toml", "--format", "openmpi"], "measured with MPICH 5; rules of Open MPI"),
        (["--from", "none.toml"], "none.toml: No such file"),
        (["--from", "t.toml", "--output", "t.toml"], "--output 't.toml': is 't.toml', which is"),
        (["--from", "t.toml", "--output", "there.toml"], "exists; pass --overwrite"),
        (["--output", "x.h5"], "--output 'x.h5': a name that ends in .toml"),
        (["--min-repetitions", "3"], "--min-repetitions '3': a whole number in 8.."),
        (["--sizes", "0"], "--sizes '0': each at least 1 byte"),
        (["--sizes", "6"], "not a whole number of float32"),
        (["--algorithms", "ringg"], "--algorithms 'ringg': no all-reduce named 'ringg'"),
        (["--nodes", "0"], "--nodes '0': whole numbers >= 1"),
    ],
)
def test_tune_refuses_before_it_measures(table, words, told, capsys, tmp_path):
    (tmp_path / "there.toml").write_text("mine")
    assert cli.main(["tune", *words]) == 2
    assert told in capsys.readouterr().err
    assert (tmp_path / "there.toml").read_text() == "mine"


def test_tune_shows_a_table_again(table, capsys):
    assert cli.main(["tune", "--from", table, "--output", "copy.toml"]) == 0
    assert [line.split()[3] for line in capsys.readouterr().out.splitlines()[1:]] == [
        "mpi", "ring", "mpi-persistent",
    ]  # fmt: skip
    assert parse("c", tomllib.loads(Path("copy.toml").read_text())) == TABLE


# What a grid makes of it


def test_estimates_name_no_price_that_is_another_ones(tmp_path):
    network = networks.find("eth20-pcie3")
    price = lambda name: estimate._allreduce_s(name, 16, 1e6, network)  # noqa: E731
    forms = {name: costs.allreduce_s(name, 16, 1e6, network) for name in estimate.FORMS}
    assert {name: price(name) for name in forms} == forms
    assert price("hierarchical:ring") == forms["ring"]
    assert price("auto") == price("mpi") == min(forms.values())
    played = simulate(build("double-tree", 16, network.nodes(16)), 10**6, network).max()
    assert price("double-tree") == played
    assert price("double-tree") not in forms.values()
    path = tmp_path / "g.toml"
    text = 'scaling = "weak"\n[options]\n'
    text += 'model = "torch:resnet50-cifar"\nsteps = 1\nallreduce = "{}"\nranks = 2048\n'
    text += '[[runs]]\nalgorithm = "minibatch"\n[predict]\ndevice="titanx"\nnetwork="eth20-pcie3"\n'
    path.write_text(text.format("auto"))
    told = estimate.summary((found := grid.read(str(path))).runs, found.cluster)
    assert "chosen then is taken as the cheapest" in told
    path.write_text(text.format("double-tree"))
    with pytest.raises(UsageError, match="cost of --allreduce double-tree beyond 1024 ranks"):
        grid.read(str(path))


def test_a_grid_run_is_known_by_its_options_not_by_what_it_chose(table):
    from mpisgd.experiment.experiment import Experiment
    from mpisgd.submit.runs import GridRun

    asked = GridRun(Experiment(allreduce="auto", tuning=table, ranks=2, steps=2), virtual=True)
    assert {"--allreduce=auto", f"--tuning={table}"} <= set(asked.words("x.h5"))
    made = mpisgd.run(ranks=2, steps=2, allreduce="auto", tuning=table, evaluate_every=0)
    config = {**made.record.config, "evaluate_every": None}
    assert asked.difference(config, True) is None
