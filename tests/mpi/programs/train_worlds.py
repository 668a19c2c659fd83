"""`train_worlds.py FOLDER [--virtual M]`: several experiments, on real ranks or on virtual ones.

Each leaves its result file, and all ranks' parameters at the end, in FOLDER.
"""

import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np

from mpisgd.experiment import Experiment
from mpisgd.train import build_worker, load, resolve_for
from mpisgd.worlds import real, virtual

COMMON = {
    "model": "mlp", "hidden": "9", "data": "digits", "data-samples": 91, "batch": 4, "steps": 9,
    "evaluate-every": 4, "seed": 5,
}  # fmt: skip
DASGD = {"algorithm": "dasgd", "tau": 3}
EXPERIMENTS: dict[str, dict[str, Any]] = {
    "minibatch": {"algorithm": "minibatch"},
    "minibatch-double": {"algorithm": "minibatch", "dtype": "float64", "allreduce": "double-tree"},
    "local-ring": {"algorithm": "local", "tau": 3, "allreduce": "ring", "ema": 0.9},
    "local-rmsprop": {"algorithm": "local", "optimiser": "rmsprop", "allreduce": "tree"},
    "local-unlike": {"algorithm": "local", "tau": 2, "model": "quadratic", "data": "noise"},
    "dasgd": DASGD | {"delay": 2, "allreduce": "halving-doubling", "progress": "thread"},
    "dasgd-tau": DASGD | {"delay": 3, "chunks": 3},
    "dasgd-zero": DASGD | {"delay": 0, "progress": "thread", "weight-decay": 0.01},
    "dasgd-delta": DASGD | {"merge": "delta", "allreduce": "hierarchical", "nesterov": True},
    "dasgd-overwrite": DASGD | {"merge": "overwrite", "schedule": "linear-tail"},
}


def main() -> None:
    folder, ranks = Path(sys.argv[1]), int(sys.argv[3]) if len(sys.argv) > 2 else None
    workers: list[Any] = []

    def keep(experiment: Any, dataset: Any, site: Any) -> Any:
        workers.append(build_worker(experiment, dataset, site))
        return workers[-1]

    real.build_worker = virtual.build_worker = keep
    for name, options in EXPERIMENTS.items():
        options = {k: v for k, v in (COMMON | options).items() if fits(k, COMMON | options)}
        if ranks is not None:
            options.pop("progress", None)
        arguments = Namespace(output=str(folder / f"{name}.h5"), overwrite=False, format="json")
        run(Experiment.read(options), ranks, arguments)
        parts = [worker.parameters.flat for worker in workers]
        gathered = parts if ranks is not None else everybody(parts[0])
        if gathered is not None:
            np.save(folder / f"{name}.npy", gathered)
        workers.clear()


def fits(option: str, options: dict[str, Any]) -> bool:
    return option != "hidden" or options["model"] == "mlp"


def run(experiment: Experiment, ranks: int | None, arguments: Namespace) -> None:
    dataset = load(experiment)
    if ranks is not None:
        assert virtual.train(resolve_for(experiment, dataset, ranks), dataset, arguments) == 0
        return
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    assert real.train(comm, resolve_for(experiment, dataset, comm.size), dataset, arguments) == 0


def everybody(parameters: np.ndarray) -> list[np.ndarray] | None:
    from mpi4py import MPI

    return MPI.COMM_WORLD.gather(parameters)


if __name__ == "__main__":
    main()
