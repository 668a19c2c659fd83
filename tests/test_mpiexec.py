"""The launcher: which mpiexec, with which flags, and that nothing of a job outlives it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mpisgd.mpi import mpiexec
from mpisgd.mpi.mpiexec import Hosts, Job, Launcher, find, own
from mpisgd.values.errors import UsageError

SAYS = {
    "mpich": "HYDRA build details:\n    Version:           5.0.2\n",
    "openmpi": "mpiexec (Open MPI) 5.0.11\n\nReport bugs to the list\n",
    "impi": "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)\n",
    "other": "Intel(R) Something for Linux\n",
}
HOSTS = Hosts(("10.77.0.1", "10.77.0.2"), "/agent", "e0")
# Stands for Open MPI's, which writes into a folder of its own until its end.
WRITING = """#!/bin/sh
mkdir "$PRTE_MCA_prte_local_tmpdir_base/ompi.$$"
echo "$PRTE_MCA_prte_local_tmpdir_base"
exec sleep 600
"""
# Stands for a job whose ranks leave the session and do not listen to SIGTERM.
STUBBORN = """#!/bin/sh
case $1 in --version) echo "{version}"; exit 0 ;; esac
trap '' TERM
setsid sh -c 'trap "" TERM; echo up >>"{up}"; while :; do sleep 1; done' >/dev/null 2>&1 &
while :; do sleep 1; done
"""


def program(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def stubborn(folder: Path) -> tuple[Launcher, Path]:
    up = folder / "up"
    path = program(folder / "mpiexec", STUBBORN.format(version="other", up=up))
    return Launcher(path, "other", ""), up


def wait_for(true, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


@pytest.fixture
def one_core(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    monkeypatch.delenv(mpiexec.YIELD, raising=False)


@pytest.fixture
def real() -> Launcher:
    try:
        return find()
    except UsageError as problem:
        pytest.skip(str(problem))


@pytest.mark.parametrize("kind", SAYS)
def test_the_kind_is_what_version_says(tmp_path, kind):
    path = program(tmp_path / "mpiexec", f"#!/bin/sh\ncat <<'END'\n{SAYS[kind]}END\n")
    found = find(path)
    assert (found.path, found.kind) == (path, kind)
    assert found.version in SAYS[kind]
    assert kind != "mpich" or found.version == "5.0.2"


def test_the_one_beside_this_python_comes_first(tmp_path, monkeypatch):
    beside, elsewhere = tmp_path / "environment", tmp_path / "elsewhere"
    for folder in (beside, elsewhere):
        folder.mkdir()
        program(folder / "mpiexec", "#!/bin/sh\necho HYDRA\n")
    monkeypatch.setenv("PATH", f"{elsewhere}:{os.environ['PATH']}")
    monkeypatch.setattr(sys, "executable", str(beside / "python"))
    monkeypatch.setattr(mpiexec.sysconfig, "get_path", lambda name: str(tmp_path / "none"))
    assert find().path == str(beside / "mpiexec")
    assert find(str(elsewhere / "mpiexec")).path == str(elsewhere / "mpiexec")
    (beside / "mpiexec").unlink()
    assert find().path == str(elsewhere / "mpiexec")


def test_without_mpiexec_one_line_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(mpiexec.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(UsageError, match=r"no mpiexec found: .*pip install -e '\.\[mpi\]'"):
        find()
    with pytest.raises(UsageError, match="mpiexec '/nowhere'"):
        find("/nowhere")


@pytest.mark.parametrize("kind", SAYS)
def test_the_words_end_with_the_ranks_and_the_program(one_core, kind):
    words, _ = Launcher("/m", kind, "").command(3, ["python", "-c", "a b"])
    assert words[0] == "/m"
    assert words[-5:] == ["-n", "3", "python", "-c", "a b"]


def test_open_mpi_is_told_of_root_and_of_more_ranks_than_cores(one_core, monkeypatch):
    chosen = Launcher("/m", "openmpi", "")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    words, added = chosen.command(1, ["true"])
    assert words == ["/m", "-n", "1", "true"]
    assert added == {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    words, added = chosen.command(2, ["true"])
    assert words == ["/m", "--oversubscribe", "--bind-to", "none", "-n", "2", "true"]
    assert added == {mpiexec.YIELD: "1"}
    monkeypatch.setenv(mpiexec.YIELD, "0")
    assert chosen.command(2, ["true"])[1] == {mpiexec.YIELD: "0"}


def test_on_hosts_nothing_but_tcp_and_an_agent_for_ssh(one_core, monkeypatch):
    monkeypatch.delenv(mpiexec.NETMOD, raising=False)
    words, added = Launcher("/m", "mpich", "").command(4, ["true"], HOSTS)
    assert words[words.index("-launcher-exec") + 1] == "/agent"
    assert words[words.index("-hosts") + 1] == "10.77.0.1,10.77.0.2"
    assert (added["UCX_TLS"], added["UCX_NET_DEVICES"]) == ("tcp,self", "e0")
    assert (added["FI_PROVIDER"], added["FI_TCP_IFACE"]) == ("tcp", "e0")
    assert added[mpiexec.NETMOD] == "ofi"
    monkeypatch.setenv(mpiexec.NETMOD, "ucx")
    assert Launcher("/m", "mpich", "").command(4, ["true"], HOSTS)[1][mpiexec.NETMOD] == "ucx"
    words, added = Launcher("/m", "openmpi", "").command(3, ["true"], HOSTS)
    assert words[words.index("--host") + 1] == "10.77.0.1:2,10.77.0.2:2"
    assert (added["OMPI_MCA_btl"], added["PRTE_MCA_plm_ssh_agent"]) == ("tcp,self", "/agent")
    words, added = Launcher("/m", "impi", "").command(4, ["true"], HOSTS)
    assert words[words.index("-bootstrap-exec") + 1] == "/agent"
    assert words[words.index("-hosts") + 1] == "10.77.0.1,10.77.0.2"
    assert (added["I_MPI_FABRICS"], added["FI_PROVIDER"], added["FI_TCP_IFACE"]) == (
        "ofi", "tcp", "e0",
    )  # fmt: skip
    with pytest.raises(UsageError, match="MPICH, Open MPI or Intel MPI"):
        Launcher("/m", "other", "").command(1, ["true"], HOSTS)


def test_mistakes_are_named():
    with pytest.raises(UsageError, match="ranks 0"):
        Launcher("/m", "mpich", "").command(0, ["true"])
    with pytest.raises(UsageError, match="command"):
        Launcher("/m", "mpich", "").command(1, [])


def test_mpisgd_means_this_environments():
    assert own(["mpisgd", "verify"]) == [sys.executable, "-P", "-m", "mpisgd", "verify"]
    assert own(["echo", "mpisgd"]) == ["echo", "mpisgd"]


def test_ranks_run_and_the_exit_code_is_theirs(real):
    ask = (
        "import os; from mpi4py.MPI import COMM_WORLD as world\n"
        "os.write(1, b'%d of %d\\n' % (world.rank, world.size))"
    )
    done = real.run(3, ["python", "-c", ask], timeout=150)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 of 3", "1 of 3", "2 of 3"]
    assert real.run(2, ["sh", "-c", "exit 7"], timeout=150).returncode == 7


def test_after_the_time_limit_no_rank_is_left(real):
    code = "from mpi4py import MPI; import os, time; os.write(1, b'in\\n'); time.sleep(600)"
    with real.start(2, ["python", "-c", code]) as job:
        assert job.process.stdout.readline() == "in\n"
        assert len(job.processes()) >= 3
        with pytest.raises(subprocess.TimeoutExpired):
            job.wait(timeout=0.2)
        assert job.processes() == []


def test_output_before_the_time_limit_is_kept(tmp_path):
    path = program(tmp_path / "mpiexec", "#!/bin/sh\necho said; exec sleep 600\n")
    with Launcher(path, "other", "").start(1, ["x"]) as job:
        with pytest.raises(subprocess.TimeoutExpired) as caught:
            job.wait(timeout=1)
    assert caught.value.output == "said\n"


def fail(job: Job, up: Path, error: type[BaseException]) -> None:
    wait_for(up.exists)
    assert len(job.processes()) >= 2
    raise error


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_killed_mpiexec_wrote_goes_with_the_job(tmp_path, monkeypatch, number):
    """Open MPI starts nothing under a process id whose files are still there."""
    monkeypatch.setattr(mpiexec.tempfile, "tempdir", str(tmp_path))
    path = program(tmp_path / "mpiexec", WRITING)
    with Launcher(path, "openmpi", "").start(1, ["x"]) as job:
        assert job.process.stdout is not None
        folder = Path(job.process.stdout.readline().strip())
        assert folder.parent == tmp_path
        assert (folder / f"ompi.{job.process.pid}").is_dir()
        job.process.send_signal(number)
        job.process.wait(60)
    assert list(tmp_path.iterdir()) == [Path(path)]


@pytest.mark.parametrize("named", ["PRTE_MCA_prte_local_tmpdir_base", "PRTE_MCA_prte_tmpdir_base"])
def test_a_folder_that_somebody_named_for_open_mpi_stays(tmp_path, monkeypatch, named):
    path = program(tmp_path / "mpiexec", '#!/bin/sh\nenv | grep "^PRTE_MCA_prte_"\n')
    monkeypatch.setenv(named, "/scratch/me")
    done = Launcher(path, "openmpi", "").run(1, ["x"], timeout=150)
    assert done.stdout == f"{named}=/scratch/me\n"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_ends_even_what_left_the_session(tmp_path, monkeypatch, error):
    monkeypatch.setattr(mpiexec, "GRACE_S", 0.3)
    chosen, up = stubborn(tmp_path)
    with pytest.raises(error), chosen.start(1, ["x"]) as job:
        fail(job, up, error)
    assert job.processes() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_to_the_owner_ends_the_job_and_the_owner(tmp_path, number):
    chosen, up = stubborn(tmp_path)
    code = (
        "import sys; from mpisgd.mpi import mpiexec; mpiexec.GRACE_S = 0.3\n"
        "with mpiexec.Launcher(sys.argv[1], 'other', '').start(1, ['x']) as job:\n"
        "    print(job.token, flush=True); job.wait()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code, chosen.path],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert owner.stdout is not None
    with owner:
        token = owner.stdout.readline().strip()
        wait_for(up.exists)
        owner.send_signal(number)
        assert owner.wait(150) == -number
    assert not [p for p in Path("/proc").glob("[0-9]*") if token in environment(p)]


def environment(process: Path) -> str:
    try:
        return (process / "environ").read_text(errors="replace")
    except OSError:
        return ""


def test_a_job_within_a_job_ends_with_it(tmp_path):
    inner = (
        "import sys; from mpisgd.mpi.mpiexec import Launcher\n"
        "Launcher(sys.argv[1], 'other', '').start(1, ['x'])\n"
    )
    chosen, up = stubborn(tmp_path)
    outer = program(tmp_path / "outer", f'#!/bin/sh\nexec \'{sys.executable}\' -c "$4" "$5"\n')
    with Launcher(outer, "other", "").start(1, ["x", inner, chosen.path]) as job:
        wait_for(up.exists)
        left = job.processes()
    assert left
    assert job.processes() == []


def test_an_mpiexec_that_does_not_start_is_named_with_the_reason(tmp_path, monkeypatch):
    broken = program(tmp_path / "mpiexec", "#!/nowhere/interpreter\n")
    with pytest.raises(UsageError, match=rf"mpiexec '{broken}': .*No such file .*install one"):
        find(broken)

    def late(words, timeout, **_):
        raise subprocess.TimeoutExpired(words, timeout)

    monkeypatch.setattr(mpiexec.subprocess, "run", late)
    with pytest.raises(UsageError, match=r"timed out after 30(\.0)? s"):
        find(broken)
