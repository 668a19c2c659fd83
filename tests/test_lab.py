"""The lab: hosts of their own, a wire that is the bottleneck, and nothing left behind."""

import argparse
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mpisgd.mpi import lab as lab_module
from mpisgd.mpi.lab import Lab, burst_bytes, burst_of, missing, rate_of
from mpisgd.mpi.mpiexec import find
from mpisgd.store.environment import environment
from mpisgd.values.errors import UsageError

RATE = "200mbit"
WHO = (
    "import os, socket; from mpi4py.MPI import COMM_WORLD as world\n"
    "os.write(1, b'%d %s\\n' % (world.rank, socket.gethostname().encode()))"
)
# Rank 0 sends 1 MiB to rank 1 in one piece; prints the bits per second, the best of several.
SEND = """
import os, time
import numpy as np
from mpi4py.MPI import COMM_WORLD as world
data, answer, best = np.zeros(2**20, np.uint8), np.zeros(1, np.uint8), 1e9
for _ in range(7):
    world.Barrier()
    begin = time.perf_counter()
    if world.rank == 0:
        world.Send(data, 1); world.Recv(answer, 1)
    elif world.rank == 1:
        world.Recv(data, 0); world.Send(answer, 0)
    best = min(best, time.perf_counter() - begin)
if world.rank == 0: os.write(1, b'%d\\n' % (8 * data.size / best))
"""
# Messages to and fro until the file named first exists; the first exchange makes that named second.
TALK = """
import sys
from pathlib import Path
from mpi4py.MPI import COMM_WORLD as world
going = True
while going:
    if world.rank == 0:
        going = not Path(sys.argv[1]).exists()
        world.send(going, 1); world.recv(source=1)
        Path(sys.argv[2]).touch()
    else:
        going = world.recv(source=0)
        world.send(going, 0)
"""
# 0: the host refuses, so it was reached; 1: no answer within the time.
REACH = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), timeout=0.3)
except ConnectionRefusedError:
    sys.exit(0)
except OSError:
    sys.exit(1)
"""


@pytest.fixture
def able() -> None:
    if problem := missing():
        pytest.skip(f"a lab {problem}")
    try:
        find()
        Lab(1, RATE).open().close()
    except UsageError as problem:
        pytest.skip(str(problem))


def network_of(lab: Lab) -> str:
    """The name of the lab's own network namespace: no process of any other shows it."""
    return os.readlink(f"/proc/{lab._process}/ns/net")


def interfaces() -> str:
    return subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout


def living(mark: str) -> list[str]:
    """Processes with `mark` in their command line."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "cmdline").read_text(errors="replace"):
                found.append(process.name)
        except OSError:
            continue
    return found


def reaches(lab: Lab) -> bool:
    """Whether h0 reaches h1."""
    words = [*lab.enter(0), sys.executable, "-c", REACH, lab.addresses[1]]
    return subprocess.run(words, check=False).returncode == 0


def wait_for(true, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("text", "bits"), [("200mbit", 200e6), ("1.5Gbit", 1.5e9), ("64kibit", 65536.0), ("9bit", 9.0)]
)
def test_rates_are_read_as_tc_reads_them(text, bits):
    assert rate_of(text) == bits


@pytest.mark.parametrize("text", ["", "200", "200mb", "-1mbit", "0gbit", "1 gbit", "1mbit; reboot"])
def test_a_rate_that_is_none_is_refused(text):
    with pytest.raises(UsageError, match="--rate"):
        rate_of(text)


def test_what_passes_at_once_is_little_but_never_less_than_timers_can_do():
    assert burst_of(200e6) == "18kb"
    assert burst_of(400e6) == "72000b"
    assert burst_of(1e9) == "125000b"
    assert [burst_bytes(burst_of(rate)) for rate in (200e6, 400e6, 1e9)] == [18432, 72000, 125000]


@pytest.mark.parametrize("hosts", [0, -1, 251])
def test_a_number_of_hosts_that_cannot_be_is_refused(hosts):
    with pytest.raises(UsageError, match=f"--hosts {hosts}: from 1 to 250"):
        Lab(hosts, RATE)


def test_who_is_not_root_is_told_in_one_line(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="lab: needs root"):
        Lab(2, RATE)


def test_who_lacks_iproute2_is_told_in_one_line(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(lab_module.shutil, "which", lambda tool, path: tool != "tc" or None)
    with pytest.raises(UsageError, match="needs the program tc: install iproute2"):
        Lab(2, RATE)


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    lab_module.add_arguments(parser)
    return parser.parse_args(words)


def test_the_command_is_what_follows_the_dashes():
    found = parsed("--hosts", "3", "--", "mpisgd", "train", "--hosts", "9", "--", "x")
    assert found.hosts == 3
    assert found.words[-6:] == ["mpisgd", "train", "--hosts", "9", "--", "x"]
    with pytest.raises(UsageError, match="name a command"):
        lab_module.run(parsed("--hosts", "3", "--"))


@pytest.mark.lab
@pytest.mark.usefixtures("able")
def test_ranks_go_round_the_hosts_which_have_names_of_their_own():
    before = interfaces()
    with Lab(3, RATE) as lab:
        assert interfaces() == before
        done = lab.run(["python", "-c", WHO], ranks=7, timeout=150)
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == [f"{rank} h{rank % 3}" for rank in range(7)]
        assert len(lab.run(["python", "-c", WHO], timeout=150).stdout.splitlines()) == 3


@pytest.mark.lab
@pytest.mark.usefixtures("able")
def test_every_rank_knows_the_lab_that_it_is_in():
    told = f"import os; os.write(1, os.environ['{lab_module.LAB}'].encode() + b'\\n')"
    with Lab(2, "1500kbit") as lab:
        done = lab.run(["python", "-c", told], timeout=150)
        own = lab.run(["python", "-c", told], timeout=150, environment={lab_module.LAB: "mine"})
    assert done.stdout.splitlines() == ["1500kbit between 2 hosts"] * 2
    assert own.stdout.splitlines() == ["mine"] * 2


def test_results_keep_the_lab(monkeypatch):
    monkeypatch.delenv(lab_module.LAB, raising=False)
    assert lab_module.LAB not in environment()["variables"]
    monkeypatch.setenv(lab_module.LAB, "200mbit between 2 hosts")
    assert environment()["variables"][lab_module.LAB] == "200mbit between 2 hosts"


@pytest.mark.lab
@pytest.mark.usefixtures("able")
def test_the_wire_is_the_bottleneck():
    with Lab(2, "100mbit") as lab:
        done = lab.run(["python", "-c", SEND], timeout=150)
    assert done.returncode == 0, done.stderr
    # Headers take less than 1 %; the burst of 18 kB in 1 MiB passes for nothing.
    assert 0.85e8 < float(done.stdout) < 1.03e8


@pytest.mark.lab
@pytest.mark.usefixtures("able")
def test_hosts_have_a_congestion_control_of_their_own_whatever_the_machines_is():
    own = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    before = own.read_text()
    with Lab(2, RATE) as lab:
        told = subprocess.run([*lab.enter(1), "cat", str(own)], capture_output=True, text=True)
    assert told.stdout == f"{lab_module.CONGESTION}\n"
    assert own.read_text() == before


@pytest.mark.lab
@pytest.mark.usefixtures("able")
def test_a_cut_wire_carries_nothing_and_mpi_goes_on_when_it_is_mended(tmp_path):
    stop, began = tmp_path / "stop", tmp_path / "began"
    with Lab(2, RATE) as lab, lab.start(["python", "-c", TALK, str(stop), str(began)]) as job:
        wait_for(began.exists)
        assert reaches(lab)
        lab.cut(1)
        assert not reaches(lab)
        lab.mend(1)
        assert reaches(lab)
        stop.touch()
        done = job.wait(timeout=150)
        assert done.returncode == 0, done.stderr


@pytest.mark.lab
@pytest.mark.usefixtures("able")
def test_two_labs_share_names_and_addresses_and_never_meet():
    with Lab(2, RATE) as one, Lab(2, RATE) as two:
        assert network_of(one) != network_of(two)
        two.cut(1)
        assert reaches(one)
        assert not reaches(two)


@pytest.mark.lab
@pytest.mark.usefixtures("able")
def test_commands_run_where_they_are_told(tmp_path):
    with Lab(2, RATE) as lab:
        words = [*lab.enter(1, tmp_path), "sh", "-c", "pwd; cat /proc/sys/kernel/hostname"]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        assert done.stdout == f"{tmp_path}\nh1\n"
        with pytest.raises(UsageError, match="host 2: from 0 to 1"):
            lab.enter(2)
    with pytest.raises(UsageError, match="not open"):
        lab.enter(0)


@pytest.mark.lab
@pytest.mark.usefixtures("able")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_dead_owner_leaves_nothing(number):
    mark = f"mark{os.getpid()}.{number}"
    code = (
        "import signal, subprocess, sys, time; from mpisgd.mpi.lab import Lab\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # whoever ignores it above
        "with Lab(2, '200mbit') as lab:\n"
        "    loop = 'trap \"\" TERM INT; while :; do sleep 1; done'\n"
        "    subprocess.Popen([*lab.enter(1), 'setsid', 'sh', '-c', loop, sys.argv[1]])\n"
        "    print(lab._process, flush=True); time.sleep(600)"
    )
    words = [sys.executable, "-c", code, mark]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as owner:
        assert owner.stdout is not None
        first = int(owner.stdout.readline())
        handle = os.pidfd_open(first)
        owner.send_signal(number)
        owner.wait(150)
    # The first process of the lab is gone only when all the others are.
    assert select.select([handle], [], [], 30)[0]
    os.close(handle)
    wait_for(lambda: not living(mark))  # nsenter itself is outside, and ends after its command


@pytest.mark.lab
@pytest.mark.usefixtures("able")
@pytest.mark.parametrize(("end", "code"), [("exit 7", 7), ("exit 0", 0)])
def test_the_exit_code_is_the_commands(end, code):
    words = ["--hosts", "2", "--rate", RATE, "--ranks", "1", "--", "sh", "-c", end]
    assert lab_module.run(parsed(*words)) == code


@pytest.mark.lab
@pytest.mark.usefixtures("able")
def test_mpisgd_in_the_lab_is_this_environments(capfd):
    words = ["--hosts", "2", "--ranks", "1", "--", "mpisgd", "--version"]
    assert lab_module.run(parsed(*words)) == 0
    assert capfd.readouterr().out.startswith("mpisgd ")


COMMAND = """
import argparse, sys
from mpisgd.mpi import lab
parser = argparse.ArgumentParser()
lab.add_arguments(parser)
sys.exit(lab.run(parser.parse_args(sys.argv[1:])))
"""


def command(*words: str) -> subprocess.Popen[str]:
    """`mpisgd lab` as a process, whose command's first line can be read."""
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.lab
@pytest.mark.usefixtures("able")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15)])
def test_a_signal_ends_the_command_and_the_lab(number, code):
    mark = f"mark{os.getpid()}.{number}"
    loop = "echo up; while :; do sleep 1; done"
    with command("--hosts", "2", "--", "sh", "-c", loop, mark) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        assert process.wait(150) == code
    wait_for(lambda: not living(mark))


@pytest.mark.lab
@pytest.mark.usefixtures("able")
def test_kept_hosts_can_be_entered_as_it_says_and_end_with_ctrl_c():
    with command("--keep", "--ranks", "1", "--", "sh", "-c", "exit 3") as process:
        assert process.stderr is not None
        assert "of which 18432 bytes pass at once" in process.stderr.readline()
        said = process.stderr.readline()
        words = said.partition(" on h0: ")[2].split()
        done = subprocess.run(
            [*words, "-c", "cat /proc/sys/kernel/hostname"], capture_output=True, text=True
        )
        assert done.stdout == "h0\n", said
        process.send_signal(signal.SIGINT)
        assert process.wait(150) == 3


@pytest.mark.lab
@pytest.mark.usefixtures("able")
def test_what_the_system_says_against_a_lab_is_one_line_and_nothing_stays():
    before = interfaces()
    lab = Lab(2, RATE, burst="much")
    with pytest.raises(UsageError, match=r"lab: can't be built: .*burst"):
        lab.open()
    assert interfaces() == before
    with pytest.raises(UsageError, match="is not open"):
        lab.enter(0)
    lab.close()
