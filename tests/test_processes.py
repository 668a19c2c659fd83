"""What surrounds a process: the folder it starts in, its streams, signals, variables, settings."""

import os
import signal
import subprocess
import sys

import pytest

from mpisgd.store.environment import environment
from mpisgd.store.reader import read
from mpisgd.values.processes import handle, python

TRAIN = ("train", "--virtual", "2", "--steps", "4", "--output", "r.h5")


def shell(folder, line: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`line` of a shell in `folder`, with the words of a command of mpisgd as "$@"."""
    argv = ["sh", "-c", line, "sh", sys.executable, "-m", "mpisgd", *words]
    return subprocess.run(
        argv, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


def complete(path) -> bool:
    with read(path) as run:
        return run.complete


@pytest.mark.parametrize("name", ["random.py", "numpy.py", "h5py.py", "mpisgd/x.py"])
def test_a_users_files_where_a_command_starts_are_not_run(tmp_path, name):
    """By the command itself, nor by the processes that it starts."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("raise SystemExit('a file of the user was run')")
    done = shell(tmp_path, 'exec "$@"', *TRAIN)
    assert done.returncode == 0, done.stderr
    done = subprocess.run(
        python("mpisgd.store.remote"), cwd=tmp_path, stdin=subprocess.DEVNULL, timeout=150,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("line", ['"$@" >&-', '"$@" 2>&-', '"$@" 2>/dev/full', '"$@" <&- >&- 2>&-'])
def test_a_run_whose_streams_are_closed_or_full_leaves_its_result(tmp_path, line):
    done = shell(tmp_path, line, *TRAIN)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert complete(tmp_path / "r.h5")


def test_a_summary_that_nobody_can_read_is_one_line_and_the_result_stays(tmp_path):
    done = shell(tmp_path, '"$@" >/dev/full', *TRAIN)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "mpisgd train: [Errno 28] No space left on device"
    assert complete(tmp_path / "r.h5")


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert handle([signal.SIGHUP], print) == {}
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        assert handle([signal.SIGHUP], print) == {signal.SIGHUP: signal.SIG_DFL}
        assert signal.getsignal(signal.SIGHUP) is print
    finally:
        signal.signal(signal.SIGHUP, before)


def test_settings_of_a_users_matplotlib_change_no_picture(tmp_path):
    pytest.importorskip("matplotlib")
    assert shell(tmp_path, 'exec "$@"', *TRAIN).returncode == 0
    words = ("report", "r.h5", "--html", "plain.html"), ("report", "r.h5", "--html", "own.html")
    assert shell(tmp_path, 'exec "$@"', *words[0]).returncode == 0
    (tmp_path / "matplotlibrc").write_text("lines.linewidth: 9\nfigure.facecolor: red\n")
    done = shell(tmp_path, 'exec "$@"', *words[1], MPLBACKEND="nonsense")
    assert done.returncode == 0, done.stderr
    plain, own = (tmp_path / f"{name}.html" for name in ("plain", "own"))
    assert own.read_text().replace("own.html", "plain.html") == plain.read_text()


def test_secrets_of_the_environment_are_not_recorded(monkeypatch):
    for name in ("SLURM_JWT", "SLURM_JOB_ID", "UCX_TLS", "FI_AUTH_TOKEN", "CUDA_SECRET", "MY_PASS"):
        monkeypatch.setenv(name, "told")
    assert {n for n, v in environment()["variables"].items() if v == "told"} == {
        "SLURM_JOB_ID",
        "UCX_TLS",
    }
