"""What a launcher says before MPI has started: who is alone, and who speaks for all."""

import os
import subprocess
import sys

import pytest

from mpisgd import cli
from mpisgd.mpi import announced
from mpisgd.values.errors import UsageError

SPEAKS = """
import sys
from mpisgd.mpi import announced
announced.ECHO_S = 60.0
with announced.first_here() as speaks:
    print(speaks, flush=True)
    sys.stdin.read(1)  # until the other has come, or is not to
    announced.ECHO_S = 0.0
"""


@pytest.mark.parametrize("command", sorted(cli.COMMANDS.keys() - cli.ON_RANKS))
def test_what_one_process_does_is_not_done_by_each_rank(command, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PMI_SIZE", "3")
    monkeypatch.setattr(announced, "ECHO_S", 0.0)
    monkeypatch.setattr(os, "getppid", os.getpid)  # other tests' processes have our parent
    needed = {
        "submit": ["a.toml"], "lab": ["--", "true"], "report": ["a.h5"], "replay": ["a.h5"],
        "export": ["a.h5"], "compare": ["a.h5", "b.h5"], "completion": ["bash"], "sweep": ["a.h5"],
    }  # fmt: skip
    assert cli.main([command, *needed.get(command, [])]) == 2
    told = f"mpisgd {command}: error: runs in one process, but a launcher started 3; start it wi"
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(told)
    assert not list(tmp_path.iterdir())


def test_a_launcher_of_one_is_none(monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "1")
    announced.check_alone()
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(UsageError, match=r"^--virtual 4: runs in one process"):
        announced.check_alone("--virtual", 4)


def start(tasks: int) -> subprocess.Popen:
    environment = {**os.environ, "PMI_SIZE": str(tasks)}
    return subprocess.Popen(
        [sys.executable, "-c", SPEAKS], env=environment, stdin=-1, stdout=-1, text=True
    )


@pytest.mark.parametrize(("tasks", "second"), [(2, "False"), (1, "True")])
def test_of_those_that_one_launcher_started_one_speaks(tasks, second):
    """Whichever is first; of processes that nobody started together each."""
    with start(tasks) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == "True\n"
        with start(tasks) as two:
            assert two.communicate("x", timeout=150)[0] == f"{second}\n"
        one.communicate("x", timeout=150)
    with start(tasks) as alone:
        assert alone.communicate("x", timeout=150)[0] == "True\n"
