"""`train_worlds.py FOLDER [--virtual]`: several experiments on 1, 2, 3, 4, 5 and 8 ranks.

On 8 real ranks, split into communicators of these sizes, or on virtual ones. Each experiment
leaves what it recorded, and all ranks' parameters at the end, in FOLDER/RANKS/NAME.npz.
"""

import sys
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mpisgd.drivers import mpi, virtual
from mpisgd.experiment.building import build_worker, load, resolve_for
from mpisgd.experiment.experiment import Experiment
from mpisgd.store import remote, writer

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
    "local-ring": {"algorithm": "local", "tau": 3, "allreduce": "ring", "ema": 0.9},
    "local-rmsprop": {"algorithm": "local", "optimiser": "rmsprop", "allreduce": "tree"},
    "local-unlike": {"algorithm": "local", "tau": 2, "model": "quadratic", "data": "noise"},
    "slowmo": {"algorithm": "slowmo", "tau": 2, "outer-momentum": 0.7, "outer-rate": 0.9},
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


class Store:
    """In place of a result file: it keeps what it is given. 60 files would take half a minute."""

    def __init__(self) -> None:
        self.kept: dict[str, list[np.ndarray]] = {}

    def steps(self, rank: int, first: int, columns: dict[str, np.ndarray]) -> None:
        for name in SAME:
            if name in columns:
                self.kept.setdefault(f"steps/{name}/{rank}", []).append(columns[name].copy())

    def evaluation(self, **columns: float) -> None:
        for name, value in columns.items():
            if name != "time_s":  # the one that depends on the world
                self.kept.setdefault(f"evaluation/{name}", []).append(np.array([value]))

    def event(self, *_: Any) -> None:
        """Timelines depend on the world."""

    def flush(self) -> None:
        """Nothing: all is in memory."""

    def complete(self, summary: dict[str, Any]) -> None:
        """Only rank 0 of a run that succeeded gets here."""
        self.completed = True

    def arrays(self) -> dict[str, np.ndarray]:
        assert self.completed
        return {name: np.concatenate(parts) for name, parts in self.kept.items()}


def kept(store: Store, *_: Any, **__: Any) -> Store:
    """In place of a writer's class."""
    return store


def every_experiment(folder: Path, ranks: int, comm: Any = None) -> None:
    """On virtual ranks if there is no communicator."""
    workers: list[Any] = []

    def keep(experiment: Any, dataset: Any, site: Any) -> Any:
        workers.append(build_worker(experiment, dataset, site))
        return workers[-1]

    mpi.build_worker = virtual.build_worker = keep
    (folder / str(ranks)).mkdir(exist_ok=True)
    arguments = Namespace(output="not written", overwrite=False, format="json")
    for name, options in EXPERIMENTS.items():
        store = Store()
        remote.RemoteWriter = writer.Writer = partial(kept, store)  # type: ignore
        experiment = read(COMMON | options, folder, comm is None)
        dataset = load(experiment)
        experiment = resolve_for(experiment, dataset, ranks)
        if comm is None:
            assert virtual.train(experiment, dataset, arguments) == 0
            parts = [worker.parameters.flat for worker in workers]
        else:
            assert mpi.train(comm, experiment, dataset, arguments) == 0
            parts = comm.gather(workers[-1].parameters.flat)
        if parts is not None:
            arrays: dict[str, Any] = {"parameters": parts, **store.arrays()}
            np.savez(folder / str(ranks) / name, **arrays)
        workers.clear()


def read(options: dict[str, Any], folder: Path, virtually: bool) -> Experiment:
    options = dict(options)
    if options["model"] != "mlp":
        del options["hidden"]
    if virtually:
        options.pop("progress", None)
    return Experiment.read(options)


if __name__ == "__main__":
    main()
