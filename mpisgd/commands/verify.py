"""`mpisgd verify`: are the all-reduce schedules right, for these numbers of ranks?"""

import argparse
import sys
import time
from typing import Any

from allreduce.algorithms import ALGORITHMS
from allreduce.errors import ScheduleError
from mpisgd.values import progress, tables
from mpisgd.values.errors import UsageError
from mpisgd.values.plugins import SYNTAX
from mpisgd.values.quantities import ranks
from mpisgd.values.schedules import build

COLUMNS = (
    "algorithm", "ranks", "rounds", "transfers", "segments", "verdict",
    tables.Column("verify_s", ".3f"),
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `mpisgd verify`."""
    parser.add_argument("--ranks", default="1:17", help="such as 8, 1:64 or 1:17,127,128 [1:17]")
    parser.add_argument(
        "--algorithms", default="all", help=f"names with commas, all, or {SYNTAX} [all]"
    )
    parser.add_argument("--format", choices=tables.FORMATS, default="table", help="[table]")


def run(arguments: argparse.Namespace) -> int:
    """Verify every combination; exit code 1 if any schedule is wrong."""
    sizes, names = (
        ranks("--ranks", arguments.ranks, most=4096),
        algorithm_names(arguments.algorithms),
    )
    cases = [(name, size) for name in names for size in sizes]
    rows = [_check(*case) for case in progress.over(cases, "verify", "schedule")]
    wrong = [row for row in rows if row["verdict"] != "right"]
    print(tables.render(COLUMNS, rows, arguments.format))
    print(f"{len(rows)} schedules verified, {len(wrong)} wrong", file=sys.stderr)
    return 1 if wrong else 0


def algorithm_names(text: str, option: str = "--algorithms") -> list[str]:
    """From names with commas, or `all`. UsageError for an unknown one."""
    names = list(ALGORITHMS) if text == "all" else text.split(",")
    for name in names:
        try:
            build(name, 1, verified=False)
        except ScheduleError as error:
            raise UsageError(option, text, str(error)) from None
    return names


def _check(name: str, size: int) -> dict[str, Any]:
    from allreduce.verify import verify

    schedule = build(name, size, verified=False)
    began, verdict = time.perf_counter(), "right"
    try:
        verify(schedule)
    except ScheduleError as error:
        verdict = str(error)
    return {
        "algorithm": name,
        "ranks": size,
        "rounds": len(schedule.rounds),
        "transfers": sum(len(transfers) for transfers in schedule.rounds),
        "segments": schedule.segments,
        "verdict": verdict,
        "verify_s": time.perf_counter() - began,
    }
