"""`leave_train.py FAULT RANK STEP WORDS...`: `mpisgd train WORDS...` with a fault on one rank.

The fault strikes when RANK has the gradient of STEP; it says so on standard output first.
`saving-...`: when rank 0 saves that step or a later one.
"""

import argparse
import os
import resource
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from mpisgd import cli
from mpisgd.checkpoint.writer import CheckpointWriter
from mpisgd.drivers import mpi


def throw() -> None:
    raise RuntimeError("the disk is full of gradients")


def stall() -> None:
    while True:
        time.sleep(1)


def need_memory() -> None:
    """More than there is."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, used + 2**26))
    np.ones(2**30)


def lose_folder() -> None:
    """That of the results and checkpoints."""
    shutil.rmtree(Path(output()).parent)


def output() -> str:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--output")
    return parser.parse_known_args(sys.argv)[0].output


def fill_disk() -> None:
    """What is written never gets there."""

    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    os.fsync = refuse


def slow_disk() -> None:
    """What is written gets there once, after longer than the deadline in the tests."""
    sync = os.fsync

    def late(descriptor: int) -> None:
        os.fsync = sync
        time.sleep(8)

    os.fsync = late


FAULTS = {
    "saving-slow": slow_disk,
    "memory": need_memory,
    "vanish": lose_folder,
    "sigstop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "saving-sigstop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "saving-full": fill_disk,
    "nothing": lambda: None,
    "exception": throw,
    "exit0": lambda: sys.exit(0),
    "exit7": lambda: sys.exit(7),
    "sigkill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "sigterm": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "stall": stall,
}


class Faulty:
    """A model that meets its fault at one step."""

    def __init__(self, worker: Any, fault: str, step: int):
        self._worker, self._model, self._fault, self._step = worker, worker.model, fault, step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def gradient(self, parameters: Any, inputs: Any, targets: Any, gradient: Any, *told: Any):
        loss = self._model.gradient(parameters, inputs, targets, gradient, *told)
        if self._worker.step == self._step:
            print("now", flush=True)
            if self._fault == "nan":
                gradient.flat[0] = float("nan")
            else:
                FAULTS[self._fault]()
        return loss


def main() -> int:
    fault, rank, step = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    build = mpi.build_worker

    def build_faulty(experiment: Any, dataset: Any, site: Any, *more: Any) -> Any:
        worker = build(experiment, dataset, site, *more)
        if worker.rank == rank:
            worker.model = Faulty(worker, fault, step)
        return worker

    save = CheckpointWriter.write

    def save_faulty(checkpoint_writer: CheckpointWriter, meta: Any, *told: Any) -> None:
        if meta["step"] >= step:
            print("now", flush=True)
            FAULTS[fault]()
        save(checkpoint_writer, meta, *told)

    if fault.startswith("saving"):
        CheckpointWriter.write = save_faulty  # type: ignore[method-assign]
    else:
        mpi.build_worker = build_faulty
    return cli.main(["train", *sys.argv[4:]])


if __name__ == "__main__":
    sys.exit(main())
