"""What users bring along, as docs/plugins.md shows it and as they get it wrong."""

import inspect
import re
import runpy
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from plugin_page import CHECKOUT, TYPED, blocks, commands, write_files

from mpisgd import cli
from mpisgd.experiment.experiment import Experiment
from mpisgd.store.reader import read
from mpisgd.submit import grid
from mpisgd.values import plugins
from mpisgd.values.errors import UsageError
from mpisgd.values.schedules import build, digests

SHORT = ["--steps", "12", "--evaluate-every", "0", "--seed", "3"]
HEAVY = ["train", "--algorithm", "heavy.py:heavy", "--tau", "3", "--set", "beta=0.4", *SHORT]


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A folder with the files of the page, where commands run."""
    for variable in cli.BLAS_VARIABLES:
        monkeypatch.setenv(variable, "1")
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def outcome(file):
    """A run's config, and the digest of the parameters that it came to."""
    with read(file) as result:
        return result.config, result.summary["parameters_sha256"]


def refusal(capsys, *words):
    assert cli.main(list(words)) == 2
    *notes, line = capsys.readouterr().err.splitlines()
    assert all("note: " in note for note in notes)
    return line


@pytest.mark.parametrize("line", commands("mpisgd"))
def test_each_command_of_the_page_runs(shop, line, capsys):
    if "images.npz" in line:
        (made,) = commands("python")
        runpy.run_path(shlex.split(made)[1])
    assert cli.main(shlex.split(line)[1:]) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("line", commands("mpiexec"))
def test_each_command_of_the_page_runs_on_ranks(shop, line, mpi):
    words = shlex.split(line)
    mpi.run(int(words[2]), words[3:], timeout=120)


def test_an_own_algorithm_has_one_result_in_both_worlds(shop, mpi):
    assert cli.main([*HEAVY, "--virtual", "3", "--output", "virtual.h5"]) == 0
    mpi.run(3, ["mpisgd", *HEAVY, "--output", "real.h5"], timeout=120)
    (virtual, there), (real, here) = outcome("virtual.h5"), outcome("real.h5")
    assert virtual["plugin_sha256"] == real["plugin_sha256"]
    assert there == here


def test_an_own_algorithm_equals_ours_where_it_should(shop):
    words = ["--tau", "3", "--virtual", "3", *SHORT]
    ours = ["train", "--algorithm", "local", *words, "--output", "local.h5"]
    own = ["train", "--algorithm", "heavy.py:heavy", "--set", "beta=0", *words]
    assert cli.main(ours) == cli.main([*own, "--output", "own.h5"]) == 0
    assert outcome("local.h5")[1] == outcome("own.h5")[1]
    assert cli.main([*HEAVY, "--virtual", "3", "--output", "heavy.h5"]) == 0
    assert outcome("heavy.h5")[1] != outcome("own.h5")[1]


@pytest.mark.parametrize("real", [False, True])
def test_an_own_algorithm_goes_on_to_the_same_bits_with_the_same_file(shop, mpi, real, capfd):
    def start(*more, steps="12"):
        words = [word if word != "12" else steps for word in HEAVY]
        words += ["--checkpoint-every", "5", *more]
        if real:
            return mpi.run(2, ["mpisgd", *words], timeout=120, check=False).returncode
        return cli.main([*words, "--virtual", "2"])

    assert start("--output", "whole.h5") == 0
    assert start("--output", "part.h5", "--checkpoint", "saved", steps="7") == 0
    again = ["--output", "part.h5", "--checkpoint", "saved", "--resume", "auto"]
    kept = Path("heavy.py").read_text()
    Path("heavy.py").write_text(kept.replace("0.5", "0.6"))
    assert start(*again) == 2
    if not real:
        assert "heavy.py:heavy has changed since" in capfd.readouterr().err
    Path("heavy.py").write_text(kept)
    assert start(*again) == 0
    assert outcome("whole.h5")[1] == outcome("part.h5")[1]


def test_ranks_with_different_contents_do_not_begin(shop, mpi):
    """Each rank finds its own heavy.py, as on nodes whose copies differ."""
    for rank in "01":
        Path(rank).mkdir()
        Path(rank, "heavy.py").write_text(f"# {rank}\n" + Path("heavy.py").read_text())
    program = shop / "apart.py"
    program.write_text(
        "import os, sys\nfrom mpi4py import MPI\nfrom mpisgd import cli\n"
        "os.chdir(str(MPI.COMM_WORLD.Get_rank()))\nsys.exit(cli.main(sys.argv[1:]))\n"
    )
    done = mpi(2, program, *HEAVY, check=False)
    assert "started with different options or contents of plug-ins" in done.stderr


def test_the_result_says_what_ran(shop):
    assert cli.main([*HEAVY, "--virtual", "2", "--output", "a.h5"]) == 0
    config, _ = outcome("a.h5")
    import hashlib

    digest = hashlib.sha256(Path("heavy.py").read_bytes()).hexdigest()
    assert config["plugin_sha256"] == [f"heavy.py:heavy {digest}"]
    assert config["plugin_options"] == ["beta=0.4"]


def test_an_own_model_is_replayed_with_the_same_file_only(shop, capsys, monkeypatch):
    words = ["train", "--algorithm", "async", "--model", "linear.py:Linear", "--lr", "0.01"]
    assert cli.main([*words, *SHORT, "--virtual", "3", "--output", "a.h5"]) == 0
    assert cli.main(["replay", "a.h5"]) == 0
    Path("linear.py").write_text(Path("linear.py").read_text() + "\n")
    for name in [name for name in sys.modules if name.startswith("_mpisgd")]:
        monkeypatch.delitem(sys.modules, name)  # as in a new process
    capsys.readouterr()
    assert "'linear.py': has changed" in refusal(capsys, "replay", "a.h5")


GRID = """
scaling = "weak"
[options]
ranks = 2
virtual = true
steps = 4
algorithm = ["local", "heavy.py:heavy"]
tau = 2
[options."heavy.py:heavy"]
lr = 0.2
[options."heavy.py:heavy".set]
beta = [0.25, 0.5]
[[exclude]]
set.beta = 0.5
"""


def test_a_grid_varies_options_of_plug_ins(shop):
    Path("grid.toml").write_text(GRID.partition("[[exclude]]")[0])
    runs = grid.read("grid.toml").runs
    assert [run.experiment.plugin_options for run in runs] == [None, ("beta=0.25",), ("beta=0.5",)]
    assert len({run.name for run in runs}) == 3
    assert all(re.fullmatch(r"[\w.-]+", run.name) for run in runs)
    assert "--set=beta=0.5" in runs[2].words("x.h5")
    Path("grid.toml").write_text(GRID)
    assert len(grid.read("grid.toml").runs) == 2
    assert cli.main(["submit", "grid.toml", "--local", "--folder", "done"]) == 0
    assert len(list(Path("done").glob("*.h5"))) == 2
    assert cli.main(["submit", "grid.toml", "--local", "--folder", "done"]) == 0  # all are found


def test_a_file_of_options_and_flags_add_up(shop):
    Path("run.toml").write_text('model = "linear.py:Linear"\nlr = 0.01\n[set]\nspread = 0.5\n')
    words = ["train", "--config", "run.toml", "--data", "moons.py:load", "--set", "noise=0.3"]
    words += ["--virtual", "2", *SHORT, "--output", "a.h5"]
    assert cli.main(words) == 0
    expected = ["noise=0.3", "samples=400", "spread=0.5"]
    assert outcome("a.h5")[0]["plugin_options"] == expected
    assert cli.main([*words, "--set", "spread=0.25", "--overwrite"]) == 0
    assert "spread=0.25" in outcome("a.h5")[0]["plugin_options"]


@pytest.fixture
def typed(shop):
    Path("typed.py").write_text(TYPED.replace("Unknown", "'Unknown'"))
    return plugins.find("algorithm", "typed.py:every")


def test_options_are_typed_by_the_signature(typed):
    found = typed.options(("needed",))
    assert list(found) == ["number", "flag", "word", "one", "some", "other"]
    read = {name: option.kind.parse for name, option in found.items()}
    assert [read["number"]("2"), read["flag"]("true"), read["word"]("3")] == [2.0, True, "3"]
    assert [read["one"]("1"), read["one"]("b"), read["some"]("none")] == [1, "b", None]
    assert [read["some"](4), read["other"]("none"), read["other"]("y")] == [4, None, "y"]
    for name, value in [("number", "x"), ("flag", "maybe"), ("one", "2"), ("some", "1.5")]:
        with pytest.raises(UsageError, match="--set"):
            found[name].kind.read("--set", value)
    assert typed.options()["needed"].default is plugins.NEEDED


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("--algorithm no.py:x", ["--algorithm", "'no.py'", "No such file"]),
        ("--algorithm .:x", ["'.:x'", "one of", "FILE.py:NAME"]),
        ("--algorithm typed.py:nothing", ["nothing is not there in typed.py"]),
        ("--algorithm typed.py:plain", ["plain is no function and no class in typed.py"]),
        ("--algorithm chain.py:chain", ["is no generator function of a worker"]),
        ("--algorithm typed.py:few", ["takes 0 arguments, needs 1"]),
        ("--algorithm typed.py:bad", ["typed.py:bad: array", "typed as none of int, float"]),
        ("--algorithm typed.py:broken", ["typed.py", "NameError", "'Unknown'"]),
        ("--algorithm typed.py:every", ["--set needed", "typed.py:every needs it", "whole"]),
        ("--algorithm typed.py:every --tau 3", ["--tau", "typed.py:every has none"]),
        ("--algorithm heavy.py:heavy --set beta=x", ["--set beta", "'x'", "a finite number"]),
        (
            "--algorithm heavy.py:heavy --set bet=1",
            ["--set bet", "plug-ins: beta", "mean beta"],
        ),
        ("--algorithm heavy.py:heavy --set beta", ["--set", "NAME=VALUE"]),
        ("--algorithm heavy.py:heavy --set beta=1 --set beta=2", ["--set", "each name once"]),
        ("--set beta=1", ["--set beta", "no plug-in has it"]),
        ("--model no.such.module:x", ["--model", "'no.such.module'", "no such module"]),
        ("--model typed.py:Loose", ["is no model: it has no initialise"]),
        ("--model typed.py:refuses", ["typed.py, line 24: RuntimeError: no such colour"]),
        (
            "--model typed.py:Noisy --data moons.py:load",
            ["--set noise", "of typed.py:Noisy and of moons.py:load"],
        ),
        ("--model half.py:x", ["half.py, line 3: ZeroDivisionError"]),
        ("--model odd.py:x", ["odd.py, line 2: SyntaxError"]),
        ("--model leaves.py:x", ["leaves.py, line 1: SystemExit: 3"]),
        ("--data typed.py:load", ["gives no Dataset but int"]),
        ("--data typed.py:load --data-path x", ["--data-path", "typed.py:load takes no path"]),
        ("--data no.npz", ["no.npz", "No such file"]),
        ("--data odd.npz", ["odd.npz", "not a readable npz file"]),
        ("--data pickled.npz", ["pickled.npz", "without pickles"]),
        ("--data foreign.npz", ["foreign.npz", "a foreign array other"]),
        ("--data few.npz", ["few.npz", "no array test_targets"]),
        ("--data images.npz --data-path x", ["images.npz", "takes no path"]),
        ("--allreduce typed.py:wrong", ["is no all-reduce", "misses the contribution"]),
        ("--allreduce typed.py:load", ["typed.py: TypeError: load() takes 0"]),
        ("--allreduce typed.py:load_path", ["gives no Schedule of 2 ranks"]),
        ("--straggler typed.py:slow", ["typed.py: ValueError", "-1 for rank 0, step 1"]),
    ],
)
def test_a_mistake_is_one_line(typed, words, parts, capsys):
    Path("half.py").write_text("x = 1\n\ny = x / 0\n")
    Path("odd.py").write_text("x = 1\ny = (\n")
    Path("leaves.py").write_text("raise SystemExit(3)\n")
    Path("odd.npz").write_text("PKxx")
    arrays = {"train_inputs": np.zeros((20, 3), np.float32), "train_targets": np.arange(20)}
    np.savez("pickled.npz", **arrays | {"train_targets": np.array([{}] * 20)})
    np.savez("foreign.npz", **arrays, other=np.zeros(3))
    np.savez("few.npz", **arrays, test_inputs=arrays["train_inputs"])
    np.savez("images.npz", **arrays)
    line = refusal(capsys, "train", "--virtual", "2", *words.split(), *SHORT[2:])
    assert all(part in line for part in parts), line


def test_two_files_of_one_stem_and_a_package_are_apart(shop, monkeypatch):
    for folder in "ab":
        Path(folder).mkdir()
        Path(folder, "same.py").write_text(f"def name(dataset):\n    return {folder!r}\n")
    before = list(sys.path)
    first, second = (plugins.find("model", f"{f}/same.py:name") for f in "ab")
    assert (first(None), second(None)) == ("a", "b")
    assert sys.path == before
    assert plugins.find("model", "a/same.py:name").target is first.target  # run once
    assert plugins.find("model", "mpisgd.data:load").file.endswith("data/__init__.py")
    with pytest.raises(UsageError, match=r"a/same\.py': has changed"):
        plugins.find("model", "a/same.py:name", digest="0" * 64)


def test_names_of_installed_packages_are_known(shop, monkeypatch):
    about = Path("site", "chains-1.dist-info")
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Name: chains\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        "[mpisgd.allreduces]\nline = chains.lines:chain\n[mpisgd.algorithms]\n"
        "heavier = chains.heavy:heavy\n"
    )
    Path("site", "chains").mkdir()
    Path("site", "chains", "__init__.py").touch()
    Path("site", "chains", "lines.py").write_text(Path("chain.py").read_text())
    Path("site", "chains", "heavy.py").write_text(Path("heavy.py").read_text())
    monkeypatch.syspath_prepend(str(shop / "site"))
    assert build("line", 5).digest == build("chain.py:chain", 5).digest
    assert list(digests(["ring", "hierarchical:ring", "mpi", "line"], 5)) == ["line"]
    words = [
        "train",
        "--algorithm",
        "heavier",
        "--allreduce",
        "line",
        "--tau",
        "2",
        "--virtual",
        "2",
    ]
    assert cli.main([*words, *SHORT, "--output", "a.h5"]) == 0
    assert [each.split()[0] for each in outcome("a.h5")[0]["plugin_sha256"]] == ["heavier", "line"]


def test_a_package_that_cannot_be_imported_says_where(shop, monkeypatch, capsys):
    Path("packed").mkdir()
    Path("packed", "__init__.py").write_text("x = 1\nimport not_there_at_all\n")
    monkeypatch.syspath_prepend(str(shop))
    line = refusal(capsys, "train", "--virtual", "2", "--model", "packed.part:x")
    assert "packed/__init__.py, line 2: ModuleNotFoundError" in line


def test_nothing_is_imported_that_was_not_named(shop):
    """Neither a user's code nor the list of installed packages."""
    code = (
        "import contextlib, sys; from mpisgd import cli\n"
        "with contextlib.suppress(SystemExit): cli.main(['train', '--help'])\n"
        "cli.main(['train', '--virtual', '2', '--steps', '2'])\n"
        "print([n for n in sys.modules if n.startswith('_mpisgd')], sys.path[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=150, check=True
    )
    assert done.stdout.splitlines()[-1].startswith("[]")


def test_from_python_options_are_a_mapping(shop):
    import mpisgd

    options = {"algorithm": "heavy.py:heavy", "tau": 3, "steps": 12, "evaluate_every": 0, "seed": 3}
    result = mpisgd.run(**options, set={"beta": 0.4}, ranks=2)
    assert cli.main([*HEAVY, "--virtual", "2", "--output", "a.h5"]) == 0
    assert result.summary["parameters_sha256"] == outcome("a.h5")[1]


def test_what_goes_wrong_while_training_is_pythons_own_error(shop):
    Path("late.py").write_text(
        "def late(worker):\n    for _ in worker.steps():\n        yield from worker.nothing()\n"
    )
    with pytest.raises(AttributeError, match="nothing"):
        cli.main(["train", "--algorithm", "late.py:late", "--virtual", "2", *SHORT])


def test_an_own_data_set_may_be_cut_and_its_arrays_are_what_they_were(shop):
    runpy.run_path("arrays.py")
    from mpisgd.experiment import building

    whole = building.load(Experiment.read({"data": "images.npz"}))
    assert (whole.samples, whole.test_samples, whole.classes, whole.scale) == (180, 20, 4, 1 / 255)
    cut = building.load(Experiment.read({"data": "images.npz", "data_samples": 50}))
    assert (cut.train_inputs == whole.train_inputs[:50]).all()
    moons = building.load(Experiment.read({"data": "moons.py:load", "data_samples": 9}))
    assert moons.samples == 9


def test_contributing_shows_the_codes_own_lines():
    from allreduce.algorithms import ring
    from mpisgd.algorithms.averaging import local

    shown = blocks((CHECKOUT / "CONTRIBUTING.md").read_text(encoding="utf-8"), "python")
    for function, block in zip((ring, local), shown, strict=True):
        source = textwrap.dedent(inspect.getsource(function))
        assert re.sub(r'    """.*?"""\n', "", source, count=1, flags=re.DOTALL) == block


@pytest.mark.parametrize("told", [[0], [None], ["1x=2"], ["a=1", "a=2"], {"a": [1]}])
def test_options_of_a_plug_in_that_are_no_pairs_are_refused(told):
    with pytest.raises(UsageError, match="--set"):
        Experiment.read({"plugin_options": told})
