"""A rank that starts and leaves MPI beside one that ends before, or is stopped: FAULT SECONDS."""

import os
import signal
import sys

from mpisgd.mpi import announced, session

fault, seconds = sys.argv[1], float(sys.argv[2])
faulty = announced.rank_told() == announced.announced_tasks(os.environ) - 1
session.START_S = seconds if fault in ("ends", "stops") else 120.0
if fault == "ends" and faulty:
    sys.exit(0)
if fault == "stops" and faulty:
    os.kill(os.getpid(), signal.SIGSTOP)
comm = session.world("told before")
session.PATIENCE, session.FINALIZE_S = 1, seconds


def work() -> int:
    if fault == "stops at the end" and faulty:
        os.kill(os.getpid(), signal.SIGSTOP)
    return 0


code = session.guarded(comm, work, seconds)
if fault == "stops in finalize" and faulty:
    os.kill(os.getpid(), signal.SIGSTOP)
sys.exit(code)
