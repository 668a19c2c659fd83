"""`mpisgd doctor` finds what is wrong by trying, says no secrets, and never hangs."""

import errno
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from mpi_ranks import Ranks

from allreduce.testing import loopback
from mpisgd.doctor import wires
from mpisgd.doctor.examine import Examination
from mpisgd.doctor.findings import findings
from mpisgd.doctor.place import _lock, folder, shared_memory
from mpisgd.doctor.trials import attempt

ENTER = ["unshare", "--mount", "sh", "-c"]


def doctor(*words: str, before: list[str] | None = None, **variables: str) -> dict:
    """What it tells as JSON; `before`: words that start it otherwise."""
    command = [*(before or []), sys.executable, "-m", "mpisgd", "doctor", "--format", "json"]
    done = subprocess.run(
        [*command, *words], capture_output=True, text=True, timeout=90,
        env={**os.environ, **variables},
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    told = json.loads(done.stdout)
    faults = [each for each in told["findings"] if each["level"] == "fault"]
    assert done.returncode == bool(faults)
    return told


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def whats(told: dict) -> str:
    return "\n".join(f"{each['what']} -> {each['remedy']}" for each in told["findings"])


def test_ranks_of_a_launcher_are_asked_and_no_secret_is_told(mpi: Ranks):
    done = mpi.run(
        2, ["mpisgd", "doctor", "--format", "json", "--limit", "60s"],
        environment={"API_TOKEN": "s3cret", "I_MPI_AUTH_KEY": "s3cret"}, check=False,
    )  # fmt: skip
    told = json.loads(done.stdout)
    assert "s3cret" not in done.stdout
    ranks = told["ranks"]
    assert ranks["ranks"] == len(ranks["cores"]) == 2
    assert ranks["nodes"] == 1
    assert ranks["pmi"] in ("PMI", "PMIx")
    assert ranks["barrier_median_s"] > 0
    assert ranks["barrier_skew_median_s"] <= ranks["barrier_skew_p90_s"]
    assert {each["interface"] for each in ranks["tcp"]} == set(wires.interfaces())
    assert told["folder"]["flock"] == "works"
    assert told["machine"]["clock_step_ns"] > 0


def test_a_machine_of_one_core_is_found(tmp_path, monkeypatch):
    if shutil.which("taskset") is None:
        pytest.skip("no taskset")
    core = str(min(os.sched_getaffinity(0)))
    told = doctor("--ranks", "2", "--limit", "60s", before=["taskset", "-c", core])
    if "told" in told["launcher"] and told["launcher"]["told"]:
        pytest.skip(told["launcher"]["told"])
    assert told["ranks"]["cores"] == [core, core]
    assert "2 ranks on a core" in whats(told)


def test_a_small_shared_memory_is_found_and_a_way_around():
    if os.geteuid() or subprocess.run([*ENTER, "true"], capture_output=True).returncode:
        pytest.skip("needs root and mount namespaces")
    mount = 'mount -t tmpfs -o size=1m none /dev/shm && exec "$@"'
    told = doctor("--ranks", "2", "--limit", "60s", before=[*ENTER, mount, "sh"])
    assert told["shm"]["size_bytes"] == 2**20
    assert "16 MiB in /dev/shm cannot be had: No space left" in whats(told)
    if told["launcher"].get("kind") == "mpich":
        assert "with little shared memory they run (MPIR_CVAR_" in whats(told)


def test_what_dead_jobs_left_is_told_by_its_names(tmp_path):
    (tmp_path / "mpich_shm_x").write_bytes(bytes(100))
    (tmp_path / "mine").write_bytes(bytes(100))
    facts = shared_memory(str(tmp_path), 1)
    assert (facts["left_segments"], facts["left_bytes"]) == (1, 100)
    (found,) = findings({"shm": facts | {"size_bytes": 200 << 20, "left_bytes": 150 << 20}}, [])
    assert "delete what is yours of mpich_shm_*, ucx_shm_*" in found.remedy


def test_a_launcher_that_hangs_is_ended_in_time(tmp_path):
    body = 'test "$1" = --version && echo HYDRA && exit\ntrap "" TERM\nsleep 600 & wait; wait'
    told = doctor("--mpiexec", program(tmp_path / "mpiexec", body), "--limit", "5s")
    assert "ranks do not run (0 of 2 came): no end within" in whats({
        "findings": [f for f in told["findings"] if f["level"] == "fault"]
    }) or "not tried" in whats(told)  # fmt: skip
    assert told["seconds"] < 60  # not the 600 that it would sleep


def test_a_refusal_of_root_has_its_remedy(tmp_path):
    """The words are Open MPI's; here they come for `true` alone."""
    body = (
        'test "$1" = --version && echo "mpiexec (Open MPI) 5.0.11" && exit\n'
        'case "$*" in *doctor*) exit 9;; esac\n'
        'echo "prterun has detected an attempt to run as root." >&2; exit 1'
    )
    told = doctor("--mpiexec", program(tmp_path / "mpiexec", body), "--limit", "20s")
    assert "refuses to start as root -> set OMPI_ALLOW_RUN_AS_ROOT=1" in whats(told)


def test_worlds_of_their_own_and_foreign_launchers_are_faults():
    singletons = {"ranks": {"told": "each is an MPI world of its own"}}
    assert findings(singletons, [])[0].level == "fault"
    said = attempt(["sh", "-c", "echo 'uses unsupported PMI version PMIx'; exit 16"], 5.0).told
    found = findings({"ranks": {"told": said, "came": 2, "wanted": 2}}, [])[0]
    assert found.level == "fault"
    assert "own mpiexec" in found.remedy


def test_one_interface_that_works_is_named():
    trials = [{"trial": "only over lo", "told": ""}, {"trial": "only over eth0", "told": "late"}]
    facts = {"launcher": {"kind": "mpich"}, "ranks": {"told": "late", "came": 2, "wanted": 2}}
    found = findings(facts, trials)[0]
    assert "only over lo they run (HYDRA_IFACE=lo" in found.remedy
    assert "only over eth0 they do not" in found.remedy


def test_an_interface_is_tried_by_connecting():
    with wires.Answering("h1") as port:
        assert wires.reached("h1", port, {"lo": "127.0.0.1"}) == {"lo": ""}
        assert wires.reached("h2", port, {"docker0": "127.0.0.1"}) == {
            "docker0": "h1 answers, not h2"
        }
    with socket.create_server(("127.0.0.1", 0)) as mute:  # as behind a firewall: nothing comes
        told = wires.reached("h1", mute.getsockname()[1], {"e1": "127.0.0.1"})
        assert told == {"e1": "no answer in 1 s"}
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert "refused" in wires.reached("h1", port, {"e1": "127.0.0.1"})["e1"]


# h1 has an interface e1 too; what h0 sends there goes to an address of the wire that nobody has.
SILENT = """
if [ $(hostname) = h1 ]; then
  ip link add e1 type veth peer name ex && ip address add 10.88.1.1/24 dev e1
  ip link set ex up && ip link set e1 up
else
  ip neighbour add 10.77.0.9 lladdr 02:00:00:00:00:09 dev e0
  ip route add 10.88.1.1/32 via 10.77.0.9
fi
exec "$@"
"""


@pytest.mark.lab
def test_an_interface_that_drops_what_is_sent_is_found_between_hosts():
    from mpisgd.mpi.lab import Lab, missing

    if problem := missing():
        pytest.skip(problem)
    words = ["sh", "-c", SILENT, "sh", sys.executable, "-m", "mpisgd", "doctor"]
    with Lab(2, "1gbit") as lab:
        done = lab.run([*words, "--format", "json", "--limit", "60s"], timeout=90)
    told = json.loads(done.stdout[done.stdout.index("{") :])
    assert told["ranks"]["nodes"] == 2
    found = {(e["from"], e["interface"]): e["told"] for e in told["ranks"]["tcp"]}
    assert found == {("h0", "e0"): "", ("h1", "e0"): "", ("h0", "e1"): "no answer in 1 s"}
    assert "from h0 to h1 over e1: no answer" in whats(told)


@pytest.mark.parametrize(
    ("gpus", "limit_s", "aware", "proof", "level"),
    [
        (1, 60.0, "1", "a message of device memory arrived", None),
        (1, 60.0, "", "it says so, but a message of device memory ended with ", "warning"),
        (1, 1.0, "1", "not tried: the time is up", "note"),
        (0, 60.0, "1", "not tried: no GPU here", "note"),
    ],
)
def test_a_library_s_word_on_device_memory_is_proved(
    monkeypatch, gpus, limit_s, aware, proof, level
):
    """On the double, whose addresses this MPI can read or not, as a variable says."""
    stand_in = str(Path(loopback.__file__).parent / "stand_in")
    monkeypatch.syspath_prepend(stand_in)
    monkeypatch.setenv("PYTHONPATH", stand_in)
    monkeypatch.setenv("DEVICE_DOUBLE_AWARE", aware)
    done = Examination(limit_s)
    told = {"library": "one", "ranks_per_core": 1, "least_core_share": 1.0, "clock_error_s": 0.0,
            "barrier_skew_median_s": 0.0, "cuda_aware": True}  # fmt: skip
    done.facts = {"machine": {"gpus": gpus}, "ranks": told}
    done.device_memory()
    assert told["cuda_aware_proof"].startswith(proof)
    found = [each.level for each in findings(done.facts, []) if "CUDA" in each.what]
    assert found == ([level] if level else [])


def test_locks_are_tried_by_a_second_process(tmp_path):
    path = tmp_path / "file"
    path.touch()

    def missing(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    assert _lock(path, fcntl.flock) == _lock(path, fcntl.lockf) == "works"
    assert _lock(path, missing) == "none: No locks available"
    assert _lock(path, lambda file, how: None) == "none: two processes hold it at once"
    facts = {"folder": {"path": ".", "file_system": "nfs", "flock": _lock(path, missing)}}
    assert "flock none: No locks available" in findings(facts, [])[0].what


def test_a_folder_and_a_shared_memory_that_are_not_there(tmp_path):
    assert folder(tmp_path / "no")["told"] == "No such file or directory"
    assert list(tmp_path.iterdir()) == []
    assert folder(tmp_path)["told"] == ""
    assert list(tmp_path.iterdir()) == []
    assert shared_memory(str(tmp_path / "no"))["told"] == "No such file or directory"
    assert shared_memory(str(tmp_path), 2**62)["told"] != ""
    assert list(tmp_path.iterdir()) == []
