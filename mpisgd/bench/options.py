"""The options that all who measure all-reduces read alike."""

import argparse
from collections.abc import Iterable

import numpy as np

from allreduce.algorithms import ALGORITHMS
from allreduce.errors import ScheduleError
from allreduce.measure import Rule
from mpisgd.values import tables
from mpisgd.values.errors import UsageError, affordable
from mpisgd.values.options import duration, number, whole, wholes
from mpisgd.values.schedules import build
from mpisgd.values.units import parse_sizes


def add_arguments(
    parser: argparse.ArgumentParser, minimum: int, budget: str, what: str = "of a case"
) -> None:
    """What all that is measured has in common; `minimum` and `budget` are defaults."""
    add = parser.add_argument
    add("--min-repetitions", default=str(minimum), metavar="N",
        help=f"{what}, at least [{minimum}]")  # fmt: skip
    add("--max-repetitions", default="2000", metavar="N", help="and at most [2000]")
    add("--time-budget", default=budget, metavar="TIME", help=f"for that, a time such as 20ms or "
        f"2s [{budget}]")  # fmt: skip
    add("--tolerance", default="0.02", metavar="X", help="enough when the median is known to +- "
        "this share of it [0.02]")  # fmt: skip
    add("--deadline", default="60s", metavar="TIME", help="without progress [60s]")
    add("--seed", default="0", metavar="N", help="of the random order of cases, >= 0 [0]")
    add("--bind", action="store_true", help="bind each rank to a core of its own, where there are "
        "enough (some launchers do it, some do not)")  # fmt: skip
    add("--output", metavar="FILE", help="HDF5 file for all samples")
    add("--overwrite", action="store_true", help="replace an existing --output")
    add("--blas-threads", metavar="N", help="BLAS threads of each rank [1]")
    add("--format", choices=tables.FORMATS, default="table", help="[table]")


def rule(arguments: argparse.Namespace) -> Rule:
    """When there are enough repetitions. UsageError."""
    minimum = whole(1, 10**6).read("--min-repetitions", arguments.min_repetitions)
    return Rule(
        minimum,
        whole(minimum, 10**6).read("--max-repetitions", arguments.max_repetitions),
        duration().read("--time-budget", arguments.time_budget),
        number(0, 1).read("--tolerance", arguments.tolerance),
    )


def deadline(arguments: argparse.Namespace) -> float:
    """Seconds without progress until the benchmark gives up. UsageError."""
    return duration(0.01).read("--deadline", arguments.deadline)


def seed(arguments: argparse.Namespace) -> int:
    """Of the order of cases. UsageError."""
    return whole(0).read("--seed", arguments.seed)


def algorithms(
    text: str, library: Iterable[str], default: tuple[str, ...], flag: str = "--algorithms"
) -> tuple[str, ...]:
    """Names with commas; `all` means `default`. `library`: what may be named beside schedules."""
    names = dict.fromkeys(
        name for part in text.split(",") for name in (default if part == "all" else (part,))
    )
    for name in names:
        if name not in library:
            try:
                build(name, 1)
            except ScheduleError as mistake:
                others = ", ".join(each for each in library if each not in ALGORITHMS)
                allowed = f"{mistake}, {others}"
                raise UsageError(flag, text, allowed) from None
    return tuple(names)


def counts(text: str, dtype: np.dtype) -> tuple[int, ...]:
    """Sizes in bytes, each a whole number of elements. UsageError."""
    sizes = parse_sizes(text, "--sizes")
    for size in sizes:
        if not size:
            raise UsageError("--sizes", text, "each at least 1 byte")
        if size % dtype.itemsize:
            allowed = f"not a whole number of {dtype.name} ({dtype.itemsize} B each)"
            raise UsageError("--sizes", text, f"{size} B is {allowed}")
    with affordable("--sizes", text):
        np.empty(max(sizes), np.uint8)  # pages are taken when they are written
    return tuple(sizes)


def chunks(text: str) -> tuple[int, ...]:
    """In how many messages a transfer is cut. UsageError."""
    found = wholes(1).read("--chunks", text)
    if not found or max(found) > 256:
        raise UsageError("--chunks", text, "whole numbers in 1..256 with commas, such as 1,4")
    return tuple(dict.fromkeys(found))
