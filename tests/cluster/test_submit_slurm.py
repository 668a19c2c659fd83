"""`mpisgd submit` on a real Slurm: jobs finish, are cancelled, run out of time, come back."""

import argparse
import json
import sys
from pathlib import Path

import pytest
from slurm import Slurm

from mpisgd.commands import submit as command
from mpisgd.mpi.mpiexec import find
from mpisgd.store.reader import read
from mpisgd.store.target import partial_path
from mpisgd.submit import script
from mpisgd.values.errors import UsageError

pytestmark = pytest.mark.slurm

HOSTILE = "a b;$(x)`y`'\"#%"
GRID = """
scaling = "weak"
[options]
ranks = 4
batch = 4
model = "quadratic"
data = "synthetic"
data-samples = 64
evaluate-every = 0
{options}
[slurm]
launcher = "{launcher}"
program = "mpisgd"
nodes = 2
time = 10
restarts = 1
setup = ["export PATH={scripts}:$PATH"]
"""
LONG = 'steps = 100000\nstep-time = "10ms"'


class Submitting:
    """A grid in a folder, and `mpisgd submit` for it with the tests' Slurm on PATH."""

    def __init__(self, slurm: Slurm, capsys: pytest.CaptureFixture[str]):
        self.slurm, self.capsys = slurm, capsys

    def write(self, launcher: str, options: str) -> None:
        scripts = Path(sys.executable).parent
        text = GRID.format(launcher=launcher, options=options, scripts=scripts)
        Path("g.toml").write_text(text)

    def __call__(self, *more: str) -> list[dict[str, str]]:
        parser = argparse.ArgumentParser()
        command.add_arguments(parser)
        words = ["g.toml", "--folder", HOSTILE, "--format", "json", *more]
        assert command.run(parser.parse_args(words)) == 0
        return json.loads(self.capsys.readouterr().out)

    def begun(self, row: dict[str, str]) -> Path:
        """The partial result of a job, once its ranks have begun to write it."""
        partial = partial_path(Path(HOSTILE, f"{row['run']}.h5"))

        def there() -> bool:
            assert self.slurm.field(row["job"], "JobState") in ("PENDING", "RUNNING"), self.log(row)
            try:
                with read(partial) as run:
                    return run.rows["steps/step_s"] > 0
            except UsageError:
                return False

        self.slurm.until(there)
        return partial

    def log(self, row: dict[str, str]) -> str:
        (path,) = Path(HOSTILE).glob(f"*.{row['job']}.out")
        return path.read_text()


@pytest.fixture
def submit(slurm, tmp_path, monkeypatch, capsys) -> Submitting:
    if find().kind != "mpich":
        pytest.skip("these jobs start MPICH's ranks")
    monkeypatch.chdir(tmp_path)
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    return Submitting(slurm, capsys)


def test_jobs_finish_and_neither_they_nor_queued_ones_are_repeated(submit, slurm):
    submit.write("srun --mpi=pmi2", "steps = 20\nseed = [0, 1]")
    submitted = submit()
    assert [row["state"] for row in submitted] == ["submitted"] * 2
    again = submit()
    assert [row["job"] for row in again if row["job"]] == [
        row["job"] for row, now in zip(submitted, again, strict=True) if now["job"]
    ]
    for row in submitted:
        assert slurm.wait(row["job"]) == "COMPLETED", submit.log(row)
    done = submit()
    assert [(row["state"], row["job"]) for row in done] == [("finished", None)] * 2
    for row in done:
        with read(row["file"]) as run:
            assert (run.complete, run.ranks, run.config["scaling"]) == (True, 4, "weak")
            assert run.steps["step_s"].shape == (20, 4)
            assert sorted(run.environment["hosts"]) == ["h0", "h0", "h1", "h1"]


def test_a_job_out_of_time_stops_goes_back_into_the_queue_and_finishes(submit, slurm):
    submit.write("mpiexec", 'steps = 400\nstep-time = "10ms"')
    (row,) = submit()
    partial = submit.begun(row)
    slurm.run("scancel", "--batch", "--signal=USR1", row["job"])
    assert slurm.wait(row["job"], ["PENDING"]) == "PENDING"
    assert slurm.field(row["job"], "Restarts") == "1"
    with read(partial) as run:
        assert not run.complete
        assert run.reason is not None
        assert "stopped by signal 10" in run.reason
        assert len(set(run.reported)) == 1, "all ranks stop at one step"
        assert 0 < run.reported[0] < 400
    assert [(now["job"], now["state"]) for now in submit()] == [(row["job"], "pending")]
    assert slurm.wait(row["job"]) == "COMPLETED", submit.log(row)
    with read(row["file"].removesuffix("sh") + "h5") as run:
        assert run.complete
        assert set(run.reported) == {400}
    assert not partial.exists()
    assert submit.log(row).count("stopped by a signal") == 1, "a log goes on where it was"


def test_tasks_of_an_array_finish_a_few_at_once_and_one_out_of_time_comes_back(submit, slurm):
    submit.write("mpiexec", 'steps = 400\nstep-time = "10ms"\nseed = [0, 1, 2]')
    rows = submit("--array", "--jobs", "2")
    array = rows[0]["job"].partition("_")[0]
    assert [row["job"] for row in rows] == [f"{array}_{task}" for task in range(3)]
    submit.begun(rows[0])
    assert slurm.field(rows[2]["job"], "JobState") == "PENDING"
    slurm.run("scancel", "--batch", "--signal=USR1", rows[0]["job"])
    slurm.until(lambda: slurm.field(rows[0]["job"], "Restarts") == "1", 60)
    again = submit("--array")
    assert [row["job"] for row in again if row["job"]] == [
        row["job"] for row, now in zip(rows, again, strict=True) if now["job"]
    ], "none is sent twice"
    for row in rows:
        assert slurm.wait(row["job"]) == "COMPLETED", submit.log(row)
    for row in submit("--array"):
        assert (row["state"], row["job"]) == ("finished", None)
        with read(row["file"]) as run:
            assert set(run.reported) == {400}


def test_a_cancelled_job_leaves_what_it_has_and_may_be_submitted_again(submit, slurm):
    submit.write("srun --mpi=pmi2", LONG)
    (row,) = submit()
    partial = submit.begun(row)
    slurm.run("scancel", row["job"])
    assert slurm.wait(row["job"]) == "CANCELLED"
    slurm.until(lambda: not slurm.run("squeue", "-h", "-j", row["job"]))
    with read(partial) as run:
        assert run.reason is not None
        assert "stopped by signal 15" in run.reason, submit.log(row)
        assert len(set(run.reported)) == 1
    (again,) = submit()
    assert again["state"] == "submitted"
    assert again["job"] != row["job"]
    slurm.run("scancel", again["job"])
    slurm.wait(again["job"])


def test_sbatch_reads_what_was_quoted_for_it(slurm, tmp_path):
    hostile = HOSTILE + "\\ \\n end"
    text = f"#!/bin/sh\n#SBATCH --comment={script.sbatch_quoted(hostile)}\n#SBATCH --hold\ntrue\n"
    job = slurm.submit(text, tmp_path)
    shown = slurm.run("scontrol", "show", "job", job)
    slurm.run("scancel", job)
    assert f"Comment={hostile}" in [line.strip() for line in shown.splitlines()]
