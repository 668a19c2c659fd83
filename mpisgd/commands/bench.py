"""`mpisgd bench allreduce | overlap | sparse`: which benchmark, and what all have in common."""

import argparse
from functools import partial

from mpisgd.bench import allreduce, memory, options, overlap, sparse
from mpisgd.mpi import session
from mpisgd.store.lock import held_together
from mpisgd.store.target import check_target
from mpisgd.values.errors import UsageError
from mpisgd.values.schedules import digests

BENCHMARKS = {
    "allreduce": (allreduce, "seconds, bandwidth and errors of all-reduces"),
    "overlap": (overlap, "how much of an all-reduce is hidden behind work"),
    "sparse": (sparse, "sums of matrices of which ranks have few rows, by rows and as a whole"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `mpisgd bench`."""
    benchmarks = parser.add_subparsers(
        title="benchmarks", dest="benchmark", metavar="BENCHMARK", required=True
    )
    for name, (module, summary) in BENCHMARKS.items():
        sub = benchmarks.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        module.add_arguments(sub)
        memory.add_arguments(sub)
        options.add_arguments(sub, minimum=20, budget="0.5s")


def run(arguments: argparse.Namespace) -> int:
    """Run one benchmark; 0, 1 where a result was wrong, 2 for a user's mistake."""
    module, _ = BENCHMARKS[arguments.benchmark]
    settings = module.settings(arguments)
    comm = session.world()
    return session.guarded(comm, partial(_run, comm, module, settings, arguments))


def _run(comm, module, settings, arguments: argparse.Namespace) -> int:
    error: UsageError | None = None
    own: dict[str, str] = {}
    try:
        settings.check(comm)
        own = digests(settings.algorithms, comm.Get_size())
        if arguments.output is not None and comm.Get_rank() == 0:
            check_target(arguments.output, arguments.overwrite)
    except UsageError as mistake:
        error = mistake
    session.agree(comm, error, settings.deadline_s)
    if own:
        session.agree_on(comm, f"contents of {', '.join(own)}", repr(own), settings.deadline_s)
    with held_together(comm, arguments.output, settings.deadline_s):
        return module.measure(comm, settings, arguments)
