"""A run from Python: what `mpisgd train` does, to the same bits, without a command line."""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from allreduce.communicator import Communicator
from mpisgd.checkpoint.options import saving
from mpisgd.data import Dataset
from mpisgd.drivers.launch import Target, launch
from mpisgd.experiment.experiment import Experiment
from mpisgd.store.memory import MemoryStore
from mpisgd.store.result import Result
from mpisgd.values.errors import UsageError
from mpisgd.values.options import whole

if TYPE_CHECKING:
    from mpisgd.drivers.launch import World


def run(
    *,
    ranks: int | None = None,
    comm: Communicator | None = None,
    output: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | str | None = None,
    checkpoint_per_rank: bool = False,
    resume: str | os.PathLike[str] | None = None,
    dataset: Dataset | None = None,
    until: Callable[[Mapping[str, Any]], bool] | None = None,
    keep_parameters: bool = False,
    workload: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Result | None:
    """Train, and return the Result. `options`: the fields of an Experiment, or its flags.

    On `ranks` virtual ranks in this process [1]; or on the real ones of `comm`, where all call it
    alike, and only rank 0 gets the Result. It is kept in memory, or written to `output`.
    `checkpoint...`, `resume`, `overwrite`, `keep_parameters`, `workload`: as on the command line.
    `dataset`: instead of that which the options name. `until(row of /evaluation)`: of virtual
    ranks, stop when it says so.

    A run that ends early, because a loss was not finite or a virtual rank waits in vain, has a
    Result that is not `complete`, with the `reason`. Raises UsageError, on every rank, for what is
    no run; Stalled where a real rank waits in vain. BLAS threads change bits: the command line uses
    one, by OPENBLAS_NUM_THREADS=1, set before NumPy is imported.
    """
    output, checkpoint, resume, workload = (
        None if path is None else os.fspath(path) for path in (output, checkpoint, resume, workload)
    )
    experiment = Experiment.read(options, place="{}")
    saved = saving(output, checkpoint, checkpoint_every, resume, checkpoint_per_rank, overwrite)
    if resume is not None and output is None:
        raise UsageError("resume", resume, "needs output: the rows before are in its file")
    target = Target(output, overwrite, True, keep_parameters, workload)
    world = _world(ranks, comm, until is not None)
    launched = launch(experiment, world, target, saved, dataset=dataset, until=until)
    outcome, store = launched
    if world.rank:
        return None
    told = () if outcome is None else (outcome.weights, outcome.code, outcome.evaluate)
    if isinstance(store, MemoryStore):
        return Result(store.record(), *told)
    from mpisgd.store.reader import read

    assert output is not None
    return Result(read(output), *told)


def _world(ranks: int | None, comm: Communicator | None, watched: bool) -> "World":
    if comm is None:
        from mpisgd.drivers.virtual import VirtualWorld

        return VirtualWorld(whole(1, 8192).read("ranks", 1 if ranks is None else ranks))
    if ranks is not None and ranks != comm.Get_size():
        raise UsageError("ranks", ranks, f"comm has {comm.Get_size()}")
    if watched:
        raise UsageError("until", None, "only with virtual ranks")
    from mpisgd.drivers.mpi import MpiWorld

    return MpiWorld(comm)
