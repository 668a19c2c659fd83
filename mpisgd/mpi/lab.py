"""A cluster in a box: hosts that are network namespaces, joined by wires of a chosen rate.

All of it lives in namespaces of its own (process ids, mounts, network), whose first process waits
for the end of its standard input. When the owner closes it, or dies by whatever means, the kernel
ends every process in there and removes every interface: nothing is left to tear down, labs cannot
see each other, and all may use the same addresses and names.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from mpisgd.mpi.announced import BURST, LAB
from mpisgd.mpi.mpiexec import GRACE_S, Hosts, Job, Launcher, find, own
from mpisgd.values.errors import UsageError

SUBNET = "10.77.0"
INTERFACE = "e0"
MOST_HOSTS = 250
# Bytes. Jumbo frames, as clusters have: at 1500 the shaping takes 0.7 of a core at 200 Mbit/s both
# ways (measured), which ranks that compute would miss; at 9000 it takes 0.15.
MTU = "9000"
TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
ISOLATED = ("--net", "--mount", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc")
RATE = re.compile(r"(\d+(?:\.\d+)?)(|k|m|g|ki|mi|gi)bit", re.IGNORECASE)
UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
AGENT = "/run/netns/agent"
# Of TCP in the hosts: every kernel has it, whatever the machine's own is. BBR, which many machines
# have, leaves a tenth or more of a wire unused where messages of 1 MiB go both ways (measured).
CONGESTION = "reno"

# Arguments: hosts, rate, burst, subnet, agent, MTU, congestion control. Mounts are private to the
# lab. The names in /run/netns make `ip netns exec h0` work there; it gives the host its /sys too,
# where UCX looks for interfaces.
BUILD = """
hosts=$1 rate=$2 burst=$3 subnet=$4 mtu=$6 congestion=$7
mkdir -p /run/netns
mount -t tmpfs lab /run/netns
printf %s "$5" >/run/netns/agent
chmod 755 /run/netns/agent
cp /etc/hosts /run/netns/names || : >/run/netns/names
ip link add switch type bridge
ip link set switch up
shape="root tbf rate $rate burst $burst latency 50ms"
i=0
while [ $i -lt $hosts ]; do
  : >/run/netns/h$i
  : >/run/netns/h$i.uts
  unshare --net=/run/netns/h$i --uts=/run/netns/h$i.uts sh -eu -c '
    echo h$1 >/proc/sys/kernel/hostname
    echo $5 >/proc/sys/net/ipv4/tcp_congestion_control
    ip link set lo up
    ip link add e0 type veth peer name h$1 netns 1
    ip link set e0 addrgenmode none
    ip address add $3.$(($1 + 1))/24 dev e0
    ip link set e0 mtu $4 up
    tc qdisc add dev e0 $2' sh $i "$shape" $subnet $mtu $congestion
  ip link set h$i mtu $mtu master switch up
  tc qdisc add dev h$i $shape
  echo $subnet.$((i + 1)) h$i >>/run/netns/names
  i=$((i + 1))
done
mount --bind /run/netns/names /etc/hosts
echo ready
trap '' CHLD
exec cat >/dev/null
"""

# Takes the place of ssh: [options] ADDRESS COMMAND...
AGENT_PROGRAM = """#!/bin/sh
while :; do case $1 in -*) shift ;; *) break ;; esac; done
host=h$((${1##*.} - 1))
shift
exec nsenter --uts=/run/netns/$host.uts -- ip netns exec $host sh -c "$*"
"""


class Lab:
    """`hosts` hosts h0, h1, ... on one switch, each wire shaped to `rate` in both directions.

    rate: as tc writes it, "200mbit"; burst: what may pass at once, "18kb" (default: `burst_of` the
    rate). Used as a context.
    UsageError when it can't be had: not root, no iproute2, a rate that is none.
    """

    def __init__(
        self, hosts: int, rate: str, *, burst: str | None = None, mpiexec: str | None = None
    ):
        if not 1 <= hosts <= MOST_HOSTS:
            raise UsageError("--hosts", hosts, f"from 1 to {MOST_HOSTS}")
        bits_per_s = rate_of(rate)
        if problem := missing():
            raise UsageError("lab", None, problem)
        self.size, self.rate, self.burst = hosts, rate, burst or burst_of(bits_per_s)
        self.addresses = tuple(f"{SUBNET}.{host + 1}" for host in range(hosts))
        self._mpiexec = mpiexec
        self._launcher: Launcher | None = None
        self._first: subprocess.Popen[str] | None = None
        self._process = 0

    def __enter__(self) -> "Lab":
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def open(self) -> "Lab":
        """Build it; about 0.2 s for four hosts. UsageError with what the system said."""
        words = ["unshare", *ISOLATED, "--", "sh", "-eu", "-c", BUILD, "sh"]
        words += [str(self.size), self.rate, self.burst, SUBNET, AGENT_PROGRAM, MTU, CONGESTION]
        self._first = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PATH": _path()},
            start_new_session=True,
        )
        assert self._first.stdout is not None
        assert self._first.stderr is not None
        if self._first.stdout.readline() != "ready\n":
            said = self._first.stderr.read().strip().splitlines() or ["no reason given"]
            self.close()
            raise UsageError("lab", None, f"can't be built: {said[-1]}")
        children = Path(f"/proc/{self._first.pid}/task/{self._first.pid}/children")
        self._process = int(children.read_text().split()[0])
        return self

    def close(self) -> None:
        """End all that runs in the lab, and the lab. Closing twice is no harm."""
        first, self._first = self._first, None
        if first is None:
            return
        with first:
            assert first.stdin is not None
            first.stdin.close()
            try:
                first.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                first.kill()

    def enter(self, host: int, directory: str | os.PathLike[str] | None = None) -> list[str]:
        """The words before a command that run it on `host`, in `directory` (default: this one)."""
        name = self._name(host)
        words = ["nsenter", f"--target={self._process}", "--mount", "--pid"]
        words += [f"--uts=/proc/{self._process}/root/run/netns/{name}.uts", "--"]
        words += [_tool("ip"), "netns", "exec", name, "sh", "-c", 'cd "$0" && exec "$@"']
        return [*words, os.path.abspath(directory or os.getcwd())]

    def start(
        self,
        argv: Sequence[str],
        ranks: int | None = None,
        *,
        directory: str | os.PathLike[str] | None = None,
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Job:
        """`argv` as an MPI job of `ranks` ranks (default: one per host), rank r on host r % hosts.

        The ranks find this lab in the variable LAB. `environment` and `options` are those of
        `Launcher.start`.
        """
        self._launcher = self._launcher or find(self._mpiexec)
        hosts = Hosts(self.addresses, AGENT, INTERFACE)
        prefix = self.enter(0, directory)
        count = self.size if ranks is None else ranks
        told = {LAB: f"{self.rate} between {self.size} hosts", BURST: str(burst_bytes(self.burst))}
        told |= environment or {}
        return self._launcher.start(
            count, argv, hosts=hosts, prefix=prefix, environment=told, **options
        )

    def run(
        self,
        argv: Sequence[str],
        ranks: int | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Start, wait, end; the errors are those of `Job.wait`."""
        with self.start(argv, ranks, **options) as job:
            return job.wait(timeout)

    def cut(self, host: int) -> None:
        """Unplug `host` at the switch: frames are lost without a word, its link stays up."""
        self._switch(host, "nomaster")

    def mend(self, host: int) -> None:
        """Plug `host` in again; TCP sends again what was lost, at its own pace."""
        self._switch(host, "master", "switch")

    def _switch(self, host: int, *words: str) -> None:
        enter = ["nsenter", f"--target={self._process}", "--net", "--"]
        change = [_tool("ip"), "link", "set", self._name(host), *words]
        subprocess.run([*enter, *change], check=True, capture_output=True)

    def _name(self, host: int) -> str:
        if not 0 <= host < self.size:
            raise UsageError("host", host, f"from 0 to {self.size - 1}")
        if self._first is None:
            raise UsageError("lab", None, "is not open: use it as a context")
        return f"h{host}"


def rate_of(text: str) -> float:
    """Bits per second of a rate as tc writes it, "200mbit"; UsageError when it is none."""
    found = RATE.fullmatch(text)
    value = float(found[1]) * UNITS[found[2].lower()] if found else 0.0
    if value <= 0:
        raise UsageError("--rate", text, "bits per second as tc writes them, 200mbit or 1gbit")
    return value


def burst_of(bits_per_s: float) -> str:
    """What a wire of this rate may send at once, as tc writes it.

    A wire has no credit for having been idle, and tbf needs some. Up to 250 Mbit/s two frames do.
    Timers are too coarse for more; then 1 ms of the rate, and at least a whole TCP segment of
    64 KiB, which else the CPU must cut up.
    """
    return "18kb" if bits_per_s <= 250e6 else f"{max(72_000, round(bits_per_s / 8000))}b"


def burst_bytes(text: str) -> int:
    """Bytes of a size as tc writes it, 18kb or 72000b."""
    digits = text.rstrip("bkm")
    return int(digits) * {"": 1, "b": 1, "k": 2**10, "kb": 2**10}[text[len(digits) :]]


def missing() -> str | None:
    """Why no lab can be made here, in a few words; None when nothing is known to be missing."""
    if os.geteuid() != 0:
        return "needs root, to make network namespaces: run it as root or under sudo"
    for tool, package in TOOLS.items():
        if shutil.which(tool, path=_path()) is None:
            return f"needs the program {tool}: install {package}"
    return None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `mpisgd lab`."""
    parser.add_argument("--hosts", type=int, default=2, help="hosts to make [2]")
    parser.add_argument("--rate", default="200mbit", help="bits per second of each wire [200mbit]")
    parser.add_argument("--ranks", type=int, help="ranks, round-robin over hosts [one per host]")
    parser.add_argument(
        "--mpiexec", help="MPICH's, Open MPI's or Intel MPI's [the one beside this Python]"
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the hosts after COMMAND, until Ctrl-C"
    )
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="-- COMMAND...")


def run(arguments: argparse.Namespace) -> int:
    """Run the command in a lab; returns its exit code, 128 + n when signal n ended it."""
    words = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    if not words:
        raise UsageError("lab", None, "name a command to run after --")
    find(arguments.mpiexec)
    lab = Lab(arguments.hosts, arguments.rate, mpiexec=arguments.mpiexec)
    told = (
        f"{lab.size} hosts, {lab.rate} on each wire, of which {burst_bytes(lab.burst)} bytes pass"
    )
    print(f"mpisgd lab: {told} at once after a pause", file=sys.stderr, flush=True)
    try:
        with lab:
            code = lab.run(own(words), arguments.ranks, capture=False).returncode
            if arguments.keep:
                _hold(lab)
    except KeyboardInterrupt:
        return 130
    return code if code >= 0 else 128 - code


def _hold(lab: Lab) -> None:
    """Wait for Ctrl-C, having said how to get in."""
    words = " ".join(lab.enter(0, "/")[:-4])
    print(f"hosts are kept until Ctrl-C; a shell on h0: {words} sh", file=sys.stderr, flush=True)
    with suppress(KeyboardInterrupt):
        signal.pause()


def _tool(name: str) -> str:
    return shutil.which(name, path=_path()) or name


def _path() -> str:
    """PATH with the places of iproute2, which a plain user's lacks."""
    return os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
