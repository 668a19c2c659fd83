"""`train_worlds.py FOLDER [--virtual]`: several experiments on 1, 2, 3, 4, 5 and 8 ranks.

On 8 real ranks, split into communicators of these sizes, or on virtual ones. Each experiment
leaves what it recorded, and all ranks' parameters at the end, in FOLDER/RANKS/NAME.npz.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from mpisgd.drivers import mpi, virtual
from mpisgd.drivers.job import Job
from mpisgd.experiment.building import build_worker, load, resolve_for
from mpisgd.experiment.experiment import Experiment
from mpisgd.store.memory import MemoryStore, Record

PHASES = ((8,), (5, 3), (4, 2, 1))  # what trains at the same time
COMMON = {
    "model": "mlp", "hidden": "9", "data": "digits", "data-samples": 91, "batch": 4, "steps": 9,
    "evaluate-every": 4, "seed": 5,
}  # fmt: skip
DASGD = {"algorithm": "dasgd", "tau": 3}
EXPERIMENTS: dict[str, dict[str, Any]] = {
    "minibatch": {"algorithm": "minibatch"},
    "minibatch-double": {"algorithm": "minibatch", "dtype": "float64", "allreduce": "double-tree"},
    "overlap": {"algorithm": "minibatch-overlap", "bucket": 300},
    "overlap-thread": {"algorithm": "minibatch-overlap", "bucket": 1, "progress": "thread"},
    "overlap-padded": {
        "algorithm": "minibatch-overlap",
        "bucket": 1,
        "allreduce": "ring",
        "step-time": "1ms",
    },
    "partial-all": {"algorithm": "minibatch-partial", "quorum": "all", "late": "add"},
    "local-ring": {"algorithm": "local", "tau": 3, "allreduce": "ring", "ema": 0.9},
    "local-rmsprop": {"algorithm": "local", "optimiser": "rmsprop", "allreduce": "tree"},
    "local-own": {"algorithm": "local", "tau": 3, "initial": "own", "optimiser": "lars"},
    "local-unlike": {"algorithm": "local", "tau": 2, "model": "quadratic", "data": "noise"},
    "slowmo": {"algorithm": "slowmo", "tau": 2, "outer-momentum": 0.7, "outer-rate": 0.9},
    "bfloat16": {"algorithm": "local", "tau": 2, "wire": "bfloat16", "allreduce": "ring"},
    "int8": {
        "algorithm": "minibatch-overlap",
        "bucket": 300,
        "wire": "int8",
        "error-feedback": True,
        "allreduce": "double-tree",
        "progress": "thread",
    },
    "topk": {"algorithm": "local", "tau": 2, "wire": "topk:0.1", "allreduce": "tree"},
    "powersgd": {
        "algorithm": "minibatch-overlap",
        "bucket": 300,
        "wire": "powersgd:2",
        "allreduce": "ring",
        "progress": "thread",
    },
    "streaming": {"algorithm": "streaming-diloco", "tau": 3, "fragments": 4, "delay": 2},
    "post-local": {"algorithm": "post-local", "tau": 2, "switch": 4},
    "easgd": {"algorithm": "easgd", "tau": 2},
    "gossip": {"algorithm": "gossip", "tau": 2, "initial": "own"},
    "gossip-zero": {"algorithm": "gossip", "tau": 1, "delay": 0, "progress": "thread"},
    "gossip-tau": {"algorithm": "gossip", "tau": 2, "delay": 2, "chunks": 3, "ema": 0.9},
    "gossip-wire": {"algorithm": "gossip", "tau": 2, "wire": "bfloat16", "error-feedback": True},
    "dasgd": DASGD | {"delay": 2, "allreduce": "halving-doubling", "progress": "thread"},
    "dasgd-tau": DASGD | {"delay": 3, "chunks": 3},
    "dasgd-zero": DASGD | {"delay": 0, "progress": "thread", "weight-decay": 0.01},
    "dasgd-delta": DASGD | {"merge": "delta", "allreduce": "hierarchical", "nesterov": True},
    "dasgd-overwrite": DASGD | {"merge": "overwrite", "schedule": "linear-tail"},
}
SAME = ("loss", "samples", "rate")  # columns of /steps that do not depend on the world


def main() -> None:
    folder = Path(sys.argv[1])
    if sys.argv[2:] == ["--virtual"]:
        for ranks in (1, 2, 3, 4, 5, 8):
            every_experiment(folder, ranks)
        return
    from mpi4py import MPI

    for phase in PHASES:
        # Rank r belongs to the part that has r - (ranks of the parts before) < its size.
        ends = np.cumsum(phase)
        part = int(np.searchsorted(ends, MPI.COMM_WORLD.rank, side="right"))
        comm = MPI.COMM_WORLD.Split(part if part < len(phase) else MPI.UNDEFINED)
        if comm != MPI.COMM_NULL:
            assert comm.size == phase[part]
            every_experiment(folder, comm.size, comm)
            comm.Free()


def every_experiment(folder: Path, ranks: int, comm: Any = None) -> None:
    """On virtual ranks if there is no communicator."""
    workers: list[Any] = []

    def keep(*told: Any) -> Any:
        workers.append(build_worker(*told))
        return workers[-1]

    mpi.build_worker = virtual.build_worker = keep
    (folder / str(ranks)).mkdir(exist_ok=True)
    for name, options in EXPERIMENTS.items():
        experiment = read(COMMON | options, folder, comm is None)
        dataset = load(experiment)
        experiment = resolve_for(experiment, dataset, ranks)
        first = comm is None or comm.rank == 0
        store = MemoryStore(config={}, environment={}, ranks=ranks) if first else None
        job = Job(experiment, dataset, store)
        outcome = virtual.train(job) if comm is None else mpi.train(comm, job)
        assert outcome.code == 0
        if comm is None:
            parts = [worker.parameters.flat for worker in workers]
        else:
            parts = comm.gather(workers[-1].parameters.flat)
        if store is not None:
            np.savez(folder / str(ranks) / name, parameters=parts, **arrays(store.record()))
        workers.clear()


def arrays(record: Record) -> dict[str, np.ndarray]:
    """What does not depend on the world."""
    assert record.complete
    found = {f"steps/{name}": record.steps[name] for name in SAME}
    names = record.evaluation.keys() - {"time_s"}
    return found | {f"evaluation/{name}": record.evaluation[name] for name in names}


def read(options: dict[str, Any], folder: Path, virtually: bool) -> Experiment:
    options = dict(options)
    if options["model"] != "mlp":
        del options["hidden"]
    if virtually:
        options.pop("progress", None)
    return Experiment.read(options)


if __name__ == "__main__":
    main()
