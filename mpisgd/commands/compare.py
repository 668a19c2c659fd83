"""`mpisgd compare`: what got worse between two sets of result files, for people and for CI."""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mpisgd.values.errors import UsageError
from mpisgd.values.options import number
from mpisgd.values.tables import FORMATS, render

if TYPE_CHECKING:
    from mpisgd.report.comparison import Group, Launch
    from mpisgd.report.targets import Target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `mpisgd compare`."""
    parser.add_argument("before", metavar="BEFORE", help="a result file, or a folder of them")
    parser.add_argument("after", metavar="AFTER", help="a result file, or a folder of them")
    parser.add_argument("--threshold", default="5%", metavar="P%",
                        help="what a change must exceed, beside its noise [5%%]")  # fmt: skip
    parser.add_argument("--targets", default="", metavar="A,B,...",
                        help="times to these accuracies, or loss:2.183, too")  # fmt: skip
    parser.add_argument("--single", action="store_true",
                        help="judge single launches by the threshold alone")  # fmt: skip
    parser.add_argument("--any-machine", action="store_true",
                        help="compare what was measured on different machines")  # fmt: skip
    parser.add_argument("--format", choices=FORMATS, default="table", help="of the rows [table]")


def run(arguments: argparse.Namespace) -> int:
    """Exit code 1 if anything got worse, 0 if nothing is known to. Raises UsageError."""
    threshold = number(0).read("--threshold", arguments.threshold.removesuffix("%"))
    from mpisgd.report import comparison
    from mpisgd.report.targets import parse

    targets = parse(arguments.targets)

    skipped: list[str] = []
    sides = [_launches(path, targets, skipped) for path in (arguments.before, arguments.after)]
    groups = comparison.paired(*sides)
    rows = comparison.compare(groups, threshold, arguments.single)
    if not rows:
        allowed = f"shares no complete run and no case with {arguments.before}"
        raise UsageError("AFTER", arguments.after, allowed)
    kinds = comparison.machines(groups)
    if kinds and not arguments.any_machine:
        allowed = f"is of other machines or clocks ({' | '.join(kinds)}); --any-machine compares"
        raise UsageError("AFTER", arguments.after, allowed)
    print(render(comparison.COLUMNS, rows, arguments.format))
    out = sys.stdout if arguments.format == "table" else sys.stderr
    for line in (*skipped, *_alone(groups, sides[0])):
        print(f"note: {line}", file=out)
    worse = [row for row in rows if row["verdict"] == comparison.WORSE]
    print(f"mpisgd compare: {_outcome(rows, worse, comparison.UNKNOWN)}", file=out)
    return 1 if worse else 0


def _launches(path: str, targets: "Sequence[Target]", skipped: list[str]) -> "list[Launch]":
    """Of one side. UsageError for a file that cannot be read: what it hides may be worse."""
    from mpisgd.report.collect import collect, find
    from mpisgd.report.comparison import launches

    named, problems = collect(find([path]))
    if problems:
        raise UsageError(problems[0])
    partial = [each.name for each in named if not each.run.complete]
    if partial:
        skipped.append(f"{len(partial)} partial of {path} left out: {', '.join(partial)}")
    return launches([each for each in named if each.run.complete], targets)


def _alone(groups: "Sequence[Group]", before: "Sequence[Launch]") -> list[str]:
    """Who has no partner, by side: how many, and which files."""
    mine = set(map(id, before))
    found = []
    for side in ("before", "after"):
        names = [launch.name for group in groups for launch in group.alone
                 if (id(launch) in mine) == (side == "before")]  # fmt: skip
        if names:
            files = ", ".join(dict.fromkeys(names))
            found.append(f"{len(names)} {side} without a partner: {files}")
    return found


def _outcome(rows: Sequence[dict[str, Any]], worse: Sequence[dict[str, Any]], unknown: str) -> str:
    """The line for CI."""
    untold = [row for row in rows if row["verdict"] == unknown]
    single = ": one launch has no interval, see --single"
    why = single if any(row["pairs"] < 2 for row in untold) else ""
    of = f"of {len(rows)} metrics"
    more = f"; {len(untold)} cannot be told{why}" if untold else ""
    if not worse:
        return f"nothing is known to be worse {of}{more}"
    return f"{len(worse)} {of} worse: {'; '.join(map(_change, worse))}{more}"


def _change(row: dict[str, Any]) -> str:
    change, noise = row["difference_percent"], row["half_width_percent"]
    text = "has no number now" if change is None else f"{change:+.1f} %"
    text += "" if noise is None else f" +- {noise:.1f} %"
    return f"{row['metric']} of {row['settings']} {text}"
