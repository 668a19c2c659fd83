"""Whether MPI may be given device memory: asked, and proved before it is believed.

Some libraries answer with a flag of their build and end the process at the first message. So the
first such message is sent by a process of its own, to itself.
"""

import os
import signal
import sys
from typing import Any, NamedTuple

import numpy as np

from allreduce.measure import gather
from allreduce.native import cuda_aware, exchange_with_itself
from mpisgd.values import processes

CHOICES = ("auto", "yes", "no")
PROOF_S = 60.0
SIZES = (8, 1 << 20)  # bytes of the messages: eager and rendezvous
LAUNCHED = (
    "PMI", "PMIX_", "OMPI_COMM_", "OMPI_UNIVERSE", "OMPI_FILE", "OMPI_APP", "OMPI_MCA_ess",
    "OMPI_MCA_orte", "OMPI_MCA_pmix", "PRTE_", "HYD", "MPI_LOCAL", "MPIR_CVAR_CH4_ROOTS", "SLURM_",
)  # fmt: skip
"""Variables by which a launcher tells a process that it is a rank, which the proof is not."""


class Awareness(NamedTuple):
    """Whether device memory goes to MPI as it is, and how that is known."""

    aware: bool
    why: str

    def facts(self) -> dict[str, Any]:
        """What a result file keeps of it."""
        staging = "none: device memory goes to MPI" if self.aware else "pinned host memory"
        return {"cuda_aware": self.aware, "cuda_aware_because": self.why, "staging": staging}


def decide(choice: str, comm: Any, module: Any, deadline: float = 60.0) -> Awareness:
    """The same on all ranks. `choice`: one of CHOICES; `module`: NumPy or CuPy."""
    if module is np or choice == "no":
        return Awareness(False, "asked for" if choice == "no" else "nothing lies on a device")
    if choice == "yes":
        return Awareness(True, "asked for")
    says, why = bool(cuda_aware()), ""
    if comm.Get_rank() == 0 and says:
        number = module.cuda.runtime.getDevice()
        why = proof(module.__name__, number, PROOF_S)
    told = gather(comm, [says, not why], deadline + PROOF_S)
    if not told[:, 0].all():
        return Awareness(False, "the MPI library does not say that it takes device memory")
    if not told[:, 1].all():
        return Awareness(False, why or "it says so, but failed the proof on rank 0")
    return Awareness(True, "the MPI library says so, and a process of its own proved it")


def proof(backend: str, number: int, seconds: float) -> str:
    """What speaks against it, after a message to itself in another process, with this module's
    memory on this device, within so many seconds; "" if nothing."""
    import subprocess

    environment = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHED)}
    command = processes.python("mpisgd.mpi.aware", backend, str(number))
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, env=environment
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"it says so, but a message of device memory: {type(error).__name__}"
    if done.returncode == 0:
        return ""
    last = (done.stderr.strip().splitlines() or ["no word"])[-1]
    if done.returncode < 0:
        last = f"{signal.Signals(-done.returncode).name}, {last}"
    return f"it says so, but a message of device memory ended with {last}"


def main(backend: str, number: str) -> int:
    """In the other process: 0 if messages of device memory arrive as they were sent."""
    from importlib import import_module

    module = import_module(backend)
    module.cuda.Device(int(number)).use()
    for size in SIZES:
        sent = module.asarray(np.arange(size, dtype=np.uint8))
        received = module.zeros(size, np.uint8)
        module.cuda.Device().synchronize()
        exchange_with_itself(sent, received)
        if received.get().tobytes() != sent.get().tobytes():
            print(f"{size} bytes arrived as others", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
