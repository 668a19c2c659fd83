"""Batch scripts, read by bash and by stubs of Slurm; grids run here, stopped and gone on with."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slurm_stubs import stub
from test_submit import JOBS, SMALL, submit

from mpisgd.commands import submit as command
from mpisgd.experiment.experiment import Experiment
from mpisgd.submit import folder, grid, script
from mpisgd.submit.runs import GridRun
from mpisgd.submit.settings import LAUNCHERS, Settings
from mpisgd.values.errors import UsageError

HOSTILE = "a b;$(x)`y`'\"#%"
MAIN = (
    "import sys; from mpisgd import cli;"
    "cli.COMMANDS.setdefault('submit', ('mpisgd.commands.submit', '')); sys.exit(cli.main())"
)


# Scripts

REFERENCES = {
    "cpu-srun.sh": ("cpu.toml", "srun --mpi=pmi2", 8),
    "cpu-mpiexec.sh": ("cpu.toml", "mpiexec", 8),
    "gpu-srun.sh": ("gpu.toml", "srun --mpi=pmix", 16),
    "gpu-mpiexec.sh": ("gpu.toml", "mpiexec", 16),
    "scaling-weak-256.sh": ("scaling-weak.toml", "srun --mpi=pmi2", 256),
    "scaling-strong-256.sh": ("scaling-strong.toml", "mpiexec", 256),
}


def reference(name: str) -> str:
    """The script of the last DaSGD run on so many ranks."""
    source, launcher, ranks = REFERENCES[name]
    read = grid.read(str(JOBS / source))
    assert read.settings is not None
    run = [
        run for run in read.runs
        if run.experiment.algorithm == "dasgd" and run.experiment.ranks == ranks
    ][-1]  # fmt: skip
    results = Path("results", Path(source).stem)
    return script.text(run, replace(read.settings, launcher=launcher), results, f"jobs/{source}")


@pytest.mark.parametrize("name", REFERENCES)
def test_scripts_are_those_in_jobs(name):
    assert reference(name) == (JOBS / name).read_text()


def environment(**variables: str) -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path('bin').absolute()}:{os.environ['PATH']}", **variables}


def played(text: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The script, run by bash with the stubs."""
    return subprocess.run(
        ["bash", "-c", text], env=environment(**variables), capture_output=True, text=True,
        timeout=150,
    )  # fmt: skip


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("gpu", [False, True])
def test_hostile_names_reach_the_program_as_they_are(tmp_path, monkeypatch, launcher, gpu):
    monkeypatch.chdir(tmp_path)
    for name in ("srun", "mpiexec", HOSTILE):
        stub(name, 'printf "%s\\0" "$0" "$@" >words\n')
    stub("x", "touch executed\n")
    stub("y", "touch executed\n")
    run = GridRun(Experiment(data_path=f"-{HOSTILE}\n", scaling="weak", ranks=2))
    hostile = Settings(launcher=launcher, program=HOSTILE, tasks_per_node=2, gpu_per_rank=gpu)
    text = script.text(run, hostile, Path(HOSTILE), f"{HOSTILE}\ntouch executed")
    done = played(text)
    assert (done.returncode, done.stderr) == (0, "")
    words = Path("words").read_text().split("\0")[:-1]
    start = words.index(HOSTILE)
    assert words[start + 1 :] == run.words(f"{HOSTILE}/{run.name}.h5")
    assert os.path.basename(words[0]) == launcher.split()[0]
    assert not Path("executed").exists()
    virtual = script.text(replace(run, virtual=True), hostile, Path(HOSTILE), "g.toml")
    assert played(virtual).returncode == 0
    words = Path("words").read_text().split("\0")
    assert os.path.basename(words[0]) == HOSTILE
    assert "#SBATCH --ntasks=1\n" in virtual


RANKS = """\
trap 'echo told; exit {code}' USR1
kill -{number} $PPID
for i in {{1..200}}; do sleep 0.05; done
"""


@pytest.mark.parametrize(("restarts", "count", "requeued"), [(0, 0, 0), (2, 0, 1), (2, 2, 0)])
def test_a_warning_is_passed_on_and_the_job_requeued(
    tmp_path, monkeypatch, restarts, count, requeued
):
    monkeypatch.chdir(tmp_path)
    stub("mpiexec", RANKS.format(code=143, number="USR1"))
    stub("scontrol", 'echo "$@"\n')
    run = GridRun(Experiment(scaling="weak", ranks=2))
    text = script.text(run, Settings("mpiexec", restarts=restarts), Path("f"), "g.toml")
    done = played(text, SLURM_JOB_ID="42", SLURM_RESTART_COUNT=str(count))
    assert done.stdout == "told\n" + "requeue 42\n" * requeued
    assert done.returncode == script.STOPPED


@pytest.mark.parametrize("code", [0, 3])
def test_the_code_of_the_ranks_is_the_jobs_whatever_is_heard_meanwhile(tmp_path, monkeypatch, code):
    """TERM (scancel) is handed on, and is no reason to leave the ranks behind; nor to requeue."""
    monkeypatch.chdir(tmp_path)
    ranks = "trap 'echo told' USR1; kill -TERM $PPID; kill -TERM $PPID; sleep 0.2; sleep 0.2"
    stub("mpiexec", f"{ranks}; echo done; exit {code}\n")
    stub("scontrol", 'echo "$@"\n')
    run = GridRun(Experiment(scaling="weak", ranks=2))
    done = played(script.text(run, Settings("mpiexec", restarts=5), Path("f"), "g.toml"))
    assert set(done.stdout.splitlines()) == {"told", "done"}
    assert done.returncode == code


def test_a_setup_that_fails_ends_the_job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stub("mpiexec", "echo started\n")
    setup = Settings("mpiexec", setup=("export A=1", "false"))
    run = GridRun(Experiment(scaling="weak", ranks=2))
    done = played(script.text(run, setup, Path("f"), "g.toml"))
    assert (done.stdout, done.returncode) == ("", 1)


@given(st.integers(1, 300), st.none() | st.integers(1, 40), st.none() | st.integers(1, 40))
def test_nodes_hold_all_tasks_evenly_or_say_that_they_cannot(tasks, nodes, most):
    asked = Settings("mpiexec", nodes=nodes, tasks_per_node=most)
    if nodes is not None and most is not None and nodes * most < tasks:
        with pytest.raises(ValueError, match="no room"):
            asked.shape(tasks)
        return
    used, each = asked.shape(tasks)
    assert (used is None) == (each is None) == (nodes is None and most is None)
    if used is not None and each is not None:
        assert used * each >= tasks > used * (each - 1)
        assert used <= (nodes or tasks)
        assert each <= (most or tasks)


def test_no_line_of_sbatch_holds_a_newline():
    with pytest.raises(ValueError, match="control character"):
        script.sbatch_quoted("a\nb")
    assert script.sbatch_quoted("a.b-c=1") == "a.b-c=1"
    assert script.sbatch_quoted('a "\\b') == '"a \\"\\\\b"'


# Here


def test_an_interrupted_grid_goes_on_and_repeats_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    long = SMALL.replace("steps = 3", "steps = [3, 1000000]").replace("[1, 2, 4]", "2")
    Path("g.toml").write_text(long)
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "submit", "g.toml", "--local", "--folder", "f"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    # In this order: a partial file seen before could be the first run's, which is finished now.
    while not list(Path("f").glob("*.h5")) or not list(Path("f").glob("*.partial")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=150)
    assert process.returncode == command.INTERRUPTED
    assert said == "mpisgd submit: interrupted; the same command goes on\n"
    (finished,), (partial,) = Path("f").glob("*.h5"), Path("f").glob("*.partial")
    assert submit("g.toml", "--folder", "f", "--dry-run", "--format", "csv") == 0
    assert [line.split(",")[7] for line in capsys.readouterr().out.splitlines()[1:]] == [
        "finished", "partial",
    ]  # fmt: skip
    before = finished.stat()
    # The long run, made short: its partial result is of use to nobody, and replaced.
    Path("g.toml").write_text(long.replace("1000000", "5"))
    short = grid.read("g.toml").runs[1]
    partial.rename(Path("f", f"{short.name}.h5.partial"))
    assert submit("g.toml", "--folder", "f", "--local") == 0
    assert finished.stat() == before
    assert folder.finished_in(short, Path("f"))
    assert not list(Path("f").glob("*.partial"))
    made = Path("f", f"{short.name}.h5").stat()
    assert submit("g.toml", "--folder", "f", "--local") == 0
    assert Path("f", f"{short.name}.h5").stat() == made


def test_a_run_that_fails_is_named_and_the_others_go_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = SMALL.replace("steps = 3", "steps = 3\nlr = [1e30, 0.1]")
    Path("g.toml").write_text(text.replace("ranks = [1, 2, 4]", "ranks = 2"))
    assert submit("g.toml", "--local", "--format", "csv") == 1
    printed = capsys.readouterr()
    states = [line.split(",")[7] for line in printed.out.splitlines()[1:]]
    assert states == ["failed", "finished"]
    assert "exit code 3: mpisgd" in printed.err


def test_real_ranks_run_here(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = SMALL.replace("virtual = true", "").replace("ranks = [1, 2, 4]", "ranks = 2")
    Path("g.toml").write_text(text)
    assert submit("g.toml", "--local") == 0
    from mpisgd.store.reader import read

    (path,) = Path("results/g").glob("*.h5")
    with read(path) as run:
        assert (run.ranks, run.complete, run.config["scaling"]) == (2, True, "weak")


def test_results_of_others_are_never_overwritten(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = SMALL.replace("[1, 2, 4]", "1")
    Path("g.toml").write_text(text)
    submit("g.toml", "--local", "--folder", "f")
    Path("g.toml").write_text(text.replace("steps = 3", "steps = 4"))
    (other,) = grid.read("g.toml").runs
    (made,) = Path("f").glob("*.h5")
    target = Path("f", f"{other.name}.h5")
    made.rename(target)
    with pytest.raises(UsageError, match="another run, whose steps is 3, not 4"):
        submit("g.toml", "--local", "--folder", "f")
    target.write_bytes(target.read_bytes()[:100])
    with pytest.raises(UsageError, match=r"\.h5: is damaged"):
        submit("g.toml", "--local", "--folder", "f")
