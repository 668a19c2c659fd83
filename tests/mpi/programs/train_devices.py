"""`train_devices.py [--FAULT] [NAME..]`: experiments on NumPy and on the double of CuPy, on 1 to 4
ranks; with a fault planted, on all ranks together.

Ranks of a communicator of 4 train together, 3 beside 1, 2 beside 2. Losses, evaluations and the
parameters of every rank at the end have the same bits on both. Prints what has not.
"""

import ctypes
import sys
from contextlib import contextmanager
from typing import Any

import numpy as np

from allreduce import arrays
from allreduce.testing import device as double
from mpisgd.data import Dataset
from mpisgd.drivers import mpi
from mpisgd.drivers.job import Job
from mpisgd.experiment.building import build_worker, resolve_for
from mpisgd.experiment.experiment import Experiment
from mpisgd.store.memory import MemoryStore

PARTS = ((4,), (3, 1), (2, 2))  # what trains at the same time
COMMON = {"model": "mlp", "hidden": "7", "batch": 3, "steps": 7, "evaluate-every": 3, "seed": 5}
DASGD = {"algorithm": "dasgd", "tau": 3}
CONVOLUTIONS = {"batch": 2, "steps": 3, "evaluate-every": 2}
EXPERIMENTS: dict[str, dict[str, Any]] = {
    "minibatch": {"algorithm": "minibatch", "clip": 0.5, "ema": 0.9, "lr": 0.5},
    "minibatch-thread": {"progress": "thread", "dtype": "float64", "allreduce": "double-tree"},
    "softmax": {"model": "softmax", "allreduce": "mpi", "ema": 0.9, "ema-warm-up": True},
    "overlap": {"algorithm": "minibatch-overlap", "bucket": 300, "allreduce": "ring"},
    "overlap-thread": {"algorithm": "minibatch-overlap", "bucket": 1, "progress": "thread"},
    "overlap-padded": {"algorithm": "minibatch-overlap", "bucket": 1, "step-time": "1ms"},
    "local": {"algorithm": "local", "tau": 3, "optimiser": "rmsprop", "allreduce": "tree"},
    "local-during": {
        "algorithm": "local",
        "tau": 2,
        "initial": "own",
        "evaluate": "during",
        "chunks": 3,
    },
    "slowmo": {"algorithm": "slowmo", "tau": 2, "outer-momentum": 0.7, "outer-rate": 0.9},
    "diloco": {"algorithm": "diloco", "tau": 2, "warm-up": 3, "linear-scaling": True},
    "streaming-diloco": {"algorithm": "streaming-diloco", "tau": 2, "progress": "thread"},
    "post-local": {"algorithm": "post-local", "tau": 2, "optimiser": "lars", "weight-decay": 0.1},
    "easgd": {"algorithm": "easgd", "tau": 2},
    "gossip": {"algorithm": "gossip", "tau": 2, "delay": 1},
    "gossip-zero": {"algorithm": "gossip", "tau": 1, "delay": 0, "progress": "thread"},
    "stale": {"algorithm": "stale", "staleness": 2, "ramp": 3},
    "dasgd": DASGD | {"delay": 2, "allreduce": "halving-doubling", "progress": "thread"},
    "dasgd-tau": DASGD | {"delay": 3, "allreduce": "mpi-nonblocking"},
    "dasgd-delta": DASGD | {"merge": "delta", "allreduce": "hierarchical", "nesterov": True},
    "dasgd-overwrite": DASGD | {"merge": "overwrite", "schedule": "linear-tail"},
    "rotate": {"augment": "rotate-zoom", "weight-decay": 0.01, "decoupled": True},
    "async": {"algorithm": "async", "staleness-rate": True, "clip": 0.5},
    "prefetch": {"algorithm": "async", "prefetch": True, "ema": 0.9},
    "backup": {"algorithm": "backup", "backups": 0, "servers": 1, "momentum": 0},
    "mnist-cnn": CONVOLUTIONS | {"model": "mnist-cnn", "hidden": "2,3", "augment": "crop-flip"},
    "resnet8": CONVOLUTIONS | {"model": "resnet8", "hidden": "2", "algorithm": "local", "tau": 2},
}
# Only between two ranks is the order of letters known, and with nobody to spare that of updates.
SERVED = {"async": (2, 2), "prefetch": (2, 2), "backup": (4,)}
SAME = ("loss", "samples")  # columns of /steps that do not depend on time


def images() -> Dataset:
    """Of 8 x 8 pixels, in octets; the last epoch's batches are of different sizes."""
    rng = np.random.default_rng(1)
    inputs, targets = rng.integers(0, 256, (60, 1, 8, 8), np.uint8), np.arange(60) % 3
    parts = inputs[:47], targets[:47], inputs[47:], targets[47:]
    return Dataset("images", *parts, classes=3, attribution="", split="", scale=1 / 255)


def trained(comm: Any, options: dict[str, Any]) -> dict[str, bytes]:
    """The bits of what it leaves on this rank."""
    workers: list[Any] = []

    def keep(*told: Any) -> Any:
        workers.append(build_worker(*told))
        return workers[-1]

    mpi.build_worker = keep
    dataset = images()
    taken = {n: v for n, v in options.items() if (n, options["model"]) != ("hidden", "softmax")}
    experiment = resolve_for(Experiment.read(taken), dataset, comm.size)
    store = MemoryStore(config={}, environment={}, ranks=comm.size) if comm.rank == 0 else None
    assert mpi.train(comm, Job(experiment, dataset, store)).code == 0
    left: dict[str, Any] = {}
    if workers:
        parameters = workers[-1].parameters.flat
        assert isinstance(parameters, double.ndarray) == (experiment.backend == "cupy")
        left = {"parameters": arrays.of(parameters).get(parameters)}
    if store is not None:
        record = store.record()
        assert record.complete
        left |= {name: np.sort(record.steps[name], axis=None) for name in SAME}
        left |= {f"mean {n}": v for n, v in record.evaluation.items() if n != "time_s"}
    return {name: np.asarray(values).tobytes() for name, values in left.items()}


@contextmanager
def on_the_current_device(self: Any) -> Any:
    with self.stream:
        yield self.module


def read_by_the_host(self: Any, target: Any, source: Any) -> None:
    ctypes.memmove(target.ctypes.data, source.data.ptr, target.nbytes)


FAULTS: dict[str, tuple[str, Any]] = {
    "--missing-fence": ("fence", lambda self: lambda: True),
    "--late-stream": ("follow", lambda self, other=None: None),
    "--wrong-device": ("queueing", on_the_current_device),
    "--host-read": ("to_host", read_by_the_host),
}


def main() -> None:
    from mpi4py import MPI

    rank, wrong = MPI.COMM_WORLD.rank, 0
    if planted := FAULTS.get(sys.argv[1] if sys.argv[1:] else ""):
        setattr(arrays.Device, *planted)
        del sys.argv[1]
    chosen = sys.argv[1:] or list(EXPERIMENTS)
    for number, name in enumerate(chosen):
        sizes = SERVED.get(name, PARTS[number % len(PARTS)])
        sizes = (MPI.COMM_WORLD.size,) if planted else sizes
        part = int(np.searchsorted(np.cumsum(sizes), rank, side="right"))
        comm = MPI.COMM_WORLD.Split(part if part < len(sizes) else MPI.UNDEFINED)
        if comm != MPI.COMM_NULL:
            here, there = (
                trained(comm, COMMON | EXPERIMENTS[name] | {"backend": backend})
                for backend in ("numpy", "cupy")
            )
            differ = [key for key in here if here[key] != there[key]]
            if differ:
                print(f"WRONG {name} rank {comm.rank} of {comm.size}: {', '.join(differ)}")
            wrong += bool(differ)
            comm.Free()
    wrong = MPI.COMM_WORLD.allreduce(wrong)
    if rank == 0:
        print(f"{len(chosen)} experiments, {wrong} wrong", flush=True)


if __name__ == "__main__":
    main()
