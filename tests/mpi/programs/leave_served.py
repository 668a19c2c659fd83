"""`leave_served.py FAULT ROLE NUMBER STEP WORDS...`: `mpisgd train WORDS...` with a fault.

The fault strikes worker NUMBER when it has the gradient of STEP, server NUMBER when it has made
that update; it says so on standard output first. `refused`: rank 0 cannot have its result file.
`evaluation`: an evaluation takes longer than a signal is given to be heard.
"""

import os
import signal
import sys
import time
from typing import Any

from mpisgd import cli
from mpisgd.mpi import session
from mpisgd.servers.evaluation import Evaluator
from mpisgd.servers.roles import Builder
from mpisgd.store.remote import RemoteWriter
from mpisgd.values.errors import UsageError

WRITERS: list[RemoteWriter] = []


def kill_writer() -> None:
    """As a full node would, out of memory; what it has been told so far is in the file."""
    WRITERS[0].settle()
    WRITERS[0]._process.kill()


FAULTS = {
    "nothing": lambda: None,
    "sigkill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "sigstop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "writer": kill_writer,
}


def evaluate_long(step: int) -> None:
    """Once, at that step or after it."""
    evaluate, session.GRACE = Evaluator._evaluate, 0.3
    done: list[int] = []

    def long(evaluator: Evaluator, parts: Any) -> None:
        if not done and parts[0][2]["step"] >= step:
            done.append(step)
            print("now", flush=True)
            time.sleep(2)
        evaluate(evaluator, parts)

    Evaluator._evaluate = long  # type: ignore[method-assign]


def strike(fault: str) -> None:
    print("now", flush=True)
    FAULTS[fault]()


def faulty_model(worker: Any, fault: str, step: int) -> None:
    gradient = worker.model.gradient

    def struck(parameters: Any, inputs: Any, targets: Any, into: Any, *told: Any) -> float:
        if worker.step == step and fault != "nan":
            strike(fault)
        loss = gradient(parameters, inputs, targets, into, *told)
        if worker.step == step and fault == "nan":
            print("now", flush=True)
            into.flat[:] = float("nan")
        return loss

    worker.model.gradient = struck


def faulty_update(server: Any, fault: str, step: int) -> None:
    update = server.update

    def struck(batch: Any) -> None:
        update(batch)
        if server.version == step:
            strike(fault)

    server.update = struck


def main() -> int:
    fault, role, number, step = *sys.argv[1:3], int(sys.argv[3]), int(sys.argv[4])
    make = getattr(Builder, role)
    if fault == "evaluation":
        evaluate_long(step)

    def made(builder: Builder, site: Any, index: int, *more: Any) -> Any:
        who = make(builder, site, index, *more)
        if index == number and site is not None and fault != "evaluation":
            (faulty_model if role == "worker" else faulty_update)(who, fault, step)
        return who

    setattr(Builder, role, made)
    begin = RemoteWriter.__init__

    def begun(writer: RemoteWriter, *arguments: Any, **options: Any) -> None:
        if fault == "refused":
            raise UsageError("--output", None, "another job has just made it")
        begin(writer, *arguments, **options)
        WRITERS.append(writer)

    RemoteWriter.__init__ = begun  # type: ignore[method-assign]
    return cli.main(["train", *sys.argv[5:]])


if __name__ == "__main__":
    sys.exit(main())
