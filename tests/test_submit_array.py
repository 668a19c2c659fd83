"""`mpisgd submit --array`: runs that ask Slurm for the same are one array of jobs."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from slurm_stubs import jobs, stub, with_slurm
from test_submit import SLURM, SMALL, submit

from mpisgd.values.errors import UsageError

SBATCH = """\
number=$(($(cat count 2>/dev/null || echo 100) + 1))
[ -e full ] && { echo "sbatch: error: QOS limit" >&2; exit 1; }
echo $number >count
name=$(sed -n 's/^#SBATCH --job-name=//p' "$2")
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$2")
for task in $(seq 0 ${last:--1}); do echo "${number}_$task PENDING $name" >>queue; done
[ -n "$last" ] || echo "$number PENDING $name" >>queue
echo $number
"""
MIXED = SMALL.replace("virtual = true", "seed = [0, 1]")


@pytest.fixture
def slurm(tmp_path, monkeypatch) -> Path:
    return with_slurm(tmp_path, monkeypatch, SBATCH)


def arrays() -> list[Path]:
    return sorted(Path().rglob("array-*.sh"))


def test_a_task_in_the_queue_is_not_submitted_again_and_one_that_left_it_is(slurm, capsys):
    assert submit("g.toml", "--array", "--format", "json") == 0
    assert [row["job"] for row in json.loads(capsys.readouterr().out)] == jobs()
    assert jobs() == ["101_0", "101_1", "101_2"]
    assert submit("g.toml", "--array", "--format", "json") == 0
    assert jobs() == ["101_0", "101_1", "101_2"]
    assert {r["state"] for r in json.loads(capsys.readouterr().out)} == {"pending"}
    queue = Path("queue").read_text().splitlines()
    Path("queue").write_text(f"{queue[0]}\n{queue[2]}\n")
    assert submit("g.toml", "--array") == 0
    assert jobs() == ["101_0", "101_2", "102"], "one alone is no array"


def test_each_task_runs_the_script_of_its_run(slurm, capsys):
    assert submit("g.toml", "--scripts", "--array", "--folder", "a b'$x", "--format", "json") == 0
    rows = json.loads(capsys.readouterr().out)
    for row in rows:
        Path(row["file"]).write_text("echo $0 $$ $PPID\n")
    (array,) = arrays()
    for task, row in enumerate(rows):
        environment = {**os.environ, "SLURM_ARRAY_TASK_ID": str(task)}
        with subprocess.Popen(
            ["bash", array], env=environment, stdout=subprocess.PIPE, text=True
        ) as bash:
            told, _ = bash.communicate(timeout=150)
        assert told.startswith(row["file"])
        assert told.split()[-2] == str(bash.pid), "the shell that Slurm's signals come to"


def test_runs_of_other_sizes_are_other_arrays_with_as_many_at_once_as_said(slurm):
    slurm.write_text(MIXED + SLURM + "nodes = 2\n")
    assert submit("g.toml", "--scripts", "--array", "--jobs", "5") == 0
    told = {}
    for path in arrays():
        text = path.read_text()
        told[re.findall(r"--ntasks=(\d+)", text)[0]] = re.findall(r"--(?:array|nodes)=(.*)", text)
    assert told == {"1": ["0-1%5", "1"], "2": ["0-1%5", "2"], "4": ["0-1%5", "2"]}
    assert not Path("queue").exists()


def test_a_dry_run_tells_the_arrays_that_would_be_and_writes_nothing(slurm, capsys):
    slurm.write_text(SMALL.replace("virtual = true", "seed = [0, 1, 2]") + SLURM)
    slurm.write_text(slurm.read_text() + "[[exclude]]\nranks = 4\nseed = [1, 2]\n")
    before = sorted(os.listdir())
    assert submit("g.toml", "--array", "--dry-run", "--jobs", "2") == 0
    told = [
        line for line in capsys.readouterr().err.splitlines() if "each)" in line or "job" in line
    ]
    assert told == [
        "mpisgd submit: 1 array of 3 tasks (1 process each), at most 2 at a time",
        "mpisgd submit: 1 array of 3 tasks (2 ranks each), at most 2 at a time",
        "mpisgd submit: 1 job (4 ranks), which is no array",
    ]
    assert sorted(os.listdir()) == before
    assert submit("g.toml", "--dry-run") == 0
    assert "1 array" not in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["--array", "--scripts"])
def test_a_dry_run_refuses_what_the_command_refuses(slurm, mode):
    slurm.write_text(SMALL)
    for words in ([], ["--dry-run"]):
        with pytest.raises(UsageError, match=r"no \[slurm\] table"):
            submit("g.toml", mode, *words)


def test_an_array_that_slurm_refuses_leaves_no_record(slurm):
    Path("full").touch()
    with pytest.raises(UsageError, match=r"^sbatch: error: QOS limit$"):
        submit("g.toml", "--array")
    assert not list(Path().rglob("*.job"))
    assert len(list(Path().rglob("*.sh"))) == 4
    Path("full").unlink()
    assert submit("g.toml", "--array") == 0
    assert jobs() == ["101_0", "101_1", "101_2"]


def test_tasks_without_a_number_are_found_by_the_name_of_their_array(slurm, capsys):
    stub("sbatch", SBATCH.replace("echo $number\n", "echo done\n"))
    with pytest.raises(UsageError, match="printed no number"):
        submit("g.toml", "--array")
    capsys.readouterr()
    assert submit("g.toml", "--array", "--format", "json") == 0
    assert {row["state"] for row in json.loads(capsys.readouterr().out)} == {"pending"}
    assert len(jobs()) == 3


def test_an_array_is_slurms(slurm):
    with pytest.raises(UsageError, match="--array: is of Slurm"):
        submit("g.toml", "--array", "--local")
    with pytest.raises(UsageError, match="--jobs 2: only with --local or --array"):
        submit("g.toml", "--jobs", "2")
