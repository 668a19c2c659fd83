"""Starting mpiexec: which one, with which flags, and nothing of it left behind. Imports no MPI."""

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from mpisgd.mpi import cores
from mpisgd.mpi.announced import SESSIONS, SESSIONS_ANYWHERE
from mpisgd.values.errors import UsageError
from mpisgd.values.processes import handle, python

# What `mpiexec --version` says, in lower case; everything else is "other".
KINDS = {
    "impi": ("intel(r) mpi library",),
    "mpich": ("hydra", "mpich"),
    "openmpi": ("open mpi", "openrte", "prrte", "prterun"),
}
PLACED = ("impi", "mpich", "openmpi")  # whose ranks can be put on hosts of a lab
MARK = "MPISGD_LAUNCH"
YIELD = "OMPI_MCA_mpi_yield_when_idle"
NETMOD = "MPIR_CVAR_CH4_NETMOD"
GRACE_S = 2.0
KILL_TRIES = 50
INSTALL = (
    "install one with: pip install -e '.[mpi]' where mpisgd was cloned, or load your MPI module"
)


class Hosts(NamedTuple):
    """Machines to put ranks on: rank r runs on addresses[r % len(addresses)].

    agent: the program that takes the place of ssh. interface: the network device on each host.
    """

    addresses: tuple[str, ...]
    agent: str
    interface: str


@dataclass(frozen=True)
class Launcher:
    """One mpiexec. kind: a key of KINDS, or "other"."""

    path: str
    kind: str
    version: str

    def command(
        self, ranks: int, argv: Sequence[str], hosts: Hosts | None = None
    ) -> tuple[list[str], dict[str, str]]:
        """The words that run `argv` on `ranks` ranks, and the variables to add to the environment.

        `mpisgd` as the first word means this environment's own. With `hosts`, ranks talk by TCP.
        UsageError for less than one rank, no command, or hosts under an MPI not known here.
        """
        if ranks < 1:
            raise UsageError("ranks", ranks, "at least 1")
        if not argv:
            raise UsageError("command", None, "name a program to run")
        if hosts is not None and self.kind not in PLACED:
            raise UsageError(
                "mpiexec", self.path, "to place ranks on hosts, use MPICH, Open MPI or Intel MPI"
            )
        flags, added = self._flags(ranks, hosts)
        return [self.path, *flags, "-n", str(ranks), *own(argv)], added

    def start(
        self,
        ranks: int,
        argv: Sequence[str],
        *,
        hosts: Hosts | None = None,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        directory: str | os.PathLike[str] | None = None,
        capture: bool = True,
    ) -> "Job":
        """The running job. `prefix`: words before mpiexec; `environment`: variables to add."""
        words, added = self.command(ranks, argv, hosts)
        merged = {**os.environ, **added, **(environment or {})}
        # `python` and the like are this environment's too, as if it were activated.
        merged["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{merged.get('PATH', '')}"
        return Job([*prefix, *words], merged, directory, capture)

    def run(
        self, ranks: int, argv: Sequence[str], timeout: float | None = None, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Start, wait, end. `options` are those of `start`; errors are those of `Job.wait`."""
        with self.start(ranks, argv, **options) as job:
            return job.wait(timeout)

    def _flags(self, ranks: int, hosts: Hosts | None) -> tuple[list[str], dict[str, str]]:
        crowded = ranks > cores.available()
        if self.kind == "openmpi":
            return _openmpi(ranks, hosts, crowded)
        if self.kind == "mpich" and hosts is not None:
            return _mpich_hosts(hosts)
        if self.kind == "impi" and hosts is not None:
            return _impi_hosts(hosts)
        return [], {}


class Job:
    """A running mpiexec with all that it started, used as a context: its end ends whatever is left.

    Inside, an exception, Ctrl-C, SIGTERM or SIGHUP ends the job first, then takes its course.
    Ranks leave mpiexec's process group (Open MPI) and its session (daemons), so the processes of a
    job are known by a variable of their environment. What Open MPI writes while it runs is in a
    folder of the job's own, which goes with it.
    """

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        directory: str | os.PathLike[str] | None = None,
        capture: bool = True,
    ):
        """Run `words`; `capture`: keep what it prints, as text, for `wait`."""
        self.token = f"{os.getpid()}.{uuid.uuid4().hex[:16]}"
        outer = environment.get(MARK)
        mark = f"{outer}:{self.token}" if outer else self.token
        pipe = subprocess.PIPE if capture else None
        self._sessions = tempfile.TemporaryDirectory(prefix="mpisgd-", ignore_cleanup_errors=True)
        sessions = {} if SESSIONS_ANYWHERE in environment else {SESSIONS: self._sessions.name}
        self._handlers: dict[int, Any] = {}
        self._came: list[int] = []
        self.process = subprocess.Popen(
            list(words),
            env={**sessions, **environment, MARK: mark},
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def __enter__(self) -> "Job":
        self._handlers = handle((signal.SIGTERM, signal.SIGHUP), self._signalled)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.end()
        finally:
            for stream in (self.process.stdout, self.process.stderr):
                if stream is not None:
                    stream.close()
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            for number in self._came:
                os.kill(os.getpid(), number)

    def _signalled(self, number: int, frame: object) -> None:
        """The job has its own session: what ends this process would leave it behind."""
        if not self._came:
            self._came.append(number)
            raise SystemExit(128 + number)

    def wait(self, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
        """The finished job. After `timeout` seconds it is killed: TimeoutExpired, with output."""
        try:
            out, err = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as late:
            self.end()
            out, err = self.process.communicate(timeout=GRACE_S)
            raise subprocess.TimeoutExpired(late.cmd, late.timeout, out, err) from None
        except BaseException:
            self.end()
            raise
        self.end()
        return subprocess.CompletedProcess(self.process.args, self.process.returncode, out, err)

    def processes(self) -> list[int]:
        """The ids of the job's processes that live: mpiexec, its helpers, the ranks."""
        wanted, found = self.token.encode(), []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if wanted in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:  # ended meanwhile, or another user's
                continue
        return sorted(found)

    def end(self) -> None:
        """End all processes of the job: asked first (not once mpiexec is gone), then killed."""
        try:
            if self.process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGTERM)
                self._gone(GRACE_S)
        finally:
            self._kill()
            self._sessions.cleanup()

    def _kill(self) -> None:
        for _ in range(KILL_TRIES):
            for process in self.processes():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process, signal.SIGKILL)
            if self._gone(0.1):
                break

    def _gone(self, seconds: float) -> bool:
        """Whether all of it ends within `seconds`."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None or self.processes():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


def find(path: str | None = None, patience_s: float = 30.0) -> Launcher:
    """The mpiexec at `path`; else the one beside this Python, else the first on PATH.
    `patience_s`: what it may take to say its version.

    UsageError when there is none, or `path` is not one.
    """
    if path is not None:
        found = shutil.which(path)
        if found is None:
            raise UsageError("mpiexec", path, "not a program; " + INSTALL)
    else:
        beside = os.pathsep.join((str(Path(sys.executable).parent), sysconfig.get_path("scripts")))
        found = shutil.which("mpiexec", path=beside) or shutil.which("mpiexec")
        if found is None:
            raise UsageError("no mpiexec found", None, INSTALL)
    return _asked(os.path.abspath(found), patience_s)


def own(argv: Sequence[str]) -> list[str]:
    """`argv`, where a first word `mpisgd` means the package that runs now."""
    if argv and argv[0] == "mpisgd":
        return python("mpisgd", *argv[1:])
    return list(argv)


def _asked(path: str, patience_s: float) -> Launcher:
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=patience_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise UsageError("mpiexec", path, f"{problem}; {INSTALL}") from None
    text = done.stdout + done.stderr
    kind = next(
        (kind for kind, words in KINDS.items() if any(word in text.lower() for word in words)),
        "other",
    )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    stated = next((line for line in lines if line.startswith("Version:")), "")
    version = stated.removeprefix("Version:").strip() or (lines[0] if lines else "")
    return Launcher(path, kind, version)


def _mpich_hosts(hosts: Hosts) -> tuple[list[str], dict[str, str]]:
    flags = ["-launcher", "ssh", "-launcher-exec", hosts.agent, "-iface", hosts.interface]
    flags += ["-hosts", ",".join(hosts.addresses)]
    # libfabric, where MPICH has both: UCX sends messages above 1 MiB one way at a time over TCP.
    added = {NETMOD: os.environ.get(NETMOD, "ofi")}
    added |= {"FI_PROVIDER": "tcp", "FI_TCP_IFACE": hosts.interface}
    # UCX would find that the hosts are one machine, and use its memory.
    return flags, {**added, "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": hosts.interface}


def _impi_hosts(hosts: Hosts) -> tuple[list[str], dict[str, str]]:
    flags = ["-bootstrap", "ssh", "-bootstrap-exec", hosts.agent, "-iface", hosts.interface]
    flags += ["-ppn", "1", "-hosts", ",".join(hosts.addresses)]
    # Hosts see the same cores: pinned, the first ranks of all would share one. Without `ofi` it
    # would find that all hosts are one machine, and use its memory.
    added = {"I_MPI_FABRICS": "ofi", "I_MPI_PIN": "0"}
    return flags, {**added, "FI_PROVIDER": "tcp", "FI_TCP_IFACE": hosts.interface}


def _openmpi(ranks: int, hosts: Hosts | None, crowded: bool) -> tuple[list[str], dict[str, str]]:
    flags: list[str] = []
    added: dict[str, str] = {}
    if os.geteuid() == 0:
        added |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if crowded:
        added[YIELD] = os.environ.get(YIELD, "1")
    if hosts is None:
        return (["--oversubscribe", "--bind-to", "none"] if crowded else []), added
    slots = -(-ranks // len(hosts.addresses))
    listed = ",".join(f"{address}:{slots}" for address in hosts.addresses)
    # Every host sees the same cores: bound, the first rank of each would share core 0.
    flags += ["--host", listed, "--map-by", "node", "--bind-to", "none"]
    added |= {"PRTE_MCA_plm_ssh_agent": hosts.agent, "OMPI_MCA_plm_rsh_agent": hosts.agent}
    added |= {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"}
    return flags, {**added, "OMPI_MCA_btl_tcp_if_include": hosts.interface}
