"""Submitting, with a Slurm of stubs; tests/cluster has the real one."""

import errno
import os
import shutil
from pathlib import Path

import pytest
from slurm_stubs import jobs, stub, with_slurm
from test_submit import submit

from mpisgd.submit import folder, grid, queue
from mpisgd.values.errors import UsageError

SBATCH = """\
number=$(($(cat count 2>/dev/null || echo 100) + 1))
[ -e "full" ] && [ "$number" -gt "$(cat full)" ] && { echo "sbatch: error: QOS limit" >&2; exit 1; }
echo $number >count
name=$(sed -n 's/^#SBATCH --job-name=//p' "$2")
echo "$number PENDING $name" >>queue
echo "$number;cluster"
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch) -> Path:
    return with_slurm(tmp_path, monkeypatch, SBATCH)


def test_a_job_in_the_queue_is_not_submitted_again(slurm, capsys):
    assert submit("g.toml", "--format", "csv") == 0
    assert jobs() == ["101", "102", "103"]
    rows = [line.split(",") for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[6:8] for row in rows] == [["submitted", n] for n in jobs()]
    assert all(Path(row[8]).read_text().startswith("#!/bin/bash") for row in rows)
    assert submit("g.toml", "--format", "csv") == 0
    assert jobs() == ["101", "102", "103"]
    assert "pending,102" in capsys.readouterr().out
    queue = Path("queue").read_text().splitlines()
    Path("queue").write_text(queue[0] + "\n" + queue[2] + "\n")
    assert submit("g.toml") == 0
    assert jobs() == ["101", "103", "104"]


def test_a_number_that_slurm_gave_to_another_job_is_not_ours(slurm):
    submit("g.toml")
    Path("queue").write_text("101 RUNNING somebody else's\n")
    submit("g.toml")
    assert jobs() == ["101", "104", "105", "106"]


def test_what_was_submitted_before_a_refusal_is_kept(slurm):
    Path("full").write_text("102")
    with pytest.raises(UsageError, match="QOS limit"):
        submit("g.toml")
    assert jobs() == ["101", "102"]
    Path("full").unlink()
    assert submit("g.toml") == 0
    assert jobs() == ["101", "102", "103"]


def test_a_number_is_read_between_the_banners_of_a_site(slurm):
    stub("sbatch", SBATCH.replace('echo "$number;', 'echo "Welcome to 7 sites"; echo "$number;'))
    assert submit("g.toml") == 0
    assert submit("g.toml") == 0
    assert jobs() == ["101", "102", "103"]


def test_a_job_without_a_number_is_not_sent_again_until_its_record_is_deleted(slurm, capsys):
    stub("sbatch", SBATCH.replace('"$number;cluster"', "done"))
    with pytest.raises(
        UsageError, match=r"printed no number of a job; see squeue, and delete .*job"
    ):
        submit("g.toml")
    stub("sbatch", SBATCH)
    assert submit("g.toml", "--format", "csv") == 0
    assert jobs() == ["101", "102", "103"]
    Path("queue").write_text("")
    assert (
        submit("g.toml", "--format", "csv") == 0
    )  # the two whose numbers are known are sent again
    assert jobs() == ["104", "105"]
    assert ",sent," in capsys.readouterr().out
    (record,) = (path for path in Path().rglob("*.job") if path.read_text() == "sent\n")
    record.unlink()
    assert submit("g.toml") == 0
    assert jobs() == ["104", "105", "106"]


def test_nothing_is_submitted_when_slurm_does_not_answer(slurm):
    submit("g.toml")
    stub("squeue", "echo 'slurm_load_jobs error: Unable to contact' >&2; exit 1\n")
    for mode in ("--dry-run", "--local", "--scripts"):
        with pytest.raises(UsageError, match="squeue: slurm_load_jobs error"):
            submit("g.toml", mode)
    assert jobs() == ["101", "102", "103"]


def test_scripts_are_written_and_nothing_is_submitted(slurm, capsys):
    assert submit("g.toml", "--dry-run", "--format", "json") == 0
    assert sorted(os.listdir()) == ["bin", "g.toml"]
    assert submit("g.toml", "--scripts", "--folder", "a b") == 0
    assert [path.suffix for path in Path("a b").iterdir()] == [".sh"] * 3
    assert not Path("queue").exists()


def test_two_at_work_in_one_folder_are_refused(slurm):
    with folder.alone(Path("f")):
        with pytest.raises(UsageError, match="another submit is at work"):
            submit("g.toml", "--folder", "f")
    assert submit("g.toml", "--folder", "f") == 0


def test_a_folder_that_cannot_be_written_is_told_in_one_line(slurm):
    first = grid.read("g.toml").runs[0]
    Path("f", f"{first.name}.sh").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"--folder 'f/.*\.sh': Is a directory"):
        submit("g.toml", "--folder", "f")
    assert not Path("queue").exists()


@pytest.mark.parametrize("way", ["access", "mkdir"])
def test_a_folder_that_the_system_refuses_is_told_before_anything_is_submitted(
    slurm, monkeypatch, way
):
    def fail(*_, **__):
        raise PermissionError(13, "Permission denied")

    if way == "access":
        monkeypatch.setattr(os, "access", lambda path, mode: str(path) != ".")
    else:
        monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(UsageError, match=r"--folder 'f(/g)?': (Permission|'\.' cannot be written)"):
        submit("g.toml", "--folder", "f/g" if way == "access" else "f")
    assert not Path("queue").exists()


def test_without_locks_submit_goes_on(slurm, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", fail)
    assert submit("g.toml", "--folder", "f") == 0
    assert jobs() == ["101", "102", "103"]


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("#!/bin/sh\nexit 3\n", "sbatch: ended with 3"),
        ("#!/no/such/shell\n", "sbatch: can't be asked: .*No such file"),
    ],
)
def test_where_sbatch_refuses_there_is_no_job(slurm, monkeypatch, program, told):
    """Nothing goes on record, so that the next try submits it."""
    Path("bin", "sbatch").write_text(program)
    for tool in ("cat", "sed"):
        Path("bin", tool).symlink_to(str(shutil.which(tool)))
    monkeypatch.setenv("PATH", str(Path("bin").absolute()))  # no other sbatch is tried instead
    with pytest.raises(UsageError, match=told):
        submit("g.toml", "--folder", "f")
    assert list(Path("f").glob("*.job")) == []
    stub("sbatch", SBATCH)
    assert submit("g.toml", "--folder", "f") == 0
    assert jobs() == ["101", "102", "103"]


def test_a_job_that_sbatch_may_have_sent_before_it_hung_is_not_sent_again(slurm, monkeypatch):
    monkeypatch.setattr(queue, "TIMEOUT", 1)
    stub("sbatch", SBATCH + "exec sleep 60\n")
    with pytest.raises(UsageError, match=r"sbatch: can't be asked: .*timed out after 1 s"):
        submit("g.toml", "--folder", "f")
    monkeypatch.setattr(queue, "TIMEOUT", 60)
    stub("sbatch", SBATCH)
    assert submit("g.toml", "--folder", "f") == 0
    assert jobs() == ["101", "102", "103"]


def test_a_record_that_cannot_be_read_is_named_and_one_without_a_number_is_none(slurm):
    submit("g.toml", "--folder", "f")
    record = min(Path("f").glob("*.job"))
    record.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=rf"{record}: can't be read"):
        submit("g.toml", "--folder", "f")
    record.write_text("none\n")
    assert submit("g.toml", "--folder", "f") == 0
    assert len(jobs()) == 4
