"""Grids: the runs that come of them, their names and words, and the mistakes in them."""

import argparse
import os
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpisgd.algorithms import ALGORITHMS
from mpisgd.commands import submit as command
from mpisgd.commands import train
from mpisgd.experiment.arguments import from_arguments
from mpisgd.experiment.experiment import Experiment
from mpisgd.submit import grid, script
from mpisgd.submit.runs import GridRun
from mpisgd.values.errors import UsageError

JOBS = Path(__file__).resolve().parent.parent / "jobs"
SMALL = """
scaling = "weak"
[options]
model = "quadratic"
data = "synthetic"
data-samples = 64
batch = 4
steps = 3
virtual = true
ranks = [1, 2, 4]
"""
SLURM = """
[slurm]
launcher = "mpiexec"
program = "mpisgd"
"""


def expanded(text: str, path: Path) -> tuple[GridRun, ...]:
    path.write_text(text)
    return grid.read(str(path)).runs


def submit(*words: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(words))


# Expansion

VALUES = {
    "lr": st.sampled_from([0.01, 0.1, 0.5]),
    "seed": st.integers(0, 5),
    "allreduce": st.sampled_from(["tree", "butterfly", "ring"]),
    "model": st.sampled_from(["mlp", "quadratic"]),
    "progress": st.sampled_from(["poll", "thread"]),
    "ranks": st.sampled_from([1, 2, 3, 4, 8]),
    "algorithm": st.sampled_from(sorted(ALGORITHMS)),
}
LISTS = st.fixed_dictionaries(
    {key: st.lists(each, min_size=1, max_size=3, unique=True) for key, each in VALUES.items()}
)


@given(LISTS)
@settings(max_examples=25, deadline=None)
def test_a_block_is_the_product_of_its_lists(tmp_path_factory, lists):
    text = "scaling = 'weak'\n[options]\n" + "".join(f"{k} = {v!r}\n" for k, v in lists.items())
    runs = expanded(text, tmp_path_factory.getbasetemp() / "grid.toml")
    names = {"lr": "rate"}
    made = {tuple(getattr(r.experiment, names.get(k, k)) for k in lists) for r in runs}
    expected = 1
    for values in lists.values():
        expected *= len(values)
    assert len(runs) == len(made) == len({run.name for run in runs}) == expected
    for position, values in enumerate(lists.values()):
        assert {each[position] for each in made} == set(values)


@given(LISTS, LISTS)
@settings(max_examples=20, deadline=None)
def test_two_blocks_are_their_union_and_names_stay(tmp_path_factory, one, other):
    path = tmp_path_factory.getbasetemp() / "grid.toml"
    head = "scaling = 'weak'\n"
    blocks = [
        "[[runs]]\n" + "".join(f"{k} = {v!r}\n" for k, v in lists.items()) for lists in (one, other)
    ]
    first, second = (expanded(head + block, path) for block in blocks)
    both = expanded(head + "".join(blocks), path)
    assert set(both) == {*first, *second}
    assert len(both) == len(set(both))
    assert {run.name for run in both} == {run.name for run in (*first, *second)}


@given(st.sampled_from([1, 2, 4, 6, 12]), st.integers(1, 9))
@settings(max_examples=20, deadline=None)
def test_strong_scaling_keeps_the_samples_of_a_step(tmp_path_factory, ranks, factor):
    text = f"scaling='strong'\n[options]\nranks=[1,{ranks}]\nglobal-batch={12 * factor}"
    runs = expanded(text, tmp_path_factory.getbasetemp() / "grid.toml")
    assert {run.experiment.batch * run.experiment.ranks for run in runs} == {12 * factor}
    assert {run.experiment.scaling for run in runs} == {"strong"}


def test_weak_scaling_keeps_the_batch_of_a_rank(tmp_path):
    runs = expanded("scaling='weak'\n[options]\nranks=[1,3]\nbatch=5", tmp_path / "g.toml")
    assert [(run.experiment.ranks, run.experiment.batch) for run in runs] == [(1, 5), (3, 5)]
    assert {run.experiment.scaling for run in runs} == {"weak"}


def test_the_more_special_table_wins_and_others_do_not_see_it(tmp_path):
    text = """scaling = "weak"
        [options]
        ranks = 2
        lr = 0.1
        [options.local]
        tau = 8
        lr = 0.2
        [[runs]]
        algorithm = ["minibatch", "local", "dasgd"]
        [runs.dasgd]
        tau = [2, 3]
        delay = 2
        [[runs]]
        algorithm = "local"
        lr = 0.3
        [runs.local]
        tau = 5
    """
    made = [
        (e.algorithm, e.tau, e.delay, e.rate)
        for e in (run.experiment for run in expanded(text, tmp_path / "g.toml"))
    ]
    assert made == [
        ("minibatch", None, None, 0.1), ("local", 8, None, 0.2),
        ("dasgd", 2, 2, 0.1), ("dasgd", 3, 2, 0.1), ("local", 5, None, 0.3),
    ]  # fmt: skip


def test_exclusions_leave_out_what_matches_all_of_them(tmp_path):
    text = """scaling = "strong"
        [options]
        ranks = [1, 2, 3]
        global-batch = [4, 6]
        [[exclude]]
        ranks = 3
        global-batch = 4
        [[exclude]]
        algorithm = "minibatch"
        ranks = [1]
    """
    made = [(r.experiment.ranks, r.experiment.batch) for r in expanded(text, tmp_path / "g.toml")]
    assert made == [(2, 2), (2, 3), (3, 2)]


def test_a_list_is_many_values_also_where_a_value_may_be_a_list(tmp_path):
    text = "scaling='weak'\n[options]\nranks=1\nhidden=[[64,32],'16']"
    made = [run.experiment.hidden for run in expanded(text, tmp_path / "g.toml")]
    assert made == [(64, 32), (16,)]


@pytest.mark.parametrize("name", sorted(path.name for path in JOBS.glob("*.toml")))
def test_the_grids_in_jobs_are_right(name):
    read = grid.read(str(JOBS / name))
    assert read.runs
    assert {run.experiment.scaling for run in read.runs} == {
        "strong" if "strong" in name else "weak"
    }
    if "scaling" in name:
        ranks = {run.experiment.ranks for run in read.runs}
        assert (min(ranks), max(ranks)) == (1, 256)


# Runs: their names and their words

EXPERIMENTS = st.builds(
    lambda batch, rate, hidden, nesterov, seed, path, step: Experiment(
        batch=batch, rate=rate, hidden=hidden, nesterov=nesterov, seed=seed, data_path=path,
        step_time_s=step, scaling="weak",
    ),
    st.integers(1, 99), st.floats(0, 9), st.none() | st.lists(st.integers(1, 9)).map(tuple),
    st.booleans(), st.integers(0, 2**40),
    st.none() | st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1),
    st.none() | st.floats(1e-9, 9),
)  # fmt: skip


TRAIN = argparse.ArgumentParser()
train.add_arguments(TRAIN)


@given(EXPERIMENTS)
@settings(max_examples=50, deadline=None)
def test_the_words_of_a_run_make_its_experiment(experiment):
    words = GridRun(experiment).words("-o ut.h5")
    read = TRAIN.parse_args(words[1:])
    assert from_arguments(read) == experiment
    assert (words[0], read.output, read.virtual, read.resume) == (
        "train",
        "-o ut.h5",
        None,
        "auto",
    )
    assert TRAIN.parse_args(GridRun(experiment, True).words("o")[1:]).virtual == "1"


@given(EXPERIMENTS, EXPERIMENTS)
@settings(max_examples=50, deadline=None)
def test_names_are_equal_when_runs_are(one, other):
    assert (GridRun(one).name == GridRun(other).name) == (one == other)
    assert GridRun(one).name != GridRun(one, virtual=True).name
    assert script.PLAIN.fullmatch(GridRun(one).name)


def test_names_are_those_of_earlier_versions():
    """A name that changes makes every finished run run again."""
    run = GridRun(Experiment(algorithm="dasgd", tau=4, delay=3, batch=8, scaling="weak", ranks=8))
    assert run.name == "dasgd-butterfly-8ranks-seed0-0e7213d7"


def test_a_result_is_the_runs_own_only_if_all_its_options_are():
    run = GridRun(Experiment(algorithm="local", hidden=(8, 4), scaling="weak", ranks=2))
    config = run.experiment.resolved(2, 9).config()
    stored = {**config, "hidden": [8, 4]}
    assert run.difference(stored, virtual=False) is None
    without = {k: v for k, v in stored.items() if k != "weight_decay"}
    assert run.difference(without, virtual=False) is None  # made before there was the option
    assert run.difference(stored, virtual=True) == "virtual is True, not False"
    changed = {"rate": 0.2, "ranks": 4, "tau": 5, "hidden": [8], "seed": 1, "scaling": "strong"}
    for name, value in changed.items():
        assert (run.difference({**stored, name: value}, virtual=False) or "").startswith(name)
    counted = GridRun(replace(run.experiment, steps=7))
    assert counted.difference({**stored, "steps": 7}, virtual=False) is None
    assert counted.difference({**stored, "steps": 8}, virtual=False) == "steps is 8, not 7"


# Mistakes

MISTAKES = {
    "": "scaling: one of weak, strong",
    "scaling = 3": "scaling 3: one of weak, strong",
    "scaling = 'medium'": "scaling 'medium': one of",
    "scaling = 'weak": "not TOML",
    "scaling = 'weak'\nrank = 3": "rank: no such key; there are scaling, options",
    "scaling = 'weak'\noptions = 3": "options 3: a table",
    "scaling = 'weak'\nruns = 3": "runs 3: tables: [[runs]]",
    "scaling = 'weak'\n[runs]\nranks = 3": "tables: [[runs]]",
    "scaling = 'weak'\nruns = [3]": "tables: [[runs]]",
    "scaling = 'weak'": "options.ranks: say on how many ranks",
    "scaling = 'weak'\n[[runs]]": "runs[1].ranks: say",
    "scaling = 'weak'\n[options]\nranks = []": "options.ranks '[]': at least one value",
    "scaling = 'weak'\n[options]\nranks = [0]": "options.ranks 0: a whole number in 1..65536",
    "scaling = 'weak'\n[options]\nranks = [1.5]": "options.ranks 1.5: a whole",
    "scaling = 'weak'\n[options]\nranks = true": "options.ranks True: a whole",
    "scaling = 'weak'\n[options]\nranks = [[1]]": "options.ranks [1]: a whole",
    "scaling = 'weak'\n[options]\nranks = {a = 1}": "options.ranks: no algorithm",
    "scaling = 'weak'\n[options]\nranks = [{a = 1}]": "options.ranks: no table",
    "scaling = 'weak'\n[options]\nrank = 1": "options.rank: no such option; there are",
    "scaling = 'weak'\n[options]\nscaling = 'weak'": "options.scaling: stands at the top",
    "scaling = 'weak'\n[options]\nlr = 1\nrate = 1": "options.rate: given twice",
    "scaling = 'weak'\n[options]\nlr = [0.1, inf]": "options.lr inf: a finite number",
    "scaling = 'weak'\n[options]\nlr = 2020-01-01": "options.lr 2020-01-01: a finite number",
    "scaling = 'weak'\n[options]\nhidden = [64, 32]": "options.hidden 64: whole numbers",
    "scaling = 'weak'\n[options]\nmodel = 'nope'": "options.model 'nope': one of",
    "scaling = 'weak'\n[options]\nalgorithm = ['sgd']": "options.algorithm 'sgd': one of",
    "scaling = 'weak'\n[options.sgd]\ntau = 1": "options.sgd: no algorithm",
    "scaling = 'weak'\n[options.local]\ntau = 1": "options.local: none of its runs has",
    "scaling = 'weak'\n[[runs]]\nranks = 1\n[runs.dasgd]\ntau = 1": "runs[1].dasgd: none of its",
    "scaling = 'weak'\n[options.local]\nalgorithm = 'local'": "options.local.algorithm: is local",
    "scaling = 'weak'\n[options]\nranks = 1\ntau = 2": "--tau 2: minibatch has none",
    "scaling = 'weak'\n[options]\nranks = 1\nalgorithm = 'dasgd'\ndelay = 9": "--delay 9: at most",
    "scaling = 'weak'\n[options]\nranks = 1\nprogress = 'perfect'": "--progress 'perfect': poll or",
    "scaling = 'weak'\n[options]\nranks = 1\nvirtual = 1": "options.virtual 1: true or false",
    "scaling = 'weak'\n[options]\nranks = 1\nglobal-batch = 8": "weak scaling keeps batch",
    "scaling = 'strong'\n[options]\nranks = 1": "options.global-batch: strong scaling needs it",
    "scaling = 'strong'\n[options]\nranks = 1\nbatch = 8": "options.batch 8: strong scaling keeps",
    "scaling = 'strong'\n[options]\nranks = 3\nglobal-batch = 8": "must be a multiple of ranks, 3",
    "scaling = 'weak'\n[options]\nranks = 1\n[[exclude]]": "exclude[1]: name at least one",
    "scaling = 'weak'\n[options]\nranks = 1\n[[exclude]]\nranks = 2": "exclude[1]: matches no run",
    "scaling = 'weak'\n[options]\nranks = 1\n[[exclude]]\nranks = 1": "exclude: leaves no run",
    "scaling = 'weak'\n[options]\nranks = 1\n[[exclude]]\nrank = 1": "exclude[1].rank: no such",
    f"scaling = 'weak'\n[options]\nranks = {list(range(1, 102))}\nseed = {list(range(100))}":
        "more than 10000 runs",
}  # fmt: skip
OF_SLURM = {
    "": "slurm.launcher: say which starts your MPI",
    "launcher = 'ssh'": "slurm.launcher 'ssh': one of srun --mpi=pmi2",
    "nodez = 2": "slurm.nodez: no such setting; there are launcher",
    "launcher = 'mpiexec'\nnodes = 0": "slurm.nodes 0: a whole number",
    "launcher = 'mpiexec'\naccount = \"a\\nb\"": "slurm.account 'a\\nb': text on one line",
    "launcher = 'mpiexec'\nsetup = 'a'": "slurm.setup 'a': a list, each text on one line",
    "launcher = 'mpiexec'\nsetup = [\"a\\nb\"]": "slurm.setup",
    "launcher = 'mpiexec'\nlines = ['exclusive']": "an option of sbatch on one line",
    "launcher = 'mpiexec'\nlines = [\"--x\\n#SBATCH\"]": "an option of sbatch on one line",
    "launcher = 'mpiexec'\ntime = 'soon'": "slurm.time 'soon': a time limit",
    "launcher = 'mpiexec'\ntime = true": "slurm.time True: a time limit",
    "launcher = 'mpiexec'\nnodes = 99999999999999999999": "slurm.nodes 9999",
    "launcher = 'mpiexec'\ntime = '99:99:99'": "slurm.time '99:99:99': a time limit",
    "launcher = 'mpiexec'\ntime = '0:00'": "slurm.time '0:00': a time limit",
    "launcher = 'mpiexec'\ntime = 1": "slurm.time '1': longer than warning-seconds",
    "launcher = 'mpiexec'\nnodes = 1\ntasks-per-node = 2": "1 nodes of 2 tasks have no room for 3",
    "launcher = 'mpiexec'\ngpu-per-rank = true": "say how many GPUs a node has",
}
HEAD = "scaling = 'weak'\n[options]\nranks = 3\n[slurm]\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [*MISTAKES.items(), *((HEAD + text, says) for text, says in OF_SLURM.items())],
)
def test_mistakes_are_told_in_one_line_before_anything_is_written(
    tmp_path, monkeypatch, text, says
):
    monkeypatch.chdir(tmp_path)
    Path("g{0}.toml").write_text(text)
    for mode in ("--dry-run", "--local", "--scripts"):
        with pytest.raises(UsageError) as mistake:
            submit("g{0}.toml", mode)
        assert "g{0}.toml" in str(mistake.value)
        assert says in str(mistake.value)
        assert "\n" not in str(mistake.value)
    assert os.listdir() == ["g{0}.toml"]


def test_what_is_no_grid_or_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"none\.toml: No such file"):
        submit("none.toml")
    Path("g.toml").write_text(SMALL)
    with pytest.raises(UsageError, match=r"no \[slurm\] table; add it, or pass --local"):
        submit("g.toml")
    for name in ("g.toml", "g.toml/x", "a\nb", "a\\b"):
        with pytest.raises(UsageError, match="--folder"):
            submit("g.toml", "--local", "--folder", name)
    Path("g.toml").write_text(SMALL + SLURM)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="no Slurm here; pass --local"):
        submit("g.toml")
    assert os.listdir() == ["g.toml"]


def test_every_option_of_train_may_be_in_a_grid():
    options = {o.name for o in fields(Experiment) if o.metadata} - {"scaling"}
    assert options <= {name for name, _, _ in grid.OPTIONS.values()}
