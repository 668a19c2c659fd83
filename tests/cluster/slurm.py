"""A real Slurm of a few nodes on one machine, for tests: its daemons run on the hosts of a lab.

The lab gives each node a network, a host name and the common end of all processes; so neither
systemd nor cgroups nor pid files are needed, ports are Slurm's own, and nothing is left behind.
CPUs and memory are nominal: Slurm schedules by them, nothing is pinned or limited.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mpisgd.mpi.lab import AGENT, Lab

DAEMONS = {"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd"}
CLIENTS = ("sbatch", "srun", "salloc", "scancel", "squeue", "scontrol", "sinfo", "sacct")
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")
# What MPI needs to know on such nodes; a job may set it otherwise. MPICH through libfabric: an
# address of UCX's may not fit into what Slurm's pmi2 reads at once. PRTE: more ranks than cores.
JOBS = {
    "HYDRA_IFACE": "e0",
    "MPIR_CVAR_CH4_NETMOD": "ofi",
    "FI_PROVIDER": "tcp",
    "FI_TCP_IFACE": "e0",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "tcp,self",
    "OMPI_MCA_btl_tcp_if_include": "e0",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}
# cred_expire is how long a requeued job waits before it may start again.
CONFIGURATION = """
ClusterName=lab
SlurmctldHost=h0
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={home}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/%n
TmpFS={home}/%n.tmp
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.%n.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd.%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
TaskProlog={home}/task-prolog
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
EnforcePartLimits=ALL
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
KillWait=5
MinJobAge=3600
ReturnToService=2
MessageTimeout=60
SlurmdTimeout=0
PropagateResourceLimits=NONE
NodeName=DEFAULT Sockets=1 CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory=8000 State=UNKNOWN
{nodes}
PartitionName=main Default=YES Nodes=ALL State=UP DefaultTime=10 MaxTime=60
"""


class Slurm:
    """Slurm on `nodes` hosts named h0, h1, ...; the controller is on h0. Used as a context.

    home: an empty directory with a short path (a socket's name holds 107 characters).
    RuntimeError, with the end of the logs, when it does not come up.
    """

    def __init__(self, home: Path, nodes: int = 4, cpus: int = 16, rate: str = "1gbit"):
        self.home, self.nodes, self.cpus = home, nodes, cpus
        self.lab = Lab(nodes, rate)
        self._daemons: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> dict[str, str]:
        """Variables to add, with which `sbatch` and the others on PATH speak to this Slurm."""
        path = f"{self.home}/bin{os.pathsep}{os.environ['PATH']}"
        return {"PATH": path, "SLURM_CONF": f"{self.home}/slurm.conf"}

    def __enter__(self) -> "Slurm":
        self._write()
        self.lab.open()
        try:
            self._write_clients()
            self._start()
            self._await_nodes()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.lab.close()
        for daemon in self._daemons:
            daemon.wait(10)

    def run(self, *words: str, directory: Path | None = None) -> str:
        """What a client such as squeue prints; CalledProcessError, with its words, if it fails."""
        done = subprocess.run(
            words,
            env={**_clean(), **self.environment},
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{words[0]} ended with {done.returncode}: {done.stderr}")
        return done.stdout.strip()

    def submit(self, script: str, directory: Path, *options: str) -> str:
        """The number of a new job that runs the text `script` in `directory`."""
        path = directory / "job.sh"
        path.write_text(script)
        return self.run("sbatch", "--parsable", *options, str(path), directory=directory)

    def field(self, job: str, name: str) -> str:
        """One field of `scontrol show job`, such as JobState or ExitCode."""
        for word in self.run("scontrol", "-o", "show", "job", job).split():
            if word.startswith(f"{name}="):
                return word.partition("=")[2]
        raise KeyError(name)

    def wait(self, job: str, states: Sequence[str] = ENDED, timeout: float = 60) -> str:
        """The job's state, once it is one of `states`; TimeoutError after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while (state := self.field(job, "JobState")) not in states:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"job {job} is {state}, not {' or '.join(states)}\n{self.logs()}"
                )
            time.sleep(0.1)
        return state

    def logs(self) -> str:
        """The last lines of each daemon's log."""
        files = sorted(self.home.glob("*.log"))
        return "\n".join(
            "\n".join([f.name, *f.read_text(errors="replace").splitlines()[-6:]]) for f in files
        )

    def _write(self) -> None:
        for name in ("bin", "state"):
            (self.home / name).mkdir()
        lines = []
        for node in range(self.nodes):
            (self.home / f"h{node}").mkdir()
            (self.home / f"h{node}.tmp").mkdir()
            lines.append(f"NodeName=h{node} NodeAddr={self.lab.addresses[node]}")
        text = CONFIGURATION.format(home=self.home, cpus=self.cpus, nodes="\n".join(lines))
        text = text.replace("SlurmctldHost=h0", f"SlurmctldHost=h0({self.lab.addresses[0]})")
        (self.home / "slurm.conf").write_text(text)
        # Not used; but left to find out, slurmd wants a cgroup file system.
        (self.home / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        key = self.home / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(1024))
        exports = [f'[ -n "${{{k}+set}}" ] || echo export {k}={v}' for k, v in JOBS.items()]
        _program(self.home / "task-prolog", ["#!/bin/sh", *exports, "exit 0"])

    def _write_clients(self) -> None:
        """Programs of the clients' names that enter the lab first, unless they are in it."""
        enter = " ".join(f"'{word}'" for word in self.lab.enter(0, "/")[:-1])
        for client in CLIENTS:
            if real := shutil.which(client):
                inside = f'[ -e {AGENT} ] && exec {real} "$@"'
                lines = ["#!/bin/sh", inside, f'exec {enter} "$PWD" {real} "$@"']
                _program(self.home / "bin" / client, lines)

    def _start(self) -> None:
        munge = ["munged", "--foreground", "--force", f"--key-file={self.home}/munge.key"]
        munge += [f"--socket={self.home}/munge.socket", f"--pid-file={self.home}/munged.pid"]
        munge += [f"--log-file={self.home}/munged.log", f"--seed-file={self.home}/munged.seed"]
        configuration = f"{self.home}/slurm.conf"
        self._daemon(0, munge)
        self.until((self.home / "munge.socket").exists)
        self._daemon(0, ["slurmctld", "-D", "-c", "-f", configuration])
        # Each node has its own shared memory: MPICH names it by the number of the job, which the
        # next Slurm gives out again, and ranks that are killed leave it behind.
        own = 'mount -t tmpfs lab /dev/shm && exec "$@"'
        for node in range(self.nodes):
            words = ["unshare", "--mount", "sh", "-c", own, "sh"]
            self._daemon(node, [*words, "slurmd", "-D", "-f", configuration, "-N", f"h{node}"])

    def _daemon(self, node: int, words: Sequence[str]) -> None:
        with (self.home / "start.log").open("ab") as log:
            daemon = subprocess.Popen(
                [*self.lab.enter(node, "/"), *words],
                env=_clean(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._daemons.append(daemon)

    def _await_nodes(self) -> None:
        def idle() -> bool:
            try:
                return self.run("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * self.nodes
            except RuntimeError:
                return False

        self.until(idle)

    def until(self, true: Callable[[], bool], seconds: float = 30) -> None:
        """Wait until `true()`; RuntimeError, with the logs, after `seconds` or without daemons."""
        deadline = time.monotonic() + seconds
        while not true():
            if time.monotonic() > deadline or any(d.poll() is not None for d in self._daemons):
                raise RuntimeError(f"Slurm does not do what was waited for\n{self.logs()}")
            time.sleep(0.1)


def install() -> str | None:
    """Install Debian's packages where they are missing; why not, or None when all is there."""
    wanted = [package for program, package in DAEMONS.items() if not _found(program)]
    wanted += [] if _found("sbatch") else ["slurm-client"]
    if not wanted:
        return None
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return f"{', '.join(wanted)} not installed, and no apt-get or no root to install them"
    get = ["apt-get", "-qq", "-y", "-o", "DPkg::Lock::Timeout=120"]
    for words in (["update"], ["install", "--no-install-recommends", *wanted]):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(
            [*get, *words], env=environment, capture_output=True, text=True, check=False
        )
    if done.returncode:
        return f"{', '.join(wanted)} can't be installed: {done.stderr.strip().splitlines()[-1:]}"
    return None


def _found(program: str) -> bool:
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is not None


def _clean() -> dict[str, str]:
    """This environment without what a Slurm or an MPI around us has set."""
    foreign = ("SLURM", "SBATCH", "PMI", "OMPI_COMM")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    return {**kept, "PATH": f"{kept['PATH']}:/usr/sbin:/sbin"}


def _program(path: Path, lines: Sequence[str]) -> None:
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o755)
