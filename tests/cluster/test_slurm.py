"""Real jobs on a real Slurm: MPI over two nodes, cancelling, requeueing."""

import subprocess
import sys
from pathlib import Path

import pytest
from slurm import Slurm

from mpisgd.mpi.mpiexec import Launcher, find
from mpisgd.values.errors import UsageError

pytestmark = pytest.mark.slurm

WHO = (
    "import os, socket; from mpi4py.MPI import COMM_WORLD as world\n"
    "os.write(1, b'%d of %d on %s\\n' % (world.rank, world.size, socket.gethostname().encode()))"
)
WAITS = """#!/bin/sh
echo try ${SLURM_RESTART_COUNT:-0}
[ "${SLURM_RESTART_COUNT:-0}" = 1 ] || sleep 300
"""


def printed(folder: Path) -> str:
    """What the job has printed; its file is there a moment after it runs."""
    out = folder / "out"
    return out.read_text() if out.exists() else ""


@pytest.fixture
def mpi() -> Launcher:
    try:
        return find()
    except UsageError as problem:
        pytest.skip(str(problem))


def test_a_job_has_the_ranks_and_nodes_it_asked_for(slurm: Slurm, mpi: Launcher, tmp_path: Path):
    (tmp_path / "who.py").write_text(WHO)
    script = f"#!/bin/sh\n'{mpi.path}' -n 4 '{sys.executable}' who.py\n"
    options = ["-N", "2", "--ntasks-per-node=2", "-o", "out", "-e", "err"]
    job = slurm.submit(script, tmp_path, *options)
    assert slurm.wait(job) == "COMPLETED", (tmp_path / "err").read_text()
    lines = sorted((tmp_path / "out").read_text().splitlines())
    assert [line.split(" on ")[0] for line in lines] == [f"{rank} of 4" for rank in range(4)]
    hosts = [line.split(" on ")[1] for line in lines]
    assert len(set(hosts)) == 2
    assert all(hosts.count(host) == 2 for host in hosts)


def test_the_exit_code_of_a_job_is_its_scripts(slurm: Slurm, tmp_path: Path):
    job = slurm.submit("#!/bin/sh\nexit 42\n", tmp_path)
    assert slurm.wait(job) == "FAILED"
    assert slurm.field(job, "ExitCode") == "42:0"


def test_a_job_can_be_cancelled_and_is_told(slurm: Slurm, tmp_path: Path):
    script = "#!/bin/sh\ntrap 'echo told; exit 0' TERM\necho up\nsleep 300 & wait\n"
    job = slurm.submit(script, tmp_path, "-o", "out")
    slurm.wait(job, ["RUNNING"])
    slurm.until(lambda: "up" in printed(tmp_path))
    slurm.run("scancel", job)
    assert slurm.wait(job) == "CANCELLED"
    slurm.until(lambda: "told" in printed(tmp_path))


def test_a_requeued_job_starts_again_and_knows(slurm: Slurm, tmp_path: Path):
    job = slurm.submit(WAITS, tmp_path, "--requeue", "--open-mode=append", "-o", "out")
    slurm.wait(job, ["RUNNING"])
    slurm.until(lambda: "try 0" in printed(tmp_path))
    slurm.run("scontrol", "requeue", job)
    slurm.wait(job, ["PENDING", "COMPLETED"])
    assert slurm.wait(job) == "COMPLETED"
    assert (tmp_path / "out").read_text().splitlines()[-1] == "try 1"
    assert slurm.field(job, "Restarts") == "1"


def test_what_cannot_run_is_refused_at_once(slurm: Slurm, tmp_path: Path):
    with pytest.raises(RuntimeError, match="sbatch ended with 1"):
        slurm.submit("#!/bin/sh\ntrue\n", tmp_path, "-N", "5")


def test_the_clients_on_its_path_speak_to_it_from_anywhere(slurm: Slurm, tmp_path: Path):
    words = ["sh", "-c", "squeue -h -u root >/dev/null && sinfo -h -o %D"]
    done = subprocess.run(
        words, env=slurm.environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "4"
