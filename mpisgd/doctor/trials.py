"""A trial: a process that gets so many seconds, and what it said in them."""

import json
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mpisgd.mpi.mpiexec import Job

MARK = "mpisgd-doctor: "  # before a line of facts: a launcher and a library print theirs between
# What launchers and libraries write on many lines, in one.
KNOWN = (
    (r"Bus error", "Bus error: what was mapped, mostly shared memory, could not be had"),
    (r"unsupported PMI version", "the MPI that Python has loaded is not the one of this mpiexec"),
    (r"attempt to run as root", "refuses to start as root"),
    (r"not enough slots", "fewer slots (cores) than ranks"),
    (
        r"listener thread failed to start",
        "Open MPI finds files of a killed mpiexec that had its process id: remove /tmp/ompi.*",
    ),
    (r"No network interfaces were found", "no network interface that it may use"),
)
TAIL = 200  # characters of what a failed trial said


class Attempt(NamedTuple):
    """How a trial ended. code: None if it was late, and killed; or, in no time, not begun."""

    seconds: float
    code: int | None
    out: str
    err: str

    @property
    def facts(self) -> list[dict[str, Any]]:
        """What its processes told, in the order in which it came."""
        return [
            json.loads(line.partition(MARK)[2]) for line in self.out.splitlines() if MARK in line
        ]

    @property
    def told(self) -> str:
        """In a line: "" if it went well."""
        if self.code is None and not self.seconds:
            return "not tried: the time is up"
        if self.code is None:
            return f"no end within {self.seconds:.1f} s"
        if self.code == 0:
            return ""
        said = [line.strip(" -=") for line in (self.err + "\n" + self.out).splitlines()]
        known = [text for pattern, text in KNOWN if any(re.search(pattern, s) for s in said)]
        last = " ".join(line for line in said if line and MARK not in line)[-TAIL:]
        return f"exit code {self.code}: " + ("; ".join(known) or f"...{last}")


def attempt(
    words: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None
) -> Attempt:
    """Run `words` for at most `seconds`; whatever it has started is ended with it."""
    began = time.monotonic()
    try:
        with Job(words, {**os.environ, **(environment or {})}) as job:
            done = job.wait(max(seconds, 0.1))
            code, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as late:
        code, out, err = None, _text(late.stdout), _text(late.stderr)
    except OSError as error:
        code, out, err = 127, "", str(error)
    return Attempt(time.monotonic() - began, code, out, err)


def tell(facts: Mapping[str, Any]) -> None:
    """Of a trial's process: one line, whole also where several write."""
    os.write(1, f"{MARK}{json.dumps(facts)}\n".encode())


def _text(said: str | bytes | None) -> str:
    return said.decode(errors="replace") if isinstance(said, bytes) else said or ""
