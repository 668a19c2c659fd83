"""`mpisgd bench allreduce | overlap`: which benchmark, and what all have in common."""

import argparse
from functools import partial

from mpisgd.bench import allreduce, memory, overlap
from mpisgd.mpi import session
from mpisgd.store.lock import held_together
from mpisgd.store.target import check_target
from mpisgd.values import tables
from mpisgd.values.errors import UsageError
from mpisgd.values.schedules import digests

BENCHMARKS = {
    "allreduce": (allreduce, "seconds, bandwidth and errors of all-reduces"),
    "overlap": (overlap, "how much of an all-reduce is hidden behind work"),
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
        sub.add_argument(
            "--min-repetitions", default="20", metavar="N", help="of a case, at least [20]"
        )
        sub.add_argument(
            "--max-repetitions", default="2000", metavar="N", help="and at most [2000]"
        )
        sub.add_argument("--time-budget", default="0.5s", metavar="TIME", help="for a case, a "
                         "time such as 20ms or 2s [0.5s]")  # fmt: skip
        sub.add_argument("--tolerance", default="0.02", metavar="X", help="enough when the median "
                         "is known to +- this share of it [0.02]")  # fmt: skip
        sub.add_argument("--deadline", default="60s", metavar="TIME", help="without progress [60s]")
        sub.add_argument(
            "--seed", default="0", metavar="N", help="of the random order of cases, >= 0 [0]"
        )
        sub.add_argument("--bind", action="store_true", help="bind each rank to a core of its own, "
                         "where there are enough (some launchers do it, some do not)")  # fmt: skip
        sub.add_argument("--output", metavar="FILE", help="HDF5 file for all samples")
        sub.add_argument("--overwrite", action="store_true", help="replace an existing --output")
        sub.add_argument("--blas-threads", metavar="N", help="BLAS threads of each rank [1]")
        sub.add_argument("--format", choices=tables.FORMATS, default="table", help="[table]")


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
