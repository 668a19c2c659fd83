"""`leave_train.py FAULT RANK STEP WORDS...`: `mpisgd train WORDS...` with a fault on one rank.

The fault strikes when RANK has the gradient of STEP; it says so on standard output first.
"""

import os
import signal
import sys
import time
from typing import Any

from mpisgd import cli
from mpisgd.worlds import real


def throw() -> None:
    raise RuntimeError("the disk is full of gradients")


def stall() -> None:
    while True:
        time.sleep(1)


FAULTS = {
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
    build = real.build_worker

    def build_faulty(experiment: Any, dataset: Any, site: Any) -> Any:
        worker = build(experiment, dataset, site)
        if worker.rank == rank:
            worker.model = Faulty(worker, fault, step)
        return worker

    real.build_worker = build_faulty
    return cli.main(["train", *sys.argv[4:]])


if __name__ == "__main__":
    sys.exit(main())
